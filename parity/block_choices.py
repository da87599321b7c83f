"""Margins of an indexer's selection: are other cells a tie within noise, or a flip (`specs/noise-rules.md` section 6).

The last block selected is compared with the first that is not. The candidate's own scores decide first: its selection must be
the one they make, up to blocks of equal score, which the lab gives to the lowest index.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oracle.floats import F32
from oracle.ops.index_scores import complete
from oracle.ops.select import largest
from oracle.readings import Stage
from oracle.tensor import Array, Tensor
from parity import limits
from parity.judge import Judge
from parity.report import Margin


@dataclass(frozen=True)
class _Row:
    """One row: the oracle's scores and their variance, the candidate's own (``recorded``, or the oracle's), all [block]; the lab's blocks
    and the candidate's cells."""

    scores: Array
    variance: Array
    theirs: Array
    recorded: bool
    lab: NDArray[np.bool_]
    picked: NDArray[np.bool_]
    wanted: NDArray[np.bool_]


def block_choices(judge: Judge, choice: Stage, own: Tensor, wanted: Array, picked: Array) -> list[Margin]:
    """One margin per row that has more complete blocks than the budget, and per row that is not what a selection may be.

    ``own``: the oracle's scores [row, block] with their noise; ``wanted [row, cell]``: what the candidate's recorded scores select by
    the lab's rule (or the oracle's, where none were recorded); ``picked [row, cell]``: what it selected.
    """
    pos, ratio, keep = choice.args[1], int(choice.params["ratio"]), int(choice.params["budget"]) // int(choice.params["ratio"])
    open_blocks = complete(pos, own.data.shape[1], ratio)
    theirs, made = np.asarray(choice.args[0].data, np.float64), []
    for r in range(len(picked)):
        if open_blocks[r].sum() <= keep and np.array_equal(picked[r], wanted[r]):
            continue
        scores = np.where(open_blocks[r], own.data[r], -np.inf)
        lab = np.zeros(len(scores), bool)
        lab[largest(scores, keep)] = True
        shape = (own.data.shape[1], ratio)
        row = _Row(scores, own.variance()[r], theirs[r], choice.args[0].exact, lab & open_blocks[r], picked[r] > 0.5, wanted[r] > 0.5)
        made.append(_one(judge, choice, r, row, shape))
    return made


def swapped(mine: Array, theirs: Array, ratio: int, row: int, blocks: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Blocks wholly in ``mine`` and not in ``theirs``, and the other way round, for one row of cells [row, cell]."""
    a, b = (np.asarray(x[row, : blocks * ratio] > 0.5).reshape(blocks, ratio).all(1) for x in (mine, theirs))
    return np.flatnonzero(a & ~b), np.flatnonzero(b & ~a)


def _one(judge: Judge, choice: Stage, r: int, row: _Row, shape: tuple[int, int]) -> Margin:
    blocks = row.picked[: shape[0] * shape[1]].reshape(shape)
    taken = np.asarray(blocks.all(1))
    kept = np.flatnonzero(row.lab)
    left = np.flatnonzero(~row.lab & np.isfinite(row.scores))
    missing, extra = np.flatnonzero(row.lab & ~taken), np.flatnonzero(taken & ~row.lab)
    last = missing if len(missing) else kept
    rivals = extra if len(extra) else left
    best = int(last[row.scores[last].argmin()]) if len(last) else -1
    rival = int(rivals[row.scores[rivals].argmax()]) if len(rivals) else best
    gap = float(row.scores[best] - row.scores[rival]) if np.isfinite(row.scores[rival]) else math.inf
    noise = math.sqrt(row.variance[best] + row.variance[rival])
    verdict, rule = _verdict(judge, row, blocks, taken, gap, noise, bool(len(missing) or len(extra)))
    probability = 0.5 * math.erfc(gap / noise / math.sqrt(2)) if noise > 0 else float(gap <= 0) / 2
    ulps = float(gap / F32.ulp(row.scores[best]))
    chosen = rival if len(missing) else best
    candidate_gap = float(row.theirs[best] - row.theirs[rival])
    return Margin(choice.step, choice.path, r, best, rival, gap, noise, probability, chosen, candidate_gap, ulps, verdict, rule)


def _verdict(
    judge: Judge, row: _Row, blocks: NDArray[np.bool_], taken: NDArray[np.bool_], gap: float, noise: float, differs: bool
) -> tuple[str, str]:
    """The candidate's cells as a selection, then against its own scores, then against the oracle's."""
    halves = np.flatnonzero(blocks.any(1) & ~taken)
    tail = slice(blocks.size, None)
    wanted = row.wanted[: blocks.size].reshape(blocks.shape)
    partial = np.flatnonzero(wanted.any(1) & ~wanted.all(1))
    if set(halves) - set(partial) or not np.array_equal(blocks[partial], wanted[partial]):
        return "flip", f"it attends to a part of block {int((set(halves) | set(partial)).pop())}"
    if not np.array_equal(row.picked[tail], row.wanted[tail]):
        return "flip", "its cells after the last complete block are not those up to the row itself"
    dropped, added = np.flatnonzero(wanted.all(1) & ~taken), np.flatnonzero(taken & ~wanted.all(1))
    if len(added) != len(dropped) or (len(added) and not np.isfinite(row.scores[added]).all()):
        return "flip", f"it attends to {int(taken.sum())} complete blocks, the rule selects {int(wanted.all(1).sum())} of those it can see"
    if row.recorded and len(dropped) and row.theirs[dropped].max() > row.theirs[added].min():
        return "flip", f"it leaves block {int(dropped[0])} out, which by its own scores comes before block {int(added[0])}"
    if row.recorded and len(dropped):
        return "tie", f"blocks {int(dropped[0])} and {int(added[0])} have the same score; the lab takes the lowest index"
    if not differs:
        return "agree", ""
    return ("tie" if gap <= limits.gaussian(judge.count) * noise else "flip"), ""
