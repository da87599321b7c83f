"""select_cells: the cells a row attends to: those of its best complete blocks, and the incomplete tail up to itself.

The ``budget / ratio`` complete blocks of highest score are taken, ties going to the lowest index (exact ties are common: relu
makes exact zeros). Source: `specs/qwen38-flash-next.md` 1.7 steps 5 and 6.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from oracle.arithmetic import Arithmetic
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Axes, Operation, Tensor, Variance, is_zero
from oracle.ops.index_scores import complete
from oracle.ops.open_choices import undecided, unknown
from oracle.ops.select import largest


def axes(scores: Tensor, pos: Any, cells: int, *, ratio: int, budget: int) -> Axes:
    return ("row", "cell")


def shape(scores: Tensor, pos: Any, cells: int, *, ratio: int, budget: int) -> tuple[int, ...]:
    return (scores.data.shape[0], cells)


def formula(F: Kit, scores: Values, pos: Any, cells: int, *, ratio: int, budget: int) -> Values:
    """scores [row, block], pos int64 [row], the number of cells -> [row, cell], 1 where the row attends, else 0."""
    pos = np.asarray(pos, np.int64)
    blocks = scores.shape[1]
    open_blocks = complete(pos, blocks, ratio)
    taken = np.zeros(scores.shape, bool)
    best = largest(np.where(open_blocks, scores, -np.inf), min(budget // ratio, blocks))
    np.put_along_axis(taken, best, True, -1)
    at = np.arange(cells)
    chosen = np.zeros((len(pos), cells), bool)
    chosen[:, : blocks * ratio] = np.repeat(taken & open_blocks, ratio, 1)
    tail = (at >= ((pos + 1) // ratio * ratio)[:, None]) & (at <= pos[:, None])
    return np.asarray((chosen | tail).astype(F.dtype))


def noise(A: Arithmetic, y: Array, scores: Tensor, pos: Any, cells: int, *, ratio: int, budget: int) -> Variance:
    """The order of the blocks that are taken does not matter, so only the last of them is held against the first that is not."""
    if is_zero(scores.total):
        return Variance(0.0, 0.0)
    open_blocks, keep = complete(pos, scores.data.shape[1], ratio), budget // ratio
    found = np.zeros(len(y), bool)
    for r in np.flatnonzero(open_blocks.sum(1) > keep):
        among = np.ix_([r], open_blocks[r])
        found[r] = undecided(scores.data[among], scores.variance()[among], keep, ranked=False)[0]
    return Variance(unknown(found, y.shape), 0.0)


select_cells = Operation("select_cells", "choice", axes, shape, formula, noise)
