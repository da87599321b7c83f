"""What holds for a target of any family: chunks of a prefill, one token at a time, rows taken back, fused weights, rope."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle.models import Target
from oracle.targets.qwen38_weights import Qwen38Layer
from tests.properties import families
from tests.properties.families import EXACTLY, TARGETS
from tests.properties.fused import LAYOUTS, permuted

each = pytest.mark.parametrize("name", TARGETS)
drawn = settings(max_examples=4, deadline=None)
MISS = 1e-3


def taps(made: Target) -> tuple[int, ...]:
    return tuple(range(made.geometry.layers))


def fed(made: Target, ids: Any, sizes: list[int]) -> tuple[Any, Any, Any]:
    """(logits, features, state) of ids in windows of ``sizes`` rows."""
    state, logits, features, start = None, [], [], 0
    for n in sizes:
        out = made.window(ids[start : start + n], state, taps(made))
        state, start = out.state, start + n
        logits.append(out.logits)
        features.append(out.features)
    return np.concatenate(logits), np.concatenate(features), state


@each
@drawn
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_a_prefill_in_chunks_is_one_window(name: str, sizes: list[int], seed: int):
    """Logits and taps of every row, and what follows."""
    made = families.target(name)
    ids = families.tokens(sum(sizes) + 2, seed)
    whole = made.window(ids[:-2], taps=taps(made))
    logits, features, state = fed(made, ids, sizes)
    assert np.abs(logits - whole.logits).max() <= EXACTLY and np.abs(features - whole.features).max() <= EXACTLY
    assert np.abs(made.window(ids[-2:], state).logits - made.window(ids[-2:], whole.state).logits).max() <= EXACTLY


@each
def test_rows_one_by_one_are_the_rows_of_a_window_past_every_window_and_budget(name: str):
    made = families.target(name)
    ids = families.tokens(4 * families.WINDOW + 3)
    whole = made.window(ids, taps=taps(made))
    logits, features, _ = fed(made, ids, [1] * len(ids))
    assert np.abs(logits - whole.logits).max() <= EXACTLY and np.abs(features - whole.features).max() <= EXACTLY


@each
@drawn
@given(before=st.integers(1, 12), verified=st.integers(2, 6), kept=st.integers(1, 5))
def test_a_verified_window_taken_back_to_what_was_accepted(name: str, before: int, verified: int, kept: int):
    made, kept = families.target(name), min(kept, verified)
    ids = families.tokens(before + verified + 3)
    state = made.window(ids[:before]).state
    after = made.window(ids[before : before + verified], state).state.keep(before + kept)
    wrong = np.concatenate([ids[: before + kept], families.tokens(3, 7)])
    assert np.abs(made.window(wrong[-3:], after).logits - made.window(wrong).logits[-3:]).max() <= EXACTLY


@each
def test_a_row_knows_no_later_token(name: str):
    made = families.target(name)
    ids = families.tokens(20)
    other = np.concatenate([ids[:13], (ids[13:] + 1) % (families.VOCAB - 2)])
    difference = np.abs(made.window(ids).logits - made.window(other).logits).max(1)
    assert difference[:13].max() <= EXACTLY and difference[13:].min() > MISS


def changed(layer: Any, layout: str) -> Any:
    """A layer whose q, k, v were fused and taken apart otherwise."""
    if isinstance(layer, Qwen38Layer):
        return replace(layer, mixer=changed(layer.mixer, layout))
    q, k, v = permuted(layout, layer.q, layer.k, layer.v)
    return replace(layer, q=q, k=k, v=v)


@pytest.mark.parametrize("layout", LAYOUTS)
@each
def test_a_permuted_fused_matrix_changes_the_logits(name: str, layout: str):
    made = families.target(name)
    ids = families.tokens(12)
    wrong = replace(made, weights=families.parts(made.weights, lambda layer: changed(layer, layout)))
    assert np.abs(wrong.window(ids).logits - made.window(ids).logits).max() > MISS


@each
def test_logits_depend_on_every_rope(name: str):
    made = families.target(name)
    ids = families.tokens(12)
    ropes = [n for n in families.names_of(made.geometry) if n.endswith("rope")]
    assert "rope" in ropes
    for which in ropes:
        rope = getattr(made.geometry, which)
        paired = "neox" if rope.style == "interleaved" else "interleaved"
        for other in (replace(rope, theta=3 * rope.theta, factors=None), replace(rope, style=paired)):
            wrong = replace(made, geometry=replace(made.geometry, **{which: other}))
            assert np.abs(wrong.window(ids).logits - made.window(ids).logits).max() > MISS, (which, other)
