"""select: the k experts of largest score, best first; ties go to the lowest index. A bias counts for the selection only.

Source: `specs/laguna.md` 1.3 (14c), `specs/qwen38-flash-next.md` 1.5; margins of rank k against k + 1: `specs/noise-rules.md` 6.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.arithmetic import Arithmetic
from oracle.kit import EXACT, Kit, Values
from oracle.ops.base import Array, Axes, Operation, Tensor, Variance, Weight, is_zero
from oracle.ops.open_choices import undecided, unknown


def axes(scores: Tensor, bias: Weight | None = None, *, k: int) -> Axes:
    return (*scores.axes[:-1], "rank")


def shape(scores: Tensor, bias: Weight | None = None, *, k: int) -> tuple[int, ...]:
    return (*scores.data.shape[:-1], k)


def biased(F: Kit, scores: Values, bias: Weight | None) -> Values:
    """What the selection compares: the scores, plus the selection bias where there is one."""
    return F.cast(scores) if bias is None else np.asarray(F.cast(scores) + F.vector(bias))


def largest(values: NDArray[Any], k: int) -> NDArray[np.int64]:
    """Indices of the k largest along the last axis, largest first, the lowest index first on ties; NaN comes last."""
    keys = np.where(np.isnan(values), -np.inf, values)
    return np.argsort(-keys, axis=-1, kind="stable")[..., :k].astype(np.int64)


def formula(F: Kit, scores: Values, bias: Weight | None = None, *, k: int) -> Values:
    """scores [row, expert], bias [expert] -> expert indices [row, rank] (whole numbers in the kit's dtype)."""
    if not 1 <= k <= scores.shape[-1]:
        raise ValueError(f"select: {k} of {scores.shape[-1]} experts")
    return largest(biased(F, scores, bias), k).astype(F.dtype)


def noise(A: Arithmetic, y: Array, scores: Tensor, bias: Weight | None = None, *, k: int) -> Variance:
    """Another order of the same experts is another choice: each rank has its own."""
    if is_zero(scores.total):
        return Variance(0.0, 0.0)
    keys = biased(EXACT, scores.data, bias)
    variance = scores.variance() + (0.0 if bias is None else A.w3 * np.square(keys))
    return Variance(unknown(undecided(keys, variance, k), y.shape), 0.0)


select = Operation("select", "choice", axes, shape, formula, noise)
