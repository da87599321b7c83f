"""choose: the candidate of largest score, as a token id; ties go to the candidate named first (`specs/dflash-generic.md` 14)."""

from __future__ import annotations

import numpy as np

from oracle.arithmetic import Arithmetic
from oracle.kit import Kit, Values
from oracle.ops import argmax
from oracle.ops.argmax import first_argmax
from oracle.ops.base import Array, Axes, Operation, Tensor, Variance, is_zero


def axes(scores: Tensor, candidates: Tensor) -> Axes:
    return scores.axes[:-1]


def shape(scores: Tensor, candidates: Tensor) -> tuple[int, ...]:
    return scores.data.shape[:-1]


def formula(F: Kit, scores: Values, candidates: Values) -> Values:
    """scores and candidates [row, candidate] -> token ids [row]; -1 where every score is NaN."""
    best = first_argmax(scores)
    chosen = np.take_along_axis(candidates, np.maximum(best, 0)[:, None], 1)[:, 0]
    return np.where(best < 0, -1, chosen).astype(F.dtype)


def noise(A: Arithmetic, y: Array, scores: Tensor, candidates: Tensor) -> Variance:
    v = argmax.noise(A, y, scores)
    return v if is_zero(candidates.total) else v._replace(inherited=np.maximum(v.inherited, candidates.variance().max(-1)))


choose = Operation("choose", "choice", axes, shape, formula, noise)
