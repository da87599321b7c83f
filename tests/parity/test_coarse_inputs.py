"""Consumers that round their input to a coarse grid: which side of a midpoint a value falls on is a choice, and is followed as one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dumps import DumpWriter, open_dump
from oracle import arithmetic as arithmetics
from oracle.artifacts import make_artifact
from oracle.floats import F16, FORMATS
from oracle.readings import Fault, Faulty, Reading, Rounded
from parity.case import Case
from parity.comparing import compare_dump
from parity.making import drafter_case
from parity.memory import MemoryDump
from parity.models import declared_stages
from parity.recording import record
from parity.report import Report
from tests.artifacts.test_artifact_heads import FEWER

A = arithmetics.named("llama.cpp-cpu")


@pytest.fixture(scope="module", params=["f32", "q4_1"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    model, target = make_artifact("qwen3", "tiny", request.param, tmp_path_factory.mktemp("coarse"), 3, **FEWER)
    return drafter_case(model, target, family="qwen3", block=5, context=6, seed=4)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    """Seeded drafters over two appends and two rounds."""
    made = []
    for seed in range(6):
        model, target = make_artifact("qwen3", "tiny", "f32", tmp_path_factory.mktemp(f"plain-{seed}"), seed, **FEWER)
        made.append(drafter_case(model, target, family="qwen3", appends=(9, 3), accepts=(2,), seed=seed))
    return made


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


def unrecorded(case: Case, hidden: Collection[str], use: str, fault: Fault | None = None) -> Report:
    """Local mode on a candidate that keeps these stages to itself, its consumers rounding as ``use`` says."""
    arithmetic, dump = arithmetics.named(f"f32,use={use}"), MemoryDump(case.describe(), {"candidate": "test"})
    reading: Reading = Rounded(arithmetic)
    record(case, reading if fault is None else Faulty(reading, fault), dump, arithmetic)
    return compare_dump(case, dump.without(hidden), arithmetic, mode="local")


HIDDEN = {
    "keys": ("k_raw", "k_norm", "k_rope"),
    "values": ("v",),
    "the cells themselves": ("k_rope", "v", "k_cells", "v_cells"),
    "inputs of products": ("xn", "xn_mlp", "mlp_act", "attn", "ctx", "q_rope"),
}


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_what_is_rounded_unseen_may_fall_on_either_side(plain: list[Case], dtype: str, hidden: str) -> None:
    """Of some thousand values a few lie so near a midpoint that float32's own errors decide: no divergence on any seed."""
    use = f"*:{dtype}" if hidden == "inputs of products" else f"*.k_cells:{dtype}+*.v_cells:{dtype}"
    reports = [unrecorded(case, HIDDEN[hidden], use) for case in plain]
    assert [r.divergences[:2] for r in reports if r.verdict != "parity"] == []


@pytest.mark.parametrize("stage", ["k_cells", "v_cells"])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_cell_one_step_off_with_no_midpoint_near_is_seen(plain: list[Case], dtype: str, stage: str) -> None:
    hidden, path = HIDDEN["keys" if stage == "k_cells" else "values"], f"draft.L0.{stage}"

    def after(made: object, y: np.ndarray) -> np.ndarray:
        out = y.copy()
        out[3] += FORMATS[dtype].ulp(out[3])
        return out

    report = unrecorded(plain[0], hidden, f"*.k_cells:{dtype}+*.v_cells:{dtype}", Fault("step", path, lambda made: made, after=after))
    first = report.divergences[0]
    assert (first.stage, first.extent.rows) == (path, [3])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("store", ["bf16", "f16"])
def test_whatever_a_candidate_that_stores_in_16_bits_keeps_to_itself(plain: list[Case], store: str, seed: int) -> None:
    """Moved values are stored too; what an unrecorded input errs by, all the outputs of a row have in common."""
    A, rng = arithmetics.named(store), np.random.default_rng(seed)
    names = sorted({path.rpartition(".")[2] for (_, path), _, _ in declared_stages(plain[seed])} - {"taps", "embed"})
    hidden = {"taps", "embed", *(name for name in names if rng.random() < 0.4)}
    dump = MemoryDump(plain[seed].describe(), {"candidate": "test"})
    record(plain[seed], Rounded(A), dump, A)
    report = compare_dump(plain[seed], dump.without(hidden), A, mode="local")
    assert report.verdict == "parity", (sorted(hidden), report.divergences[:2])
