"""A row's bits depend neither on the rows beside it nor on the number of threads."""

from __future__ import annotations

import numpy as np
import pytest

import native
from native import Context, Library
from tests.native.stored_blocks import WEIGHT_TYPES, random_weight

ROWS = 33


@pytest.mark.parametrize("dtype", WEIGHT_TYPES)
def test_linear_gives_a_row_the_same_bits_in_every_batch(ctx: Context, dtype: str) -> None:
    width = 512 + (19 if native.DTYPES[dtype].block == 1 else 0)
    w = random_weight(dtype, 29, width)
    x = np.random.default_rng(1).standard_normal((ROWS, width)).astype(np.float32)
    whole = ctx.linear(x, w)
    for m in range(1, ROWS + 1):
        np.testing.assert_array_equal(ctx.linear(x[ROWS - m :], w).view(np.uint32), whole[ROWS - m :].view(np.uint32), f"M={m}")
    long = np.concatenate([x, x, x, x])
    np.testing.assert_array_equal(ctx.linear(long, w)[-ROWS:].view(np.uint32), whole.view(np.uint32))


@pytest.mark.parametrize("dtype", WEIGHT_TYPES)
def test_thread_counts_give_the_same_bits(cpu: Library, dtype: str) -> None:
    w = random_weight(dtype, 150, 512)
    x = np.random.default_rng(2).standard_normal((16, 512)).astype(np.float32)
    results = []
    for threads in range(1, 5):
        with cpu.context(threads) as context:
            results.append(context.linear(x, w))
    for result in results[1:]:
        np.testing.assert_array_equal(result.view(np.uint32), results[0].view(np.uint32))


def test_linear_sums_chunks_of_256_in_sequence(cpu: Library) -> None:
    """The declared order, element by element: chains of 256 (fused) multiply-adds in f32, chunk sums added in order."""
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((2, 600)).astype(np.float32), rng.standard_normal((3, 600)).astype(np.float32)
    fused = cpu.info.arithmetic["fma"] == "1"
    want = np.zeros((2, 3), np.float32)
    for start in range(0, 600, 256):
        total = np.zeros((2, 3), np.float32)
        for k in range(start, min(start + 256, 600)):
            product = x[:, k, None].astype(np.longdouble) * w[None, :, k]
            # longdouble holds the exact product and (but for a double rounding that this seed does not meet) the exact sum
            total = (total + (product if fused else product.astype(np.float32))).astype(np.float32)
        want = want + total
    with cpu.context(1) as context:
        np.testing.assert_array_equal(context.linear(x, native.Stored.of(w)), want)


@pytest.mark.parametrize("cells", [5, 300])
def test_attention_gives_a_row_the_same_bits_in_every_batch(ctx: Context, cells: int) -> None:
    rng = np.random.default_rng(4)
    q = rng.standard_normal((ROWS, 6, 40)).astype(np.float32)
    k, v = (rng.standard_normal((cells, 2, 40)).astype(np.float32) for _ in range(2))
    visible = rng.random((ROWS, cells)) < 0.7
    whole = ctx.attention(q, k, v, visible, 0.2)
    for m in (1, 2, 5, 16, 17):
        part = ctx.attention(q[ROWS - m :], k, v, visible[ROWS - m :], 0.2)
        np.testing.assert_array_equal(part.view(np.uint32), whole[ROWS - m :].view(np.uint32), f"M={m}")
