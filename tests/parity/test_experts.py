"""A Laguna target's verdicts: healthy candidates agree, another set of experts is a tie or a flip by its margin, in both modes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dumps import DumpWriter, open_dump
from oracle import arithmetic as arithmetics
from oracle.artifacts import make_artifact
from oracle.ops import OPS
from oracle.readings import Fault, Faulty, Reading, Rounded, Stage
from oracle.tensor import Tensor
from parity.case import Case
from parity.comparing import compare_dump
from parity.judge import Judge
from parity.making import drafter_case, target_case
from parity.memberships import memberships
from parity.models import run
from parity.recording import record
from parity.report import Report
from tests.parity.test_compare import rewrite

SIZES = {"hidden": 48, "intermediate": 64, "heads": 6, "kv_heads": 2, "head_dim": 8, "vocab": 67, "window": 7}
SELECTED = "target.L2.selected"
F32 = arithmetics.named("f32-sequential")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Case:
    root = tmp_path_factory.mktemp("laguna")
    made = make_artifact(
        "laguna", "tiny", "f32", root, 3, role="target", **SIZES, layers=4, experts=6, experts_per_token=2, moe_intermediate=24
    )
    return target_case(made[0], prefill=11, block=5, seed=4)


@pytest.fixture(scope="module")
def healthy(target: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dumped(target, tmp_path_factory.mktemp("dump") / "d", Rounded(F32))


def dumped(case: Case, out: Path, reading: Reading) -> Path:
    with DumpWriter(out, case.describe(), {"candidate": "test"}) as writer:
        record(case, reading, writer, F32)
    return out


def judged(case: Case, dump: Any, mode: str = "local") -> Report:
    return compare_dump(case, dump if not isinstance(dump, Path) else open_dump(dump), F32, mode=mode)


def selecting(edit: Callable[[np.ndarray], np.ndarray], rows: tuple[int, ...] | None = None) -> Fault:
    return Fault("selection", SELECTED, lambda stage: stage, rows, None, lambda _, values: edit(values))


@pytest.mark.parametrize("arithmetic", ["f32-sequential", "f32-blocked", "bf16", "f16"])
def test_healthy_candidates_agree_in_both_modes(target: Case, arithmetic: str, tmp_path: Path) -> None:
    A = arithmetics.named(arithmetic)
    with DumpWriter(tmp_path / "d", target.describe(), {"candidate": arithmetic}) as writer:
        record(target, Rounded(A), writer, A)
    report = compare_dump(target, open_dump(tmp_path / "d"), A, mode="both")
    assert report.verdict == "parity", report.divergences[:2]
    selections = [m for m in report.margins if m.stage.endswith("selected")]
    assert len(selections) == 3 * (11 + 5) and all(m.verdict in ("agree", "tie") for m in selections)


def test_the_margin_of_a_selection_is_rank_k_against_the_next(target: Case, healthy: Path) -> None:
    margins = {(m.step, m.row): m for m in judged(target, healthy).margins if m.stage == SELECTED}
    seen: list[tuple[Stage, Tensor]] = []

    def tape(stage: Stage, y: Tensor, reading: Reading) -> Tensor:
        if stage.path in ("target.L2.router_scores", SELECTED):
            seen.append((stage, y))
        return y

    run(target, Rounded(arithmetics.named("f32,order=f64")), tape)
    for (_, scores), (stage, _) in zip(seen[::2], seen[1::2], strict=True):
        keys = scores.data + stage.args[1].array()
        order = np.argsort(-keys, -1)
        for row, (key, ranks) in enumerate(zip(keys, order, strict=True)):
            m = margins[stage.step, row]
            assert (m.choice, m.runner_up) == (ranks[1], ranks[2])
            assert m.gap == pytest.approx(key[ranks[1]] - key[ranks[2]], abs=1e-5) and 0 < m.noise < 1e-5


def test_ranks_in_another_order_are_the_same_selection(target: Case, tmp_path: Path) -> None:
    report = judged(target, dumped(target, tmp_path / "d", Faulty(Rounded(F32), selecting(lambda s: s[:, ::-1]))), "both")
    assert report.verdict == "parity", report.divergences[:2]


def test_another_set_is_a_flip_at_its_row_and_nowhere_else(target: Case, tmp_path: Path) -> None:
    """Local mode goes on with the candidate's own choice, so nothing behind it diverges."""

    def next_best(s: np.ndarray) -> np.ndarray:
        return np.stack([s[:, 0], [next(e for e in range(6) if e not in row) for row in s]], 1)

    report = judged(target, dumped(target, tmp_path / "d", Faulty(Rounded(F32), selecting(next_best, (3,)))))
    assert report.verdict == "divergence"
    assert {(d.stage, d.row) for d in report.divergences} == {(SELECTED, 3)}
    assert "by its own scores" in report.divergences[0].what


