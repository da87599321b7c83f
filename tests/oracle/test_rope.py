"""rope: rotation of pairs by absolute position, both pairings, partial widths, positions per row and per head."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle.readings import Exact
from oracle.recipes import Rope
from oracle.tensor import Tensor
from tests.oracle.calls import HEADS, stage

drawn = settings(max_examples=40, deadline=None)
styles, seeds = st.sampled_from(["neox", "interleaved"]), st.integers(0, 2**32 - 1)


def rope(x: np.ndarray, pos: object, recipe: Rope) -> np.ndarray:
    return Exact().apply(stage("rope", Tensor(x, HEADS), pos, recipe)).data


@drawn
@given(
    rows=st.integers(1, 4), heads=st.integers(1, 3), pairs=st.integers(1, 4), rest=st.integers(0, 3), style=styles,
    per_head=st.booleans(), factors=st.booleans(), attention_factor=st.sampled_from([1.0, 1.4]), seed=seeds,
)  # fmt: skip
def test_rope_turns_every_pair_by_its_angle_and_copies_the_rest(rows, heads, pairs, rest, style, per_head, factors, attention_factor, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, heads, 2 * pairs + rest))
    pos = rng.integers(0, 5000, (rows, heads) if per_head else rows)
    divisors = tuple(rng.uniform(1, 8, pairs)) if factors else None
    y = rope(x, pos, Rope(1e4, 2 * pairs, style, divisors, attention_factor))
    for r in range(rows):
        for h in range(heads):
            p = int(pos[r, h]) if per_head else int(pos[r])
            for i in range(pairs):
                angle = p * (1e4 ** (-2 * i / (2 * pairs)) / (divisors[i] if divisors else 1))
                first, second = (i, i + pairs) if style == "neox" else (2 * i, 2 * i + 1)
                a, b = x[r, h, first], x[r, h, second]
                expected = (a * math.cos(angle) - b * math.sin(angle), b * math.cos(angle) + a * math.sin(angle))
                assert y[r, h, [first, second]] == pytest.approx([attention_factor * e for e in expected], abs=1e-11)
    assert y[..., 2 * pairs :].tolist() == x[..., 2 * pairs :].tolist()


@drawn
@given(pairs=st.integers(1, 8), rest=st.integers(0, 3), seed=seeds)
def test_the_two_pairings_are_one_rotation_of_permuted_entries(pairs, rest, seed):
    """`specs/dflash-generic.md` section 9: even entries then odd ones turn an interleaved head into a neox head."""
    rng = np.random.default_rng(seed)
    x, pos = rng.standard_normal((3, 2, 2 * pairs + rest)), rng.integers(0, 1000, 3)
    order = np.r_[0 : 2 * pairs : 2, 1 : 2 * pairs : 2, 2 * pairs : 2 * pairs + rest]
    permuted = rope(x[..., order], pos, Rope(1e4, 2 * pairs, "neox"))
    assert permuted.tolist() == rope(x, pos, Rope(1e4, 2 * pairs, "interleaved"))[..., order].tolist()


@drawn
@given(style=styles, shift=st.integers(-2000, 100_000), seed=seeds)
def test_scores_see_only_differences_of_positions(style, shift, seed):
    rng = np.random.default_rng(seed)
    q, k = rng.standard_normal((2, 5, 1, 8))
    pos, recipe = rng.integers(2000, 4000, 5), Rope(1e4, 8, style)

    def scores(at: np.ndarray) -> np.ndarray:
        return rope(q, at, recipe)[:, 0] @ rope(k, at, recipe)[:, 0].T

    assert np.abs(scores(pos) - scores(pos + shift)).max() < 1e-9
    assert np.abs(scores(pos) - rope(q, pos + 1, recipe)[:, 0] @ rope(k, pos, recipe)[:, 0].T).max() > 1e-3


@drawn
@given(style=styles, seed=seeds)
def test_a_rotation_keeps_the_length_and_position_zero_moves_nothing(style, seed):
    rng = np.random.default_rng(seed)
    x, recipe = rng.standard_normal((4, 2, 6)), Rope(5e5, 4, style)
    assert np.allclose(np.linalg.norm(rope(x, rng.integers(0, 10**6, 4), recipe), axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-12)
    assert rope(x, np.zeros(4, np.int64), recipe).tolist() == x.tolist()


def test_positions_per_head_that_are_equal_are_positions_per_row():
    x = np.random.default_rng(3).standard_normal((4, 3, 8))
    pos = np.array([0, 7, 7, 900])
    assert rope(x, np.repeat(pos[:, None], 3, 1), Rope(1e4, 8)).tolist() == rope(x, pos, Rope(1e4, 8)).tolist()


@pytest.mark.parametrize("changes", [{"style": "halves"}, {"dim": 3}, {"dim": 0}])
def test_a_recipe_that_cannot_be_is_refused(changes):
    with pytest.raises(ValueError, match="expected one of neox, interleaved" if "style" in changes else "expected an even number"):
        Rope(**{"theta": 1e4, "dim": 8} | changes)
