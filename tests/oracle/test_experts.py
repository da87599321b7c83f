"""The operations of a mixture of experts: their mathematics against plain loops, and the selection's order and ties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracle.arithmetic import PRESETS
from oracle.kit import EXACT
from oracle.ops import OPS
from oracle.readings import Noise
from oracle.tensor import Array, Tensor
from oracle.weights import Weight
from tests.oracle.calls import read, stage

SEEDS = st.integers(0, 2**32 - 1)
ROW_RANK = ("row", "rank")


def draw(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


@given(SEEDS, st.integers(1, 7))
def test_selection_is_by_value_then_by_lowest_index(seed: int, k: int) -> None:
    """Scores from four values, so that nearly every row has ties."""
    scores = np.random.default_rng(seed).integers(0, 4, (5, 7)) / 4
    got = OPS["select"].formula(EXACT, scores, None, k=k)
    for row, chosen in zip(scores, got, strict=True):
        assert chosen.tolist() == sorted(range(7), key=lambda e: (-row[e], e))[:k]


def test_the_bias_selects_and_does_not_weigh() -> None:
    scores, bias = np.array([[0.9, 0.5, 0.1]]), Weight.of([0.0, 0.0, 1.0], ("expert",))
    chosen = OPS["select"].formula(EXACT, scores, bias, k=2)
    assert chosen.tolist() == [[2, 0]]
    weights = OPS["expert_weights"].formula(EXACT, scores, chosen, scale=2.5)
    assert weights == pytest.approx(2.5 * np.array([[0.1, 0.9]]))
    assert OPS["expert_weights"].formula(EXACT, scores, chosen, normalise=False).tolist() == [[0.1, 0.9]]


def test_a_score_that_is_not_a_number_is_selected_last() -> None:
    assert OPS["select"].formula(EXACT, np.array([[0.1, np.nan, 0.3]]), None, k=3).tolist() == [[2, 0, 1]]


@given(SEEDS)
def test_scores_are_those_of_the_textbook(seed: int) -> None:
    z = 30 * draw(seed, 3, 6)
    assert OPS["sigmoid"].formula(EXACT, z) == pytest.approx(np.array([[1 / (1 + np.exp(-v)) for v in row] for row in z]), rel=1e-14)
    p = OPS["softmax"].formula(EXACT, z)
    assert p.sum(-1) == pytest.approx(1) and np.log(p[:, 1:] / p[:, :1]) == pytest.approx(z[:, 1:] - z[:, :1], rel=1e-9, abs=1e-9)


@given(SEEDS)
def test_every_row_goes_through_its_own_experts(seed: int) -> None:
    """Against a loop over rows and ranks, for inputs shared by a row's ranks and for inputs of their own."""
    rng = np.random.default_rng(seed)
    experts = tuple(Weight.of(rng.standard_normal((3, 4)), ("dim", "in"), "f64") for _ in range(5))
    selected = np.argsort(rng.random((6, 5)), -1)[:, :2].astype(float)
    for x in (rng.standard_normal((6, 4)), rng.standard_normal((6, 2, 4))):
        got = OPS["expert_linear"].formula(EXACT, x, selected, experts)
        for r, j in np.ndindex(6, 2):
            assert got[r, j] == pytest.approx(experts[int(selected[r, j])].array() @ (x[r] if x.ndim == 2 else x[r, j]))
    weights = rng.random((6, 2))
    want = sum(weights[:, j, None] * got[:, j] for j in range(2))
    assert OPS["expert_sum"].formula(EXACT, got, weights) == pytest.approx(want)


@pytest.mark.parametrize("wrong", [-1.0, 5.0])
def test_an_expert_that_does_not_exist_is_named(wrong: float) -> None:
    experts = tuple(Weight.of(np.ones((3, 4)), ("dim", "in")) for _ in range(5))
    with pytest.raises(ValueError, match=f"expert {wrong:.0f} selected by row 1 at rank 0: there are 5 experts"):
        OPS["expert_linear"].formula(EXACT, np.ones((2, 4)), np.array([[0.0], [wrong]]), experts)
    with pytest.raises(ValueError, match="select: 6 of 5 experts"):
        OPS["select"].formula(EXACT, np.ones((2, 5)), None, k=6)


