"""Choices that a candidate kept to itself: where they could be others nothing behind them is judged, elsewhere everything is."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumps import DumpWriter, open_dump
from oracle import arithmetic as arithmetics
from oracle.kit import EXACT
from oracle.ops import OPS
from oracle.ops.open_choices import REACH, UNKNOWN, undecided
from oracle.readings import Fault, Faulty, Noise, Reading, Rounded, Stage
from oracle.tensor import Tensor
from oracle.weights import Weight
from parity.calibrating import DRAWS
from parity.case import Case
from parity.comparing import compare_dump
from parity.other_choices import other_choice
from parity.recording import record
from parity.report import Report

F32 = arithmetics.named("f32")

#: Dumps of some stages that were once called diverging: the draw, its seed, the arithmetic, what was not recorded.
ONCE_ALARMS = [
    # The expert, or the order of the experts, that bf16 scores leave open.
    ("laguna target", 2, "bf16", "expert_gate h_attn router_logits router_scores selected xn_mlp"),
    ("laguna target", 7, "bf16", "expert_gate expert_weights h_attn h_mlp router_scores selected"),
    ("qwen38-flash-next target", 8, "bf16", "expert_down expert_up expert_weights router_logits router_scores selected"),
    # The blocks of cells: scores that were not recorded are not the candidate's own.
    ("qwen38-flash-next target", 5, "f16", "h_attn index_cells index_k_norm index_q index_scores"),
    # The token before, in a walk row by row.
    ("dspark drafter", 6, "bf16", "attn markov_bias markov_in mlp_gate pick token"),
    ("dflash 2 drafter", 0, "bf16", "candidates embed mlp_gate o pick q_norm v"),
    # Values beside others that their consumer had rounded before.
    ("dspark drafter", 2, "f32,use=bf16,probabilities=bf16", "head markov_in markov_joint markov_out markov_state"),
    ("dspark drafter", 5, "f32,use=bf16,probabilities=bf16", "embed final_norm markov_in markov_joint markov_state"),
    # What rows have in common from cells or rows that none of them recorded.
    (
        "dspark drafter",
        7,
        "bf16",
        "ctx embed final_norm k_cells k_norm k_raw k_rope "
        "logits markov_bias markov_embed mlp_act mlp_down mlp_up o pick q_norm taps token v v_cells xn",
    ),
    (
        "dflash 2 drafter",
        2,
        "f32",
        "attn attn_conv_in attn_kernel fc final_norm h_attn k_cells k_norm k_raw "
        "logits mlp_down mlp_gate mlp_kernel mlp_up q_norm q_rope v v_cells xn",
    ),
    # An unseen query errs along a few directions.
    (
        "muse-glimmer drafter",
        25,
        "bf16",
        "attn ctx embed fc final_norm h_attn k_norm k_raw mlp_act mlp_gate mlp_up o q_norm q_raw q_rope taps v_cells xn",
    ),
    (
        "muse-glimmer drafter",
        50,
        "f16",
        "embed final_norm h_mlp k_cells k_norm k_raw logits mlp_act mlp_down mlp_gate o q_norm q_raw q_rope taps v_cells xn xn_mlp",
    ),
]


def run(case: Case, out: Path, reading: Reading, spec: str, hidden: Collection[str], mode: str = "both") -> Report:
    """A candidate that does not record the stages of these names."""
    declared = arithmetics.named(spec)
    with DumpWriter(out, case.describe(), {"candidate": "test"}) as writer:
        record(case, reading, writer, declared)
    return compare_dump(case, open_dump(out).without(hidden), declared, mode=mode, members=4)


@pytest.mark.parametrize(("draw", "seed", "spec", "hidden"), ONCE_ALARMS)
def test_what_was_a_false_alarm_is_none(draw: str, seed: int, spec: str, hidden: str, tmp_path: Path) -> None:
    report = run(DRAWS[draw](seed, tmp_path), tmp_path / "d", Rounded(arithmetics.named(spec)), spec, hidden.split())
    assert report.verdict == "parity", report.divergences[:2]


@pytest.fixture(scope="module")
def laguna(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return DRAWS["laguna target"](2, tmp_path_factory.mktemp("laguna"))


ROUTING = {"router_logits", "router_scores", "selected", "expert_weights", "pick"}


def test_a_report_says_what_it_could_not_judge(laguna: Case, tmp_path: Path) -> None:
    report = run(laguna, tmp_path / "d", Rounded(arithmetics.named("bf16")), "bf16", ROUTING, "local")
    note = next(n for n in report.notes if n.startswith("not judged"))
    assert "target.L1.expert_" in note and "target.L1.selected, step 0, row" in note
    assert report.verdict == "parity"


def test_scores_that_were_recorded_leave_nothing_open(laguna: Case, tmp_path: Path) -> None:
    """The lab makes the candidate's choice from them, however near they are."""
    report = run(laguna, tmp_path / "d", Rounded(arithmetics.named("bf16")), "bf16", {"selected", "pick"}, "local")
    assert report.verdict == "parity" and not [n for n in report.notes if n.startswith("not judged")]


