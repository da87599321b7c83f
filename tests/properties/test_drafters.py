"""What holds for a drafter of any family under any engine: portions of a context, rows of a block, fused weights, rope."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle.drafters.weights import LayerWeights
from oracle.weights import Weight
from tests.properties import families
from tests.properties.families import DRAFTERS, EXACTLY, Lent
from tests.properties.fused import LAYOUTS, permuted

each = pytest.mark.parametrize("name", DRAFTERS)
drawn = settings(max_examples=6, deadline=None)
portions = st.lists(st.integers(1, 5), min_size=1, max_size=5)
MISS = 1e-3


def cells(context):
    return [part.data for layer in context.cells.layers for part in layer]


@each
@drawn
@given(sizes=portions)
def test_appends_in_portions_are_one_append(name: str, sizes: list[int]):
    """Of keys, values and the block. What a rotating cache exposes depends on the last append: there the block may differ."""
    lent = families.drafter(name)
    rows = families.features(lent.drafter, sum(sizes))
    whole, parts = lent.context(rows), lent.context(rows, tuple(sizes))
    assert parts.cells.positions.tolist() == whole.cells.positions.tolist() == list(range(len(rows)))
    assert all(np.abs(a - b).max() <= EXACTLY for a, b in zip(cells(parts), cells(whole), strict=True))
    if np.array_equal(parts.cells.exposed, whole.cells.exposed):
        assert np.abs(lent.logits(parts) - lent.logits(whole)).max() <= EXACTLY


def test_a_rotating_cache_is_the_one_engine_whose_block_depends_on_the_portions():
    found = {}
    for name in DRAFTERS:
        lent = families.drafter(name)
        rows = families.features(lent.drafter, 14)
        one, other = (lent.logits(lent.context(rows, p)) for p in ((13, 1), (10, 4)))
        found[name] = np.abs(one - other).max()
    assert {name for name, difference in found.items() if difference > EXACTLY} == {"laguna/mlx-vlm"}


@each
@drawn
@given(before=st.integers(0, 9), wrong=st.integers(1, 4), right=st.integers(1, 4))
def test_rejected_rows_leave_no_trace(name: str, before: int, wrong: int, right: int):
    """Committed behind the true rows before a block was proposed, and overwritten: no key, no value, no logit knows of them."""
    lent = families.drafter(name)
    rows = families.features(lent.drafter, before + right)
    context = lent.context(rows[:before]) if before else lent.drafter.new_context()
    clean = lent.context(rows, tuple(n for n in (before, right) if n))
    context.append(families.features(lent.drafter, wrong, 9), before)
    context.append(rows[before:], before)
    assert all(np.abs(a - b).max() <= EXACTLY for a, b in zip(cells(context), cells(clean), strict=True))
    if np.array_equal(context.cells.exposed, clean.cells.exposed):
        assert np.abs(lent.logits(context) - lent.logits(clean)).max() <= EXACTLY


@each
@drawn
@given(count=st.integers(1, 14), rows=st.integers(1, 4))
def test_the_rows_of_a_block_are_those_of_shorter_blocks_iff_it_is_causal(name: str, count: int, rows: int):
    """Row by row: a causal row is the last row of the block that ends with it. A bidirectional one hears of every later row."""
    lent = families.drafter(name)
    context_rows = families.features(lent.drafter, count)
    whole = lent.logits(lent.context(context_rows))
    short = lent.logits(lent.context(context_rows), families.block_ids(lent.drafter, rows))
    if all(lent.drafter.dialect.causal) or rows == len(whole):
        assert np.abs(short - whole[:rows]).max() <= EXACTLY
    elif not any(lent.drafter.dialect.causal):
        assert np.abs(short - whole[:rows]).max(1).min() > MISS


@pytest.mark.parametrize("layout", LAYOUTS)
@each
def test_a_permuted_fused_matrix_changes_the_logits(name: str, layout: str):
    lent = families.drafter(name)
    rows = families.features(lent.drafter, 11)

    def change(layer: LayerWeights) -> LayerWeights:
        q, k, v = permuted(layout, layer.q, layer.k, layer.v)
        return replace(layer, q=q, k=k, v=v)

    wrong = lent.with_weights(families.parts(lent.drafter.weights, change))
    assert np.abs(wrong.logits(wrong.context(rows)) - lent.logits(lent.context(rows))).max() > MISS


@each
def test_a_fused_matrix_taken_apart_as_it_was_joined_changes_nothing(name: str):
    lent = families.drafter(name)
    for layer in lent.drafter.weights.layers:
        for mine, kept in zip(permuted("q, k, v", layer.q, layer.k, layer.v), (layer.q, layer.k, layer.v), strict=True):
            assert np.array_equal(mine.array(), kept.array()) and mine.axes == kept.axes


@each
@drawn
@given(shift=st.integers(1, 40))
def test_the_block_depends_on_rope(name: str, shift: int):
    """On its theta and pairing, and on how far the block is from its context; without rope it would not."""
    lent = families.drafter(name)
    d = lent.drafter.dialect
    context = lent.context(families.features(lent.drafter, 11))
    right = lent.logits(lent.context(families.features(lent.drafter, 11)))
    paired = "neox" if d.rope.style == "interleaved" else "interleaved"
    for rope in (replace(d.rope, theta=2 * d.rope.theta), replace(d.rope, style=paired)):
        other = lent.under(replace(d, rope=rope))
        assert np.abs(other.logits(other.context(families.features(lent.drafter, 11))) - right).max() > MISS
    ids, at = families.block_ids(lent.drafter), context.length + shift
    if d.window_rule == "none":
        away = lent.drafter.propose(context, ids, lent.embedding, lent.head, position=at).logits.data
        assert np.abs(away - right).max() > MISS
        still = flat(lent)
        block = still.context(families.features(lent.drafter, 11))
        near = still.logits(still.context(families.features(lent.drafter, 11)))
        assert np.abs(still.drafter.propose(block, ids, lent.embedding, lent.head, position=at).logits.data - near).max() <= EXACTLY


def flat(lent: Lent) -> Lent:
    """The drafter with a rope that turns nothing: infinite divisors."""
    rope = lent.drafter.dialect.rope
    return lent.under(replace(lent.drafter.dialect, rope=replace(rope, factors=(np.inf,) * (rope.dim // 2))))


@each
def test_norms_and_biases_of_the_fixture_are_far_from_what_would_hide_them(name: str):
    """A weight of one, a bias of zero: a fixture with those sees no missing norm and no missing bias."""
    for layer in families.drafter(name).drafter.weights.layers:
        given = {n: getattr(layer, n) for n in families.names_of(layer)}
        vectors = {n: w.array() for n, w in given.items() if isinstance(w, Weight) and (n.endswith(("norm", "bias")))}
        assert all(np.abs(v - (1 if n.endswith("norm") else 0)).max() > 0.05 for n, v in vectors.items())
