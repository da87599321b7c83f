"""argmax: the greedy choice along the last axis; ties go to the lowest index.

Noise: scores with errors may leave it open; the choice is then unknown, and so is what is looked up by it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.arithmetic import Arithmetic
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Axes, Operation, Tensor, Variance, is_zero
from oracle.ops.open_choices import undecided, unknown


def axes(x: Tensor) -> Axes:
    return x.axes[:-1]


def shape(x: Tensor) -> tuple[int, ...]:
    return x.data.shape[:-1]


def first_argmax(x: NDArray[Any]) -> NDArray[np.int64]:
    """Index of the largest value along the last axis: the lowest on ties, NaN never chosen, -1 where all are NaN."""
    number = ~np.isnan(x)
    best = np.where(number, x, -np.inf).max(-1, keepdims=True)
    return np.where(number.any(-1), (x == best).argmax(-1), -1).astype(np.int64)


def formula(F: Kit, x: Values) -> Values:
    return first_argmax(x).astype(F.dtype)


def noise(A: Arithmetic, y: Array, x: Tensor) -> Variance:
    if is_zero(x.total):
        return Variance(0.0, 0.0)
    flat = (-1, x.data.shape[-1])
    return Variance(unknown(undecided(x.data.reshape(flat), x.variance().reshape(flat), 1).reshape(y.shape), y.shape), 0.0)


argmax = Operation("argmax", "choice", axes, shape, formula, noise)
