"""Products on SIMD-group matrices: the arithmetic metal-simdgroup, which a candidate NAME+simdgroup runs and is judged by."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dumps import open_dump
from native import Library, NativeError, Stored
from native.emulation import Emulation
from oracle.arithmetic import named
from oracle.policies import apply
from parity import candidates
from parity.cli.build import seeded
from parity.comparing import compare_dump
from parity.making import drafter_case
from tests.native.stored_blocks import random_weight


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_product_rounds_its_activations_to_the_weights_format_and_nothing_else(cpu: Library, dtype: str) -> None:
    rng = np.random.default_rng(0)
    x, bias = rng.standard_normal((17, 77)).astype(np.float32), rng.standard_normal(37).astype(np.float32)
    stored = random_weight(dtype, 37, 77)
    with cpu.context(products="simdgroup") as ctx:
        found = ctx.linear(x, stored, Stored.of(bias, "f32"))
        decoded = ctx.dequant(stored).astype(np.float64)
        for m in range(1, 17):
            np.testing.assert_array_equal(ctx.linear(x[17 - m :], stored, Stored.of(bias, "f32")), found[17 - m :], f"M={m}")
    rounded = apply(dtype, x.astype(np.float64))
    bound = 80 * 2.0**-24 * (np.abs(rounded) @ np.abs(decoded).T + np.abs(bias))
    assert (np.abs(found - (rounded @ decoded.T + bias)) <= bound).all()
    assert (np.abs(found - (x @ decoded.T + bias)) > bound).mean() > 0.5


def test_other_weights_keep_their_lanes(cpu: Library) -> None:
    x, w = np.random.default_rng(1).standard_normal((3, 256)).astype(np.float32), random_weight("q4_k", 5, 256)
    with cpu.context(products="simdgroup") as matrices, cpu.context() as lanes:
        np.testing.assert_array_equal(matrices.linear(x, w), lanes.linear(x, w))


def test_orders_of_threads_give_the_same_bits(cpu: Library, emulation: Emulation) -> None:
    x, w = np.random.default_rng(2).standard_normal((5, 64)).astype(np.float32), random_weight("f16", 40, 64)
    with cpu.context(products="simdgroup") as ctx:
        want = ctx.linear(x, w)
        for schedule in ("late", "1", "2"):
            emulation.schedule(schedule)
            np.testing.assert_array_equal(ctx.linear(x, w), want)


def test_products_of_another_name_are_refused(cpu: Library) -> None:
    with pytest.raises(NativeError, match="products=tensor: expected f32 or simdgroup"):
        cpu.context(products="tensor")


def test_a_fused_drafter_is_in_parity_under_it_and_not_without_it(tmp_path: Path) -> None:
    model, borrowed = seeded("qwen3", "bf16", 1, tmp_path)
    assert borrowed is not None
    case = drafter_case(model, borrowed, family="qwen3", appends=(4,), block=3, seed=3)
    candidate = candidates.parse("metal-emu+simdgroup", "fused")
    declared = candidates.declared(candidate, None)
    assert declared.name == "metal-simdgroup"
    candidates.execute(candidate, case, tmp_path / "dump", None)
    dump = open_dump(tmp_path / "dump")
    report = compare_dump(case, dump, declared, members=3)
    assert report.verdict == "parity", report.divergences[:2]
    assert compare_dump(case, dump, named("metal-f32"), mode="local").verdict == "divergence"
