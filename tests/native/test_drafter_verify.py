"""The end of a greedy round in one call equals argmax, accept and append, bit for bit, over generations that wrap every window."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from native import Context, Drafter, Library, NativeError
from tests.native.composed_drafter import GEOMETRY, small_config, small_weights
from tests.native.test_drafter import DIALECTS, block, taps

VOCAB = GEOMETRY["vocab"]


def scores(rows: int, seed: int) -> NDArray[np.float32]:
    """Target logits with ties: few different values."""
    return np.random.default_rng(seed).integers(0, 4, (rows, VOCAB)).astype(np.float32)


def one_by_one(ctx: Context, drafter: Drafter, drafts: Any, logits: Any, features: Any, at: int) -> tuple[list[int], int, int]:
    picks = np.ascontiguousarray(ctx.top2(logits)[0][:, 0])
    accepted, bonus = ctx.accept(drafts, picks)
    drafter.append(features[: accepted + 1], at)
    return picks.tolist(), accepted, bonus


def cells(drafter: Drafter) -> list[NDArray[Any]]:
    return [x for layer in range(GEOMETRY["layers"]) for x in drafter.context(layer)]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_generation_of_both_is_the_same_to_the_bit(ctx: Context, dialect: str) -> None:
    config = small_config(**DIALECTS[dialect])
    weights = small_weights(False, config)
    with ctx.drafter(config, weights) as fused, ctx.drafter(config, weights) as single:
        rng, position, anchor = np.random.default_rng(7), 6, 3
        for d in (fused, single):
            d.append(taps(position), 0)
        for number in range(12):
            rows = 2 + number % 7
            ids = block(rows)
            ids[0] = anchor
            proposals = [d.propose(ids, position) for d in (fused, single)]
            np.testing.assert_array_equal(proposals[0].logits, proposals[1].logits)
            drafts = fused.drafts()[0]
            logits, features = scores(rows, number), taps(rows, 100 + number)
            logits[np.arange(rows - 1), drafts] = [9.0 if i < number % rows else -1.0 for i in range(rows - 1)]
            picks, accepted, bonus = fused.verify(drafts, logits, features, position)
            assert (picks.tolist(), accepted, bonus) == one_by_one(ctx, single, drafts, logits, features, position)
            assert accepted == min(number % rows, rows - 1) and picks.tolist() == logits.argmax(1).tolist()
            position, anchor = position + accepted + 1, bonus
            if rng.random() < 0.3:  # a cut at a budget: one committed row less
                position -= accepted > 0
                for d in (fused, single):
                    d.truncate(position)
            for a, b in zip(cells(fused), cells(single), strict=True):
                np.testing.assert_array_equal(a, b)


def test_a_row_of_nan_accepts_nothing_and_a_window_may_be_the_anchor_alone(ctx: Context) -> None:
    with ctx.drafter(small_config(), small_weights()) as drafter:
        drafter.append(taps(3), 0)
        logits = scores(3, 1)
        logits[0] = np.nan
        picks, accepted, bonus = drafter.verify(np.array([1, 2], np.int32), logits, taps(3, 1), 3)
        assert (accepted, bonus, picks[0]) == (0, -1, -1) and len(drafter.context(0)[2]) == 4
        picks, accepted, bonus = drafter.verify(np.empty(0, np.int32), scores(1, 2), taps(1, 2), 4)
        assert accepted == 0 and picks.tolist() == [bonus] and len(drafter.context(1)[2]) == 5


def test_what_does_not_fit_is_refused_and_changes_nothing(ctx: Context, cpu: Library) -> None:
    two, rows = np.array([1, 2], np.int32), taps(3)
    with ctx.drafter(small_config(), small_weights()) as drafter:
        drafter.append(taps(4), 0)
        before = cells(drafter)
        for call, status, text in (
            ((two, scores(2, 0), rows, 4), "SHAPE", "logits is F32 [2,37], expected shape [3,37]"),
            ((two, scores(3, 0), taps(2), 4), "SHAPE", "taps is F32 [2,256], expected shape [3,256]"),
            ((two, scores(3, 0), rows, 5), "STATE", "row 5 is beyond the 4 committed rows"),
            ((two, scores(3, 0), rows, -1), "ARG", "pos is -1"),
            ((-two, scores(3, 0), rows, 4), "ARG", "drafts[0] is -1"),
        ):
            with pytest.raises(NativeError) as caught:
                drafter.verify(*call)
            assert caught.value.status == status and text in caught.value.text
        for a, b in zip(before, cells(drafter), strict=True):
            np.testing.assert_array_equal(a, b)

        def stopped(*_: Any) -> None:
            raise RuntimeError("stop")

        ctx.on_dump(stopped, "draft.L1.ctx.v")
        try:
            with pytest.raises(RuntimeError, match="stop"):
                drafter.verify(two, scores(3, 0), rows, 4)
        finally:
            ctx.on_dump(None)
        for a, b in zip(before, cells(drafter), strict=True):
            np.testing.assert_array_equal(a, b)