def inherited(op: str, *args: object, **params: object) -> Array:
    """Predicted deviation of an operation's result from the errors of its inputs, its own roundings removed."""
    made = stage(op, *args, **params)
    y = made.op.formula(EXACT, *(a.data if isinstance(a, Tensor) else a for a in args), **params)
    return np.asarray(np.sqrt(np.broadcast_to(made.op.noise(PRESETS["f32"], y, *args, **params).inherited, y.shape)))


def observed(op: str, runs: int, noisy: list[Tensor], *rest: object, **params: object) -> Array:
    """Measured deviation when the inputs really carry errors of their variance."""
    rng, made = np.random.default_rng(3), []
    fixed = [a.data if isinstance(a, Tensor) else a for a in rest]
    for _ in range(runs):
        shaken = [t.data + np.sqrt(t.variance()) * rng.standard_normal(t.data.shape) for t in noisy]
        made.append(OPS[op].formula(EXACT, *shaken, *fixed, **params))
    return np.asarray(np.std(made, 0))


@pytest.mark.parametrize("op", ["sigmoid", "softmax"])
def test_noisy_logits_make_the_predicted_scores(op: str) -> None:
    """`specs/noise-rules.md` 5.8 and 5.10: 1.00 to 1.01 with noisy logits."""
    z = Tensor(draw(1, 8, 12), ("row", "expert"), np.full((8, 12), 1e-8))
    ratio = observed(op, 400, [z]) / inherited(op, z)
    assert np.sqrt(np.square(ratio).mean()) == pytest.approx(1, abs=0.05)


def test_noisy_scores_make_the_predicted_weights_and_sums() -> None:
    scores = Tensor(1 / (1 + np.exp(-draw(1, 8, 12))), ("row", "expert"), np.full((8, 12), 1e-8))
    selected = Tensor(OPS["select"].formula(EXACT, scores.data, None, k=4), ROW_RANK)
    ratio = observed("expert_weights", 400, [scores], selected, scale=2.5) / inherited("expert_weights", scores, selected, scale=2.5)
    assert np.sqrt(np.square(ratio).mean()) == pytest.approx(1, abs=0.05)
    y = Tensor(draw(2, 8, 4, 20), ("row", "rank", "dim"), np.full((8, 4, 20), 1e-8))
    weights = Tensor(np.abs(draw(3, 8, 4)), ROW_RANK, np.full((8, 4), 1e-8))
    ratio = observed("expert_sum", 400, [y, weights]) / inherited("expert_sum", y, weights)
    assert np.sqrt(np.square(ratio).mean()) == pytest.approx(1, abs=0.05)


def test_noise_of_an_expert_is_that_of_its_matrix_alone() -> None:
    experts = tuple(Weight.of(draw(e, 3, 16), ("dim", "in")) for e in range(4))
    x = Tensor(draw(9, 2, 16), ("row", "dim"), np.full((2, 16), 1e-6))
    for selected in ([[0.0, 3.0], [3.0, 1.0]], [[2.0, 1.0], [0.0, 2.0]]):
        y = Noise(PRESETS["f32"]).apply(stage("expert_linear", x, Tensor(np.array(selected), ROW_RANK), experts))
        for r, j in np.ndindex(2, 2):
            alone = Noise(PRESETS["f32"]).apply(stage("linear", x.rows(r, r + 1), experts[int(selected[r][j])]))
            assert y.data[r, j] == pytest.approx(alone.data[0]) and y.variance()[r, j] == pytest.approx(alone.variance()[0])


def test_a_choice_carries_no_error() -> None:
    y = read(Noise(PRESETS["bf16"]), stage("select", Tensor(draw(1, 3, 5), ("row", "expert")), k=2))
    assert y.axes == ROW_RANK and y.exact
