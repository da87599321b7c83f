"""The operations of the CUDA library, on the emulator: the tests of the CPU library, unchanged, and what a device adds."""

from __future__ import annotations

import numpy as np
import pytest

import native
from native import Context
from native.emulation import Emulation
from tests.native.stored_blocks import WEIGHT_TYPES, random_weight
from tests.native.test_dequant import *  # noqa: F403
from tests.native.test_invariance import test_attention_gives_a_row_the_same_bits_in_every_batch as _attention_rows
from tests.native.test_ops import (  # noqa: F401
    test_accept_counts_the_leading_agreement,
    test_add_and_concat_are_exact,
    test_attention,
    test_attention_scores_beyond_the_range_of_exp,
    test_bf16_cells_are_read_as_bf16,
    test_gate,
    test_gather_is_the_decoded_row_times_the_scale,
    test_linear,
    test_operations_without_rows_give_nothing,
    test_rms_norm,
    test_rope,
    test_rope_keeps_its_accuracy_at_large_positions,
    test_softcap,
    test_softmax,
    test_swiglu,
    test_top2_takes_the_lowest_index_and_never_nan,
    test_unseen_cells_never_matter,
)


@pytest.mark.parametrize("cells", [5, 300])
def test_attention_gives_a_row_the_same_bits_in_every_batch(ctx: Context, cells: int) -> None:
    _attention_rows(ctx, cells)


@pytest.mark.parametrize("dtype", WEIGHT_TYPES)
def test_linear_gives_a_row_the_same_bits_for_every_number_of_rows(ctx: Context, dtype: str) -> None:
    width = 256 + (19 if native.DTYPES[dtype].block == 1 else 0)
    w = random_weight(dtype, 18, width)
    x = np.random.default_rng(1).standard_normal((17, width)).astype(np.float32)
    whole = ctx.linear(x, w)
    for m in range(1, 17):
        np.testing.assert_array_equal(ctx.linear(x[17 - m :], w).view(np.uint32), whole[17 - m :].view(np.uint32), f"M={m}")


@pytest.mark.parametrize("schedule", ["late", "1", "2", "3"])
def test_orders_of_threads_and_schedules_give_the_same_bits(ctx: Context, emulation: Emulation, schedule: str) -> None:
    rng = np.random.default_rng(2)
    x, weights = rng.standard_normal((5, 512)).astype(np.float32), [random_weight(dtype, 20, 512) for dtype in WEIGHT_TYPES]
    q, k = rng.standard_normal((4, 6, 40)).astype(np.float32), rng.standard_normal((70, 2, 40)).astype(np.float32)

    def run() -> list[np.ndarray]:
        products = [ctx.linear(x[:m], w) for w in weights for m in (1, 3, 5)]
        return [*products, *map(ctx.dequant, weights), ctx.attention(q, k, k, None, 0.2), *ctx.top2(x)]

    want = run()
    emulation.schedule(schedule)
    for a, b in zip(run(), want, strict=True):
        np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


def test_heads_wider_than_the_kernels_are_refused(ctx: Context) -> None:
    q = np.zeros((1, 1, 520), np.float32)
    with pytest.raises(native.NativeError, match="heads of 520 values, this library takes up to 512"):
        ctx.attention(q, q, q, None, 1.0)
