"""Consumers that round their input to a coarse grid: which side of a midpoint a value falls on is a choice, and is followed as one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dumps import DumpWriter, open_dump
from oracle import arithmetic as arithmetics
from oracle.artifacts import make_artifact
from oracle.floats import F16
from oracle.readings import Fault, Faulty, Reading, Rounded
from parity.case import Case
from parity.comparing import compare_dump
from parity.making import drafter_case
from parity.recording import record
from parity.report import Report
from tests.artifacts.test_artifact_heads import FEWER

A = arithmetics.named("llama.cpp-cpu")


@pytest.fixture(scope="module", params=["f32", "q4_1"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    model, target = make_artifact("qwen3", "tiny", request.param, tmp_path_factory.mktemp("coarse"), 3, **FEWER)
    return drafter_case(model, target, family="qwen3", block=5, context=6, seed=4)


def judged(case: Case, out: Path, reading: Reading, mode: str) -> Report:
    with DumpWriter(out, case.describe(), {"candidate": "test"}) as writer:
        record(case, reading, writer, A)
    return compare_dump(case, open_dump(out), A, mode=mode, members=3)


def moved(steps: int, stage: str = "draft.L0.k_cells") -> Fault:
    """One cell's first value of the first head ``steps`` float16 numbers away."""

    def after(made: object, y: np.ndarray) -> np.ndarray:
        out = y.copy()
        out[4, 0, 0] += steps * F16.ulp(out[4, 0, 0])
        return out

    return Fault("moved", stage, lambda made: made, None, None, after)


@pytest.mark.parametrize("mode", ["local", "rolled"])
def test_a_healthy_run_agrees(case: Case, mode: str, tmp_path: Path) -> None:
    """Of block formats too: the NumPy candidate sums blocks exactly, as the kernels do."""
    report = judged(case, tmp_path / "d", Rounded(A), mode)
    assert report.verdict == "parity", report.divergences[:2]


def test_a_value_on_the_other_side_of_a_midpoint_is_followed_and_not_two_steps(case: Case, tmp_path: Path) -> None:
    """Local mode, where the cells' own inputs are recorded, sees both."""
    one, two = (judged(case, tmp_path / str(n), Faulty(Rounded(A), moved(n)), "rolled") for n in (1, 2))
    assert one.verdict == "parity" and "draft.L0.k_cells" in {d.stage for d in two.divergences}
    assert "draft.L0.k_cells" in {d.stage for d in judged(case, tmp_path / "l", Faulty(Rounded(A), moved(1)), "local").divergences}


def test_keys_that_were_not_rounded_are_seen_and_nothing_else(case: Case, tmp_path: Path) -> None:
    """A candidate that keeps its keys in float32 while it declares a cache of float16."""
    pattern, *others = A.use
    assert pattern == ("*.k_cells", "f16")
    report = judged(case, tmp_path / "d", Rounded(replace(A, use=tuple(others))), "local")
    assert {d.stage.rpartition(".")[2] for d in report.divergences} == {"k_cells"}
