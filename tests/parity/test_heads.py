"""Verdicts on DFlash 2 and DSpark drafters: healthy candidates agree, a wrong convolution is found, a choice is a tie or a flip."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dumps import DumpWriter, open_dump
from oracle import arithmetic as arithmetics
from oracle.artifacts import make_artifact
from oracle.readings import Fault, Faulty, Reading, Rounded, Stage
from parity.candidates import execute, parse
from parity.case import Case
from parity.comparing import compare_dump
from parity.errors import UsageError
from parity.making import drafter_case
from parity.models import open_case_model
from parity.native_drafter import fused_config, known
from parity.recording import record
from parity.report import Report
from tests.artifacts.test_artifact_heads import DFLASH2, DSPARK, FEWER

F32 = arithmetics.named("f32-sequential")
KINDS = {
    "dflash 2": DFLASH2,
    "rnn": DSPARK | {"markov": "rnn"},
    "gated": DSPARK | {"markov": "gated", "sample_from_anchor": False},
    "confidence alone": {"confidence": "hidden"},
    "reduced": DSPARK | {"draft_vocab": 40},
}


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    def one(name: str) -> Case:
        root = tmp_path_factory.mktemp("heads")
        model, target = make_artifact("qwen3", "tiny", "f32", root, 3, "safetensors", **FEWER, **KINDS[name])
        return drafter_case(model, target, family="qwen3", block=5, context=9, accepts=(2,), seed=4)

    return {name: one(name) for name in KINDS}


@pytest.fixture(scope="module")
def rotating(tmp_path_factory: pytest.TempPathFactory) -> Case:
    made = make_artifact("laguna", "tiny", "f32", tmp_path_factory.mktemp("laguna"), seed=3, role="drafter", window=6)
    return drafter_case(made[0], made[1], family="laguna", dialect={"engine": "mlx-vlm"}, appends=(9, 4), accepts=(2,), seed=4)


def judged(case: Case, out: Path, reading: Reading, mode: str = "local") -> Report:
    with DumpWriter(out, case.describe(), {"candidate": "test"}) as writer:
        record(case, reading, writer, F32)
    return compare_dump(case, open_dump(out), F32, mode=mode, members=3)


@pytest.mark.parametrize("name", KINDS)
def test_healthy_candidates_agree_in_both_modes(name: str, cases: dict[str, Case], tmp_path: Path) -> None:
    report = judged(cases[name], tmp_path / "d", Rounded(F32), "both")
    assert report.verdict == "parity", report.divergences[:2]
    picks = [m for m in report.margins if ".row" in m.stage]
    assert len(picks) == 2 * (5 if name in ("rnn", "reduced") else 4)
    assert all(m.verdict in ("agree", "tie") for m in picks)


@pytest.mark.parametrize("name", [*KINDS, "rotating cache"])
def test_the_cpu_library_agrees_op_by_op_and_fused_bit_for_bit(name: str, cases: dict[str, Case], rotating: Case, tmp_path: Path) -> None:
    case = cases.get(name, rotating)
    for entry in ("op", "fused"):
        execute(parse("cpu", entry), case, tmp_path / entry, None, threads=1)
    one, other = (open_dump(tmp_path / entry) for entry in ("op", "fused"))
    report = compare_dump(case, other, arithmetics.named("cpu"), members=3)
    assert report.verdict == "parity" and not report.unseen, report.divergences[:2]
    assert len(list(one.records())) == len(list(other.records()))
    for stage in one.records():
        found = other.get(stage.step, stage.stage)
        assert found is not None and np.array_equal(stage.float64(), found.float64()), stage.stage


def test_a_library_of_abi_1_0_is_not_asked_for_heads(cases: dict[str, Case], rotating: Case) -> None:
    for case, key in ((cases["dflash 2"], "conv_taps, selector_rank"), (cases["rnn"], "markov, confidence"), (rotating, "W_CACHE")):
        drafter = open_case_model(case).drafter
        assert drafter is not None
        with pytest.raises(UsageError, match=f"{key}.*dlab.h 1.1"):
            known(fused_config(drafter), (1, 0))


@pytest.mark.parametrize("stage", ["attn_kernel", "attn_conv_in", "attn_conv_out", "mlp_conv_in", "mlp_conv_out"])
def test_a_wrong_convolution_is_found_where_it_is(stage: str, cases: dict[str, Case], tmp_path: Path) -> None:
    fault = Fault("scaled", f"draft.L1.{stage}", lambda made: made, None, None, lambda made, y: y * 1.001)
    report = judged(cases["dflash 2"], tmp_path / "d", Faulty(Rounded(F32), fault))
    assert {d.stage for d in report.divergences} == {f"draft.L1.{stage}"}


def elsewhere(to: Callable[[float], float]) -> Fault:
    return Fault("choice", "draft.row2.pick", lambda made: made, None, None, lambda made, y: np.array([to(float(v)) for v in y]))


@pytest.mark.parametrize("name", KINDS)
def test_a_pick_its_scores_do_not_make_is_a_flip_and_the_rows_after_it_follow_it(name: str, cases: dict[str, Case], tmp_path: Path) -> None:
    report = judged(cases[name], tmp_path / "d", Faulty(Rounded(F32), elsewhere(lambda v: (v + 1) % 40)))
    assert {d.stage for d in report.divergences} == {"draft.row2.pick"}
    flips = [m for m in report.margins if m.verdict == "flip"]
    assert [m.stage for m in flips] == ["draft.row2.pick"] * 2 and all(m.rule for m in flips)


def test_margins_of_the_selector_are_over_token_ids(cases: dict[str, Case], tmp_path: Path) -> None:
    report = judged(cases["dflash 2"], tmp_path / "d", Rounded(F32))
    dump = open_dump(tmp_path / "d")
    for m in (m for m in report.margins if ".row" in m.stage):
        step = m.step
        row = int(m.stage.split(".")[1].removeprefix("row"))
        candidates = dump.get(step, "draft.candidates").float64()[row].astype(int).tolist()
        scores = dump.get(step, f"draft.row{row}.selector_scores").float64()[0]
        order = np.argsort(-scores, kind="stable")
        assert (m.choice, m.runner_up) == (candidates[order[0]], candidates[order[1]])
        assert m.candidate == m.choice == int(dump.get(step, m.stage).float64()[0])
        assert m.gap == pytest.approx(scores[order[0]] - scores[order[1]], abs=1e-5)


def test_candidates_of_a_selector_are_judged_as_a_set(cases: dict[str, Case], tmp_path: Path) -> None:
    """The last of them exchanged for token 7, in every row that does not have it: by its own logits another comes before."""

    def exchanged(made: Stage, y: NDArray[np.float32]) -> NDArray[np.float32]:
        out = y.copy()
        out[~(y == 7).any(1), -1] = 7
        return out

    fault = Fault("choice", "draft.candidates", lambda made: made, None, None, exchanged)
    for mode in ("local", "rolled"):
        report = judged(cases["dflash 2"], tmp_path / mode, Faulty(Rounded(F32), fault), mode)
        assert {d.stage for d in report.divergences} == {"draft.candidates"}, mode
    assert "token 7 instead of" in report.divergences[0].what
    margins = judged(cases["dflash 2"], tmp_path / "m", Faulty(Rounded(F32), fault)).margins
    assert {m.rule.partition(",")[0] for m in margins if m.rule} == {"it selects token 7"}


@pytest.mark.parametrize("name", KINDS)
def test_in_rolled_mode_too_the_rows_after_a_pick_follow_it(name: str, cases: dict[str, Case], tmp_path: Path) -> None:
    """Another pick is judged where it is made; behind it the oracle goes the candidate's way."""
    report = judged(cases[name], tmp_path / "d", Faulty(Rounded(F32), elsewhere(lambda v: (v + 1) % 40)), "rolled")
    assert {d.stage for d in report.divergences + report.consequences} == {"draft.row2.pick"}


@pytest.mark.parametrize("name", KINDS)
def test_coarse_storage_and_its_many_equal_logits_are_no_false_alarm(name: str, cases: dict[str, Case], tmp_path: Path) -> None:
    A = arithmetics.named("bf16")
    with DumpWriter(tmp_path / "d", cases[name].describe(), {"candidate": "test"}) as writer:
        record(cases[name], Rounded(A), writer, A)
    report = compare_dump(cases[name], open_dump(tmp_path / "d"), A, members=3)
    assert report.verdict == "parity", report.divergences[:2]
