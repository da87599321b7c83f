"""The forwards as functions of their context: portions, rows that come later, rows forgotten, windows, the ring."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle.drafters.dialect import Dialect, DialectError
from oracle.drafters.forward import ContextError
from oracle.models import Drafter, DrafterContext
from oracle.recipes import WINDOW_RULES, Visible
from oracle.tape import Record
from tests.oracle import models
from tests.oracle.models import BLOCK, EMBEDDING, HEAD, IDS, LAYERS, MASK, SWITCHES

drawn = settings(max_examples=15, deadline=None)
EXACTLY = 1e-12


def committed(drafter: Drafter, features: np.ndarray, portions: list[int] | None = None) -> DrafterContext:
    context, start = drafter.new_context(), 0
    for n in portions or [len(features)]:
        context.append(features[start : start + n], start)
        start += n
    return context


def cells(context: DrafterContext) -> list[np.ndarray]:
    return [part.data for layer in context.cells.layers for part in layer]


def recorded(drafter: Drafter, context: DrafterContext, ids: np.ndarray = IDS) -> Record:
    tape = Record()
    drafter.propose(context, ids, EMBEDDING, HEAD, tape=tape)
    return tape


def hidden(drafter: Drafter, context: DrafterContext, ids: np.ndarray = IDS) -> np.ndarray:
    return drafter.propose(context, ids, EMBEDDING, HEAD).hidden.data


@drawn
@given(portions=st.lists(st.integers(1, 5), min_size=1, max_size=5), biased=st.booleans())
def test_rows_may_be_committed_in_any_portions(portions, biased):
    """A committed row is a function of its own features and position alone (section 2.2)."""
    d = models.drafter(biased=biased)
    features = models.features(sum(portions))
    whole, parts = committed(d, features), committed(d, features, portions)
    assert parts.length == whole.length == len(features)
    assert parts.cells.positions.tolist() == whole.cells.positions.tolist() == list(range(len(features)))
    assert all(np.abs(a - b).max() <= EXACTLY for a, b in zip(cells(parts), cells(whole), strict=True))
    assert np.abs(hidden(d, parts) - hidden(d, whole)).max() <= EXACTLY


@drawn
@given(before=st.integers(0, 6), wrong=st.integers(1, 5), right=st.integers(1, 5), explicit=st.booleans())
def test_rows_that_were_forgotten_leave_no_trace(before, wrong, right, explicit):
    """Truncated, or overwritten by an append that starts lower: as though they had never been there."""
    d, features = models.drafter(), models.features(12)
    context = committed(d, features[:before]) if before else d.new_context()
    context.append(models.features(wrong, seed=9), before)
    hidden(d, context)
    if explicit:
        context.truncate(before)
        assert context.length == before
    context.append(features[before : before + right], before)
    clean = committed(d, features[: before + right])
    assert all(np.abs(a - b).max() <= EXACTLY for a, b in zip(cells(context), cells(clean), strict=True))
    assert np.abs(hidden(d, context) - hidden(d, clean)).max() <= EXACTLY


def test_a_proposal_leaves_the_context_as_it_was():
    d = models.drafter()
    context = committed(d, models.features(6))
    before = [c.copy() for c in cells(context)]
    first, second = hidden(d, context), hidden(d, context)
    assert first.tolist() == second.tolist()
    assert all(a.tolist() == b.tolist() for a, b in zip(cells(context), before, strict=True))
    assert context.length == 6


@drawn
@given(rows=st.integers(1, BLOCK - 1), rule=st.sampled_from(["none", "W_LT", "W_LE", "W_ANCHOR"]))
def test_a_causal_row_does_not_know_the_rows_after_it(rows, rule):
    d = models.drafter(causal=(True,) * LAYERS, window_rule=rule, window=4)
    context = committed(d, models.features(7))
    changed = np.r_[IDS[:rows], np.arange(10, 10 + BLOCK - rows)]
    whole = hidden(d, context)
    assert np.abs(hidden(d, context, changed)[:rows] - whole[:rows]).max() <= EXACTLY
    assert np.abs(hidden(d, context, IDS[:rows]) - whole[:rows]).max() <= EXACTLY
    assert np.abs(hidden(d, context, changed)[rows:] - whole[rows:]).max() > 1e-3


@drawn
@given(rows=st.integers(1, BLOCK - 1))
def test_a_bidirectional_row_does(rows):
    d = models.drafter()
    context = committed(d, models.features(7))
    assert np.abs(hidden(d, context, IDS[:rows]) - hidden(d, context)[:rows]).max() > 1e-3


def test_a_block_may_start_beyond_its_context_but_not_inside():
    d = models.drafter()
    context = committed(d, models.features(4))
    apart = d.propose(context, IDS, EMBEDDING, HEAD, position=9).hidden.data
    assert np.abs(apart - hidden(d, context)).max() > 1e-3
    with pytest.raises(ContextError, match="starts at 3, inside the 4 committed rows"):
        d.propose(context, IDS, EMBEDDING, HEAD, position=3)


NOWHERE = [{"window": "0"}, {"window": "-1"}, {"sink": "-1"}, {"sink": "0", "window_rule": "SINK_RING", "window": "4"}]


@pytest.mark.parametrize("wrong", NOWHERE)
def test_a_context_of_no_rows_is_refused(wrong):
    """`specs/muse-glimmer.md` 4.3 (7): neither sink nor window of a cache is zero."""
    with pytest.raises(DialectError, match="expected at least 1 row"):
        models.drafter().dialect.override(wrong)


@pytest.mark.parametrize("rows", [0, BLOCK + 1])
def test_a_block_that_the_drafter_has_not_is_refused(rows):
    """`specs/laguna.md` 4: the block is checked again when drafting."""
    d = models.drafter()
    context = committed(d, models.features(4))
    with pytest.raises(ContextError, match=f"a block of {rows} rows: this drafter takes 1 to {BLOCK}"):
        d.propose(context, [1] * rows, EMBEDDING, HEAD)


def test_a_context_that_cannot_be_is_refused():
    d, context = models.drafter(), models.drafter().new_context()
    with pytest.raises(ContextError, match="would leave a gap: the context holds 0 rows"):
        context.append(models.features(2), 1)
    with pytest.raises(ContextError, match="no feature rows"):
        context.append(models.features(2)[:0], 0)
    with pytest.raises(ContextError, match=r"expected \[rows, 48\]"):
        context.append(models.features(2)[:, :-1], 0)
    context.append(models.features(2), 0)
    for length in (-1, 3):
        with pytest.raises(ContextError, match=f"cannot truncate a context of 2 rows to {length}"):
            context.truncate(length)
    with pytest.raises(ValueError, match="token id 40 is outside"):
        d.propose(context, [40], EMBEDDING, HEAD)


def test_an_empty_context_is_a_context():
    d = models.drafter()
    empty = d.new_context()
    alone = hidden(d, empty)
    empty.append(models.features(3), 0)
    empty.truncate(0)
    assert hidden(d, empty).tolist() == alone.tolist()


def kept(length: int, sink: int, window: int) -> list[int]:
    return [p for p in range(length) if p < sink or p >= length - window]


@settings(max_examples=25, deadline=None)
@given(sink=st.integers(1, 3), window=st.integers(1, 5), commits=st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_a_ring_keeps_the_first_and_the_last_rows_of_the_previous_state(sink, window, commits):
    """SINK_RING (section 5): retained = first S and last W of the previous state, plus this commit; eviction after the block."""
    d = models.drafter(window_rule="SINK_RING", sink=sink, window=window)
    plain = models.drafter()
    features, context, retained = models.features(sum(commits)), d.new_context(), []
    for n in commits:
        start = context.length
        context.append(features[start : start + n], start)
        retained = retained + list(range(start, start + n))
        assert context.cells.positions.tolist() == retained
        reference = committed(plain, features[: start + n])
        reference.cells.keep(np.isin(reference.cells.positions, retained))
        assert np.abs(hidden(d, context) - hidden(plain, reference)).max() <= EXACTLY
        retained = [p for p in retained if p in kept(start + n, sink, window)]
        assert context.cells.positions.tolist() == retained
        assert context.length == start + n


def test_a_ring_that_evicted_cannot_go_back():
    d = models.drafter(window_rule="SINK_RING", sink=1, window=2)
    context = committed(d, models.features(6))
    hidden(d, context)
    with pytest.raises(ContextError, match="a ring that has evicted rows cannot be truncated from 6 to 5"):
        context.truncate(5)


@drawn
@given(chunks=st.lists(st.integers(1, 5), min_size=1, max_size=5), biased=st.booleans(), head_norms=st.booleans())
def test_a_target_window_in_chunks_is_the_window_in_one(chunks, biased, head_norms):
    t = models.target(biased=biased, head_norms=head_norms)
    ids = np.random.default_rng(1).integers(0, MASK, sum(chunks))
    whole, state, parts, start = t.window(ids, taps=(0, 2)), None, [], 0
    for n in chunks:
        parts.append(t.window(ids[start : start + n], state, taps=(0, 2)))
        state, start = parts[-1].state, start + n
    assert np.abs(np.concatenate([p.logits for p in parts]) - whole.logits).max() <= EXACTLY
    assert np.abs(np.concatenate([p.features for p in parts]) - whole.features).max() <= EXACTLY
    assert np.concatenate([p.pick for p in parts]).tolist() == whole.pick.tolist()


@drawn
@given(rows=st.integers(1, 6), keep=st.integers(0, 6))
def test_a_target_state_is_never_changed_and_keeps_what_it_is_asked_to(rows, keep):
    t, keep = models.target(), min(keep, rows)
    ids = np.arange(rows + 2)
    first = t.window(ids[:rows])
    t.window([30, 31], first.state)
    again = t.window(ids[keep:], first.state.keep(keep))
    assert first.state.length == rows
    assert np.abs(again.logits - t.window(ids).logits[keep:]).max() <= EXACTLY
    with pytest.raises(ValueError, match=f"a state of {rows} rows cannot keep {rows + 1}"):
        first.state.keep(rows + 1)


def stages_of(**switches: object) -> Record:
    d = models.drafter(**{"window_rule": "W_LT", "window": 4} | switches)
    return recorded(d, committed(d, models.features(12)))


@pytest.mark.parametrize("name", SWITCHES)
def test_every_switch_of_the_dialect_is_felt(name):
    """A fixture that a switch does not change could not tell it wrong."""
    before, after = stages_of(), stages_of(**SWITCHES[name])
    assert any(p not in before or not np.array_equal(before[p].data, after[p].data) for p in after)
    assert not np.array_equal(before["draft.logits"].data, after["draft.logits"].data)


def test_every_field_of_the_dialect_is_among_the_switches():
    """``anchor_layout`` says how picks are read, not what is computed; rules, sink and heads have tests of their own."""
    elsewhere = {"family", "anchor_layout", "window_rule", "sink", "sinks", "CHOICES", "selector", "markov", "confidence"}
    assert {f.name for f in fields(Dialect)} - elsewhere == {key for s in SWITCHES.values() for key in s}


@pytest.mark.parametrize("causal", [True, False])
def test_window_rules_that_differ_as_sets_differ_in_the_block(causal):
    """Twelve rows of context, a window of 4 and a block of 5: only rules that allow the same cells agree."""
    rules = [r for r in WINDOW_RULES if r != "SINK_RING"]
    found = {r: stages_of(window_rule=r, causal=(causal,) * LAYERS)["draft.logits"].data for r in rules}
    sets = {r: Visible(r, causal, 4, np.arange(12, 12 + BLOCK), np.arange(12 + BLOCK), 12).matrix() for r in rules}
    for a, b in combinations(rules, 2):
        assert np.array_equal(found[a], found[b]) == np.array_equal(sets[a], sets[b])
    assert len({s.tobytes() for s in sets.values()}) >= 5


def test_a_window_bears_on_sliding_layers_only():
    d = models.drafter(window_rule="W_LT", window=3)
    none = replace(d, geometry=replace(d.geometry, sliding=(False,) * LAYERS))
    full = models.drafter()
    features = models.features(9)
    assert hidden(none, committed(none, features)).tolist() == hidden(full, committed(full, features)).tolist()
    assert np.abs(hidden(d, committed(d, features)) - hidden(full, committed(full, features))).max() > 1e-3


def test_a_tape_that_is_still_empty_records():
    d, tape = models.drafter(), Record()
    context = d.new_context(tape=tape)
    context.append(models.features(2), 0)
    assert list(tape)[:3] == ["draft.taps", "draft.fc", "draft.ctx"]
    assert "draft.pick" in recorded(d, context)
    seen = Record()
    models.target().window([1, 2], tape=seen)
    assert list(seen)[-1] == "target.pick"
