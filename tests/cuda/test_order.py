"""The order of sums that the CUDA library declares is the one it sums in, to the bit, and the one it is judged by."""

from __future__ import annotations

import json

import numpy as np
import pytest

from native import Context, Library, Stored
from oracle import summation
from oracle.arithmetic import named
from parity import candidates
from parity.candidates import LIBRARIES
from parity.ordering import inside, judging, kernels, render
from parity.ordering.probe import probe


def chained(x: np.ndarray, w: np.ndarray, order: str) -> np.ndarray:
    """x w^T as one chain of FMAs per lane, the lanes then added in a tree. A product of two f32 is exact in f64, so each FMA is a sum in
    f64 rounded to f32: the same value as long as that sum is no midpoint of f32."""
    lanes = []
    for index in summation.lane_indices(order, x.shape[1]):
        total = np.zeros((len(x), len(w)), np.float32)
        for i in index:
            total = (x[:, i, None].astype(np.float64) * w[:, i] + total).astype(np.float32)
        lanes.append(total)
    return summation.total(np.stack(lanes, -1), "pairwise")


@pytest.mark.parametrize("width", [96, 256, 803])
def test_a_product_is_summed_in_the_declared_order(cpu: Library, ctx: Context, width: int) -> None:
    rng = np.random.default_rng(width)
    x, w = rng.standard_normal((5, width)).astype(np.float32), rng.standard_normal((9, width)).astype(np.float32)
    found = ctx.linear(x, Stored.of(w, "f32"))
    np.testing.assert_array_equal(found, chained(x, w, cpu.info.arithmetic["order"]))
    for other in ("lanes:32", "lanes:1", "lanes:16x4"):
        assert (found != chained(x, w, other)).any(), other


def test_it_is_judged_by_what_it_declares(cpu: Library) -> None:
    A, said = named(LIBRARIES[cpu.info.name.removeprefix("dlab-")]), cpu.info.arithmetic
    assert A.declared
    assert (A.order, A.attention_order, A.norm_sum, A.fma) == (said["order"], said["attention_order"], said["norm_sum"], said["fma"] == "1")


def test_its_order_is_seen_from_outside_for_every_kernel_of_rows(ctx: Context, candidate: str) -> None:
    """M = 1, 2 to 4 and from 5 on are different kernels."""
    (found,) = inside.answers(kernels.of_library(ctx), inside.Options(("f32",), (139,), 2, 5))
    declared = judging.declarations(candidates.parse(candidate), None, {"order": "lanes:32x4", "fma": "1"})
    assert judging.judge(json.loads(json.dumps(found)), declared) == []
    assert (found["order"]["name"], found["order"]["fused"]) == ("lanes:32x4", "yes") and all(r["same"] for r in found["rows"])


@pytest.mark.parametrize(("weights", "said"), [("bf16", "not declared"), ("f32", "as declared (lanes:32x4)")])
def test_of_matrix_units_the_library_declares_no_order(candidate: str, weights: str, said: str) -> None:
    (spec,) = (name for name in LIBRARIES if name.startswith(f"{candidate}+"))
    report = probe(candidates.parse(spec), weights=(weights,), widths=(48,), outputs=2, block=2)
    assert report.verdict == "parity", report.findings
    assert said in render.text(report)
