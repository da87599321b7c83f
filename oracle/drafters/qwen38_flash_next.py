"""The bookkeeping of a DeepSpec drafter's rounds: the anchor row predicts too, row j speaks of the position after its own.

Source: `specs/qwen38-flash-next.md` 3.3 (layout) and 3.4 (rounds). The forward is that of every DFlash drafter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


class RoundError(ValueError):
    """A round that this drafter cannot have: too many rows, or picks that do not fit the candidates."""


@dataclass(frozen=True)
class Outcome:
    """What a verified window gives: ``accepted`` drafts, ``emitted`` tokens (one more), and the ``next`` round.

    The window's first ``accepted + 1`` rows are committed, at positions ``position …`` of the round that was verified.
    """

    accepted: int
    emitted: tuple[int, ...]
    next: Round


@dataclass(frozen=True)
class Round:
    """One round: ``anchor``, the last token picked and not yet read by the target, at ``position``; the context ends before it."""

    anchor: int
    position: int

    def block(self, rows: int, mask: int, largest: int) -> NDArray[np.int64]:
        """Ids fed to the drafter, int64 [row]: the anchor and ``rows - 1`` masks, at positions ``position …``.

        Raises `RoundError` for more rows than the ``largest`` block the drafter was trained on.
        """
        if not 1 <= rows <= largest:
            raise RoundError(f"a block of {rows} rows: this drafter takes 1 to {largest}, one candidate each")
        return np.array([self.anchor] + [mask] * (rows - 1), np.int64)

    def predicted(self, rows: int) -> NDArray[np.int64]:
        """The positions that the block's rows speak of: row j of ``position + j + 1``, the anchor's row included."""
        return np.arange(self.position + 1, self.position + 1 + rows)

    def window(self, candidates: Sequence[int]) -> NDArray[np.int64]:
        """Ids the target verifies, at positions ``position …``: the anchor, then every candidate."""
        return np.array([self.anchor, *candidates], np.int64)

    def verified(self, candidates: Sequence[int], picks: Sequence[int]) -> Outcome:
        """``picks``: the target's choice after every row of the window, one more than there are candidates.

        Candidates are accepted while they are what the target picked; the pick behind the last of them is the next anchor.
        """
        if len(picks) != len(candidates) + 1:
            raise RoundError(f"{len(picks)} picks for a window of {len(candidates) + 1} rows: expected one per row")
        accepted = next((i for i, c in enumerate(candidates) if c != picks[i]), len(candidates))
        emitted = tuple(int(p) for p in picks[: accepted + 1])
        return Outcome(accepted, emitted, Round(emitted[-1], self.position + accepted + 1))