def test_rolled_mode_sees_the_flip_by_its_gap(target: Case, tmp_path: Path) -> None:
    def last(s: np.ndarray) -> np.ndarray:
        return np.stack([s[:, 0], [next(e for e in range(5, -1, -1) if e not in row) for row in s]], 1)

    report = judged(target, dumped(target, tmp_path / "d", Faulty(Rounded(F32), selecting(last, (3,)))), "rolled")
    first = report.first_divergence
    assert first is not None and (first.stage, first.row) == (SELECTED, 3) and "instead of" in first.what


@pytest.mark.parametrize(
    ("oracle", "candidate", "picked", "verdict"),
    [
        ([0.9, 0.5, 0.5 - 1e-8, 0.1], [0.9, 0.5 - 1e-8, 0.5, 0.1], [0, 2], "tie"),
        ([0.9, 0.5, 0.4, 0.1], [0.9, 0.4, 0.5, 0.1], [0, 2], "flip"),
        ([0.9, 0.5, 0.4, 0.1], [0.9, 0.5, 0.4, 0.1], [0, 2], "flip"),
        ([0.9, 0.5, 0.4, 0.1], [0.9, 0.5, 0.4, 0.1], [1, 0], "agree"),
        ([0.9, 0.5, 0.5, 0.1], [0.9, 0.5, 0.5, 0.1], [0, 2], "tie"),
        ([0.9, 0.5, 0.5 - 1e-8, 0.1], [0.9, 0.5, 0.5 - 1e-8, 0.3], [3, 2], "flip"),
    ],
    ids=["within noise", "beyond noise", "against its own scores", "another order", "equal scores", "one of two beyond noise"],
)
def test_the_verdict_on_a_set(oracle: list[float], candidate: list[float], picked: list[int], verdict: str) -> None:
    """Scores with a deviation of 1e-8 each; what the candidate recorded decides first, up to a rounding of float32."""
    own = Tensor(np.array([oracle]), ("row", "expert"), np.full((1, 4), 1e-16))
    stage = Stage(SELECTED, OPS["select"], (Tensor(np.array([candidate]), own.axes), None), {"k": 2})
    (margin,) = memberships(Judge(F32, 1000), stage, own, np.array([picked]))
    assert margin.verdict == verdict
    assert margin.noise == pytest.approx(1e-8 * 2**0.5)


@pytest.mark.parametrize(
    ("rubbish", "words"), [([0, 0], "twice"), ([0, 6], "selects expert 6 of 6"), ([-1, 2], "expert -1"), ([np.nan, 1], "nan")]
)
@pytest.mark.parametrize("mode", ["local", "both"])
def test_a_selection_that_is_none_is_invalid_and_not_followed(
    target: Case, healthy: Path, rubbish: list[float], words: str, mode: str, tmp_path: Path
) -> None:
    def change(step: int, stage: str, array: np.ndarray) -> np.ndarray:
        if stage == SELECTED and step == 0:
            array = array.astype(np.float32)
            array[4] = rubbish
        return array

    report = judged(target, retyped(healthy, tmp_path / "x", change), mode)
    assert report.divergences[0].stage == SELECTED and words in report.divergences[0].what
    assert next(s for s in report.stages if s.stage == SELECTED and s.step == 0).verdict == "invalid"


def retyped(path: Path, out: Path, change: Callable[[int, str, np.ndarray], np.ndarray]) -> Any:
    """A dump rewritten with every selection in float32, so that anything can stand in it."""
    dump = open_dump(path)
    with DumpWriter(out, dump.case, dump.provenance) as writer:
        for step in dump.steps:
            for stage in dump.stages(step):
                r = dump.get(step, stage)
                assert r is not None
                selection = stage.endswith("selected")
                array = r.float64().astype(np.float32) if selection else np.array(r.array())
                writer.put(step, stage, change(step, stage, array), dtype="f32" if selection else r.dtype, axes=r.axes)
    return open_dump(out)


def test_a_router_that_was_not_recorded_still_has_its_margin(target: Case, healthy: Path, tmp_path: Path) -> None:
    hidden = ("router_logits", "router_scores", "xn_mlp")
    dump = rewrite(healthy, tmp_path / "x", lambda step, stage, array: None if stage.endswith(hidden) else array)
    report = judged(target, dump)
    assert report.verdict == "parity" and len([m for m in report.margins if m.stage == SELECTED]) == 16


def test_a_drafter_through_the_library_agrees(tmp_path: Path) -> None:
    native = pytest.importorskip("native")
    from parity import candidates

    made = make_artifact("laguna", "tiny", "f32", tmp_path, 5, **SIZES, layers=3, block_size=5, mask_token_id=66)
    case = drafter_case(made[0], made[1], family="laguna", appends=(7, 4), accepts=(2,), seed=1)
    try:
        native.open_library("cpu")
    except (native.NativeError, OSError) as e:
        pytest.skip(str(e))
    for entry in ("op", "fused"):
        candidates.execute(candidates.parse("cpu", entry), case, tmp_path / entry, None)
        report = compare_dump(case, open_dump(tmp_path / entry), arithmetics.named("cpu"), mode="local")
        assert report.verdict == "parity", report.divergences[:2]
