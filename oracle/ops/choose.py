"""choose: the candidate of largest score, as a token id; ties go to the candidate named first (`specs/dflash-generic.md` 14)."""

from __future__ import annotations

import numpy as np

from oracle.kit import Kit, Values
from oracle.ops.argmax import first_argmax
from oracle.ops.base import Axes, Operation, Tensor


def axes(scores: Tensor, candidates: Tensor) -> Axes:
    return scores.axes[:-1]


def shape(scores: Tensor, candidates: Tensor) -> tuple[int, ...]:
    return scores.data.shape[:-1]


def formula(F: Kit, scores: Values, candidates: Values) -> Values:
    """scores and candidates [row, candidate] -> token ids [row]; -1 where every score is NaN."""
    best = first_argmax(scores)
    chosen = np.take_along_axis(candidates, np.maximum(best, 0)[:, None], 1)[:, 0]
    return np.where(best < 0, -1, chosen).astype(F.dtype)


choose = Operation("choose", "choice", axes, shape, formula)
