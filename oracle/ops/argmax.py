"""argmax: the greedy choice along the last axis; ties go to the lowest index."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.kit import Kit, Values
from oracle.ops.base import Axes, Operation, Tensor


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


argmax = Operation("argmax", "choice", axes, shape, formula)