@pytest.mark.parametrize("mode", ["local", "rolled"])
def test_behind_a_choice_that_is_clear_a_mistake_is_seen(laguna: Case, mode: str, tmp_path: Path) -> None:
    """In float32 nothing here is near: an expert read wrongly in one row is found in that row."""

    def after(made: object, y: np.ndarray) -> np.ndarray:
        out = y.copy()
        out[1] *= 1.01
        return out

    fault = Fault("scaled", "target.L1.expert_up", lambda made: made, after=after)
    report = run(laguna, tmp_path / "d", Faulty(Rounded(F32), fault), "f32", ROUTING, mode)
    first = report.divergences[0]
    assert (first.stage, first.extent.rows) == ("target.L1.expert_up", [1])
    assert not [n for n in report.notes if n.startswith("not judged")]


def choice(name: str, scores: Tensor, *more: Any, **params: Any) -> Stage:
    return Stage(f"draft.{name}", OPS[name], (scores, *more), params)


def noisy(keys: Any, sigma: float) -> Tensor:
    data = np.asarray(keys, np.float64)
    return Tensor(data, ("row", "vocab"), np.full(data.shape, sigma**2))


@given(
    keys=st.lists(st.integers(-40, 40), min_size=3, max_size=9, unique=True),
    k=st.integers(1, 3),
    sigma=st.floats(1e-3, 2),
    data=st.data(),
)
def test_a_choice_that_noise_can_change_is_undecided(keys: list[int], k: int, sigma: float, data: st.DataObject) -> None:
    """Whatever errors of up to four standard deviations do to the scores: another result means undecided."""
    k = min(k, len(keys) - 1)
    errors = np.array(data.draw(st.lists(st.floats(-4, 4), min_size=len(keys), max_size=len(keys)))) * sigma
    scores = noisy([keys], sigma)
    made = OPS["select"].formula(EXACT, scores.data, k=k)
    moved = OPS["select"].formula(EXACT, scores.data + errors, k=k)
    if not np.array_equal(made, moved):
        assert undecided(scores.data, scores.variance(), k).all()


@pytest.mark.parametrize(("gap", "unknown"), [(0.9, True), (1.1, False)])
def test_the_reach_of_an_open_choice(gap: float, unknown: bool) -> None:
    sigma = 1 / (2 * REACH)
    y = Noise(F32).apply(choice("argmax", noisy([[0.0, gap, 0.0 if gap > 1 else 2 * gap]], sigma)))
    assert y.exact is not unknown and (not unknown or float(y.variance()[0]) == UNKNOWN)


def test_what_is_looked_up_by_an_open_choice_is_unknown_in_its_rows() -> None:
    table = Weight.of(np.eye(4, 3), ("vocab", "in"))
    ids = Tensor(np.array([1.0, 2.0]), ("row",), np.array([0.0, UNKNOWN]))
    looked_up = Noise(F32).apply(Stage("draft.markov_embed", OPS["gather"], (table, ids), {}))
    assert looked_up.variance().tolist() == [[0.0] * 3, [UNKNOWN] * 3]


@pytest.mark.parametrize(
    ("name", "scores", "more", "params", "mine", "other"),
    [
        ("argmax", [[1.0, 3.0, 2.9], [5.0, 1.0, 0.0]], (), {}, [1, 0], [2, 0]),
        ("choose", [[1.0, 3.0, 2.9]], (Tensor(np.array([[70.0, 80.0, 90.0]]), ("row", "candidate")),), {}, [80], [90]),
        ("select", [[4.0, 3.9, 1.0, 0.95]], (), {"k": 3}, [[0, 1, 2]], [[1, 0, 3]]),
        (
            "select_cells",
            [[0.9, 0.2, 0.85]],
            (np.array([6]), 7),
            {"ratio": 2, "budget": 2},
            [[1, 1, 0, 0, 0, 0, 1]],
            [[0, 0, 0, 0, 1, 1, 1]],
        ),
    ],
)
def test_the_next_in_line(name: str, scores: Any, more: Any, params: Any, mine: Any, other: Any) -> None:
    stage = choice(name, Tensor(np.asarray(scores), ("row", "vocab")), *more, **params)
    keys, reach = np.asarray(scores), np.full(len(scores), 0.2)
    made = other_choice(stage, keys, np.asarray(mine, np.float64), reach)
    assert made.tolist() == other
    assert other_choice(stage, keys, np.asarray(mine, np.float64), reach * 0).tolist() == mine


def test_a_selection_is_not_held_against_scores_it_was_not_made_on(tmp_path: Path) -> None:
    """Of a candidate whose own scores are unseen, another set within noise is a tie."""
    from parity.judge import Judge
    from parity.memberships import memberships

    own = noisy([[1.0, 0.9, 0.0]], 0.1)
    unseen = choice("select", own, k=1)
    seen = replace(unseen, args=(Tensor(own.data, own.axes),))
    picked = np.array([[1]])
    judge = Judge(F32, 100)
    assert memberships(judge, unseen, own, picked)[0].verdict == "tie"
    assert memberships(judge, seen, own, picked)[0].verdict == "flip"
