"""Products by tensor cores: activations rounded as the weight is stored, a row the same bits in every batch, an arithmetic of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import native
from dumps import open_dump
from native import Context, Library, NativeError
from oracle import policies
from oracle.arithmetic import named
from oracle.artifacts import make_artifact
from oracle.floats import BF16, F16
from parity.candidates import declared, execute, parse
from parity.comparing import compare_dump
from parity.making import drafter_case
from tests.artifacts.test_artifact_heads import FEWER
from tests.native.stored_blocks import random_weight

SPEC = "cuda-emu+tensor-core"


@pytest.fixture(scope="module")
def units(cpu: Library) -> Iterator[Context]:
    with cpu.context(products="tensor-core") as context:
        yield context


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_activations_are_rounded_to_the_type_of_the_weight(units: Context, dtype: str) -> None:
    rng = np.random.default_rng(0)
    w, x = random_weight(dtype, 19, 37), rng.standard_normal((5, 37)).astype(np.float32)
    rounded = (BF16 if dtype == "bf16" else F16).round(x.astype(np.float64))
    assert np.array_equal(policies.apply(policies.resolved("weight16", dtype), x.astype(np.float64)), rounded)
    want = rounded @ units.dequant(w).astype(np.float64).T
    found = units.linear(x, w)
    scale = np.abs(rounded) @ np.abs(units.dequant(w)).T
    assert (np.abs(found - want) <= 37 * 2.0**-24 * scale).all()
    assert (np.abs(x @ units.dequant(w).T - want) > 37 * 2.0**-24 * scale).any(), "as if nothing were rounded"


def test_a_row_has_the_same_bits_for_every_number_of_rows(units: Context) -> None:
    x, w = np.random.default_rng(1).standard_normal((17, 48)).astype(np.float32), random_weight("bf16", 18, 48)
    whole = units.linear(x, w)
    for m in range(1, 17):
        np.testing.assert_array_equal(units.linear(x[17 - m :], w), whole[17 - m :])


def test_other_weights_go_the_usual_way(ctx: Context, units: Context) -> None:
    x, w = np.random.default_rng(2).standard_normal((3, 256)).astype(np.float32), random_weight("q4_k", 9, 256)
    np.testing.assert_array_equal(units.linear(x, w), ctx.linear(x, w))


def test_a_drafter_agrees_under_its_own_arithmetic_and_not_under_that_of_the_f32_kernels(tmp_path: Path) -> None:
    model, target = make_artifact("qwen3", "tiny", "bf16", tmp_path / "m", 3, "safetensors", **FEWER)
    case = drafter_case(model, target, family="qwen3", block=4, context=6, seed=4)
    candidate = parse(SPEC, "fused", schedule="late")
    execute(candidate, case, tmp_path / "d", None)
    report = compare_dump(case, open_dump(tmp_path / "d"), declared(candidate, None), members=3)
    assert report.verdict == "parity", report.divergences[:2]
    assert compare_dump(case, open_dump(tmp_path / "d"), named("cuda-f32"), mode="local").verdict == "divergence"


def test_an_unknown_kind_of_product_is_refused(cpu: Library) -> None:
    with pytest.raises(NativeError, match="products=f64: expected f32 or tensor-core"):
        cpu.context(products="f64")
    assert native.open_library(cpu.info.path).info.name == cpu.info.name
