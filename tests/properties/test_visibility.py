"""A drafter never sees a key outside its window rule: masks written out here from the specifications, one query and one key at a time.

Sources: `specs/dflash-generic.md` section 5, `specs/muse-glimmer.md` 3.4 and 5.2, `specs/laguna.md` 3.3 and 3.4 (rows A to D).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle.drafters.dialect import ENGINES, Dialect
from oracle.readings import Reading, Stage
from oracle.tape import Record
from oracle.tensor import Tensor
from tests.properties import families
from tests.properties.families import SINK, Lent

drawn = settings(max_examples=12, deadline=None)
# Every rule as the files' own dialect or by name, every engine of every family.
RULES = [f"qwen3:{rule}" for rule in Dialect.CHOICES["window_rule"]]
READERS = [*RULES, *(f"{family}/{engine}" for family in ENGINES for engine in ENGINES[family])]
commits = st.lists(st.integers(1, 9), min_size=1, max_size=4)


@dataclass
class Rows:
    """The committed rows that a drafter may still read, by the text of its rule."""

    rule: str
    w: int
    length: int = 0
    kept: list[int] = field(default_factory=list)

    def commit(self, count: int) -> None:
        new = list(range(self.length, self.length + count))
        self.length += count
        if self.rule == "W_CACHE":
            # A buffer of W - 1 rows: a long commit is cut to that, and room is made for all but one of the new rows' worth.
            new = new[-(self.w - 1) :]
            self.kept = self.kept[max(len(self.kept) - (self.w - 2), 0) :]
        self.kept = self.kept + new

    def proposed(self) -> None:
        """After a block, a ring keeps its sink and its window."""
        if self.rule == "SINK_RING":
            self.kept = [p for p in self.kept if p < SINK or p >= self.length - self.w]

    def sees(self, anchor: int, q: int, k: int, causal: bool) -> bool:
        if k >= anchor:
            return self._block(q, k, causal)
        if k not in self.kept:
            return False
        back = q - k
        return {
            "none": True,
            "SINK_RING": True,
            "W_CACHE": True,
            "W_LT": back <= self.w - 1,
            "W_LT_left": back <= self.w - 1,
            "W_LT_ctx": back <= self.w - 1,
            "W_LE": back <= self.w,
            "W_ANCHOR": anchor - k <= self.w,
            "W_RING": anchor - k <= self.w - 1,
        }[self.rule]

    def _block(self, q: int, k: int, causal: bool) -> bool:
        if k > q:
            near = {"W_LT": k - q <= self.w - 1, "W_LE": k - q <= self.w}.get(self.rule, True)
            return not causal and near
        return {"W_LT": q - k <= self.w - 1, "W_LT_left": q - k <= self.w - 1, "W_LE": q - k <= self.w}.get(self.rule, True)


def reader(name: str, window: int, causal: bool | None = None) -> Lent:
    plain, _, rule = name.partition(":")
    lent = families.drafter(plain)
    more = {"block_mask": "causal" if causal else "bidirectional"} if rule and causal is not None else {}
    if rule:
        more |= {"window_rule": rule} | ({"sink": str(SINK)} if rule == "SINK_RING" else {})
    return lent.read(window=str(window), **more)


def recorded(lent: Lent, counts: list[int]):
    """Per round: (rows committed so far, layer 0's visible set as (query, key) positions, its attention)."""
    d, context, rounds = lent.drafter, lent.drafter.new_context(), []
    rows = families.features(d, sum(counts))
    for n in counts:
        context.append(rows[context.length : context.length + n], context.length)
        found: list[Stage] = []

        def tape(stage: Stage, value: Tensor, reading: Reading, found: list[Stage] = found) -> Tensor:
            if stage.path == "draft.L0.attn":
                found.append(stage)
            return value

        lent.logits(context, tape=tape)
        visible = found[0].params["visible"]
        rounds.append({(int(visible.q_pos[i]), int(visible.k_pos[j])) for i, j in np.argwhere(visible.matrix())})
    return rounds


@pytest.mark.parametrize("name", READERS)
@drawn
@given(window=st.integers(3, 7), counts=commits, causal=st.booleans())
def test_the_visible_set_is_that_of_the_text(name: str, window: int, counts: list[int], causal: bool):
    lent = reader(name, window, causal)
    d = lent.drafter.dialect
    by_text = Rows(d.window_rule, window)
    for n, seen in zip(counts, recorded(lent, counts), strict=True):
        by_text.commit(n)
        anchor = by_text.length
        queries = range(anchor, anchor + lent.drafter.geometry.block_size)
        want = {(q, k) for q in queries for k in range(queries.stop) if by_text.sees(anchor, q, k, d.causal[0])}
        assert seen == want
        by_text.proposed()


@pytest.mark.parametrize("name", READERS)
@drawn
@given(window=st.integers(3, 6), counts=commits, data=st.data())
def test_a_row_of_the_context_that_is_not_seen_bears_on_nothing_and_one_that_is_does(name: str, window: int, counts: list[int], data):
    """One row's features changed: layer 0's attention changes in the block rows that see it, and in no other."""
    lent = reader(name, window)
    rows = families.features(lent.drafter, sum(counts))
    changed = data.draw(st.integers(0, len(rows) - 1))
    by_text = Rows(lent.drafter.dialect.window_rule, window)
    for n in counts:
        by_text.commit(n)
        if by_text.length < len(rows):
            by_text.proposed()
    anchor = by_text.length
    block = range(anchor, anchor + lent.drafter.geometry.block_size)
    want = [by_text.sees(anchor, q, changed, lent.drafter.dialect.causal[0]) for q in block]
    other = rows.copy()
    other[changed] = families.features(lent.drafter, 1, 77)[0]
    one, two = (_attention(lent, r, counts) for r in (rows, other))
    assert (np.abs(one - two).reshape(len(one), -1).max(1) > 1e-12).tolist() == want


def _attention(lent: Lent, rows, counts: list[int]):
    """Layer 0's attention of the block after the last commit; a block was proposed after each of them."""
    context, tape = lent.drafter.new_context(), Record()
    for n in counts:
        context.append(rows[context.length : context.length + n], context.length)
        lent.logits(context, tape=tape)
    return tape["draft.L0.attn"].data


@pytest.mark.parametrize("name", [r for r in READERS if r != "qwen3:none"])
def test_a_window_that_is_off_by_one_is_not_that_of_the_text(name: str):
    """The check itself: within three commits every rule tells its window from its neighbours."""
    counts, right = [9, 8, 2], recorded(reader(name, 4), [9, 8, 2])
    assert all(recorded(reader(name, w), counts) != right for w in (3, 5))


@pytest.mark.parametrize("name", [r for r in READERS if r != "qwen3:none"])
def test_where_every_layer_slides_a_row_no_layer_sees_bears_on_no_logit(name: str):
    """Keys and values of the context come from its features alone: nothing reaches the block by a detour over another row."""
    lent = reader(name, 3)
    geometry = lent.drafter.geometry
    lent = replace(lent, drafter=replace(lent.drafter, geometry=replace(geometry, sliding=(True,) * geometry.layers)))
    counts = [9, 8, 2]
    rows = families.features(lent.drafter, sum(counts))
    by_text = Rows(lent.drafter.dialect.window_rule, 3)
    for n in counts:
        by_text.commit(n)
        if by_text.length < len(rows):
            by_text.proposed()
    block = range(by_text.length, by_text.length + lent.drafter.geometry.block_size)
    unseen = [p for p in range(len(rows)) if not any(by_text.sees(block.start, q, p, True) for q in block)]
    other = rows.copy()
    other[unseen] = families.features(lent.drafter, len(unseen), 78)
    assert unseen and np.array_equal(_final(lent, rows, counts), _final(lent, other, counts))


def _final(lent: Lent, rows, counts: list[int]):
    context = lent.drafter.new_context()
    for n in counts:
        context.append(rows[context.length : context.length + n], context.length)
        out = lent.logits(context)
    return out
