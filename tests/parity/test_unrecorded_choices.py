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

from dumps import Dump, DumpWriter, open_dump
from oracle import arithmetic as arithmetics
from oracle import policies
from oracle.floats import BF16, F16
from oracle.kit import EXACT
from oracle.ops import OPS
from oracle.ops.open_choices import REACH, UNKNOWN, undecided
from oracle.readings import Fault, Faulty, Noise, Reading, Rounded, Stage, consumed
from oracle.targets.qwen38_flash_next import selection
from oracle.tensor import Tensor
from oracle.weights import Weight
from parity.calibrating import DRAWS
from parity.case import Case
from parity.comparing import compare_dump
from parity.judge import Judge
from parity.memberships import memberships
from parity.memory import MemoryDump
from parity.other_choices import mirrored, other_choice
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
    own = noisy([[1.0, 0.9, 0.0]], 0.1)
    unseen = choice("select", own, k=1)
    seen = replace(unseen, args=(Tensor(own.data, own.axes),))
    picked = np.array([[1]])
    judge = Judge(F32, 100)
    assert memberships(judge, unseen, own, picked)[0].verdict == "tie"
    assert memberships(judge, seen, own, picked)[0].verdict == "flip"


def test_an_indexer_s_blocks_are_open_where_the_last_and_the_first_left_out_are_near() -> None:
    """The order among those that are taken is none of it."""
    taken_apart, cut_apart = noisy([[0.9, 0.89, 0.1, 0.0]], 1e-3), noisy([[0.9, 0.5, 0.49, 0.0]], 1e-3)
    for scores, open_ in ((taken_apart, False), (cut_apart, True)):
        y = Noise(F32).apply(choice("select_cells", scores, np.array([8]), 9, ratio=2, budget=4))
        assert y.exact is not open_ and undecided(scores.data, scores.variance(), 2, ranked=False).tolist() == [open_]
    assert undecided(taken_apart.data, taken_apart.variance(), 2).all()


def test_attention_over_cells_that_could_be_others_is_unknown_in_its_rows() -> None:
    rng = np.random.default_rng(5)
    q, k, v = (Tensor(rng.standard_normal((n, 1, 4)), ("row", "head", "dim")) for n in (2, 3, 3))
    seen = selection(Tensor(np.ones((2, 3)), ("row", "cell"), np.array([[0.0] * 3, [UNKNOWN] * 3])))
    y = Noise(F32).apply(Stage("target.attn", OPS["attention"], (q, k, v), {"visible": seen, "scale": 0.5}))
    assert (y.variance()[1] == UNKNOWN).all() and (y.variance()[0] < 1e-10).all()


def test_a_value_beside_a_rounded_one_is_judged_by_its_own_noise() -> None:
    """Of a row joined of a rounded state and a hidden row, each part has its own kind of error."""
    A = arithmetics.named("f32,use=bf16")
    state, hidden = (noisy([[x, x]], 1e-6) for x in (1 + 2.0**-8, 1.3))
    stage = consumed(A, Stage("draft.markov_in", OPS["join"], (state, hidden), {}))
    y, judge = Noise(A).apply(stage), Judge(A, 100)
    other_side, beside, rounded = y.data.copy(), y.data.copy(), y.data.copy()
    other_side[0, 0] = 2 * state.data[0, 0] - y.data[0, 0]
    beside[0, 2] += 3e-6
    rounded[0, 2] = BF16.round(np.array(1.3))
    assert [bool((judge.judge(stage, y, c).ratio > 1).any()) for c in (other_side, beside, rounded)] == [False, False, True]


@pytest.mark.parametrize(("policy", "step"), [("bf16", 2.0**-7), ("q8_k", 1.0), ("q8_0", 1.0)])
def test_a_run_on_the_other_side_of_a_midpoint(policy: str, step: float) -> None:
    """Values near a midpoint go as far beyond it; the others, and any where the run hardly deviates, stay."""
    x = np.full((1, 256), 1.0) if policy == "bf16" else np.tile([127.0, 3.0], (1, 128))
    x[0, 5] += 0.501 * step
    made = mirrored(policy, Tensor(x, ("row", "dim")), x + 0.01 * step, 1.0).data
    assert np.flatnonzero(made != x).tolist() == [5] and policies.apply(policy, made)[0, 5] != policies.apply(policy, x)[0, 5]
    np.testing.assert_allclose(made[0, 5], x[0, 5] - 0.002 * step)
    np.testing.assert_array_equal(mirrored(policy, Tensor(x, ("row", "dim")), x, 1.0).data, x)


def test_a_block_s_scale_on_the_other_side_of_a_midpoint() -> None:
    """The largest value moves, so that float16 holds the other scale."""
    x = np.tile(np.arange(32.0), (1, 2))
    x[0, 31] = 127 * (1 + 2.0**-11 * 1.002)
    made = mirrored("q8_0", Tensor(x, ("row", "dim")), x + 0.01, 1.0).data
    scales = [F16.round(np.array(values[0, 31] / 127)) for values in (x, made)]
    assert scales[0] == 1 + 2.0**-10 and scales[1] == 1.0


@pytest.mark.parametrize("kind", ["directory", "memory"])
def test_a_dump_without_some_names(kind: str, tmp_path: Path) -> None:
    def fill(dump: Any) -> None:
        for stage in ("draft.L0.q_rope", "draft.L1.q_rope", "draft.L0.q_raw"):
            dump.put(0, stage, np.ones((1, 2), np.float32))

    if kind == "memory":
        whole: Dump = MemoryDump({}, {})
        fill(whole)
    else:
        with DumpWriter(tmp_path / "d", {}, {}) as writer:
            fill(writer)
        whole = open_dump(tmp_path / "d")
    part = whole.without({"q_rope"})
    assert part.stages(0) == ("draft.L0.q_raw",) and part.get(0, "draft.L0.q_rope") is None and part.complete
    assert len(whole.stages(0)) == 3
