"""Operations that move values and change none: given (a recorded input), cells, gather, and the discrete argmax."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.arithmetic import Arithmetic
from oracle.floats import F32
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Axes, Operation, Tensor, Variance, Weight, Where, axes_of_first, is_zero, shape_of_first


def given_formula(F: Kit, x: Values) -> Values:
    """The input itself: features, ids or states that the case hands in."""
    return F.cast(x)


def given_noise(A: Arithmetic, y: Array, x: Tensor) -> Variance:
    return Variance(x.total, 0.0)


given = Operation("given", "structural", axes_of_first, shape_of_first, given_formula, given_noise)


def cells_axes(*parts: Tensor) -> Axes:
    return ("cell", *parts[0].axes[1:])


def cells_shape(*parts: Tensor) -> tuple[int, ...]:
    return (sum(p.data.shape[0] for p in parts), *parts[0].data.shape[1:])


def cells_formula(F: Kit, *parts: Values) -> Values:
    """Context cells, then block cells: [cell, head, dim]."""
    return np.concatenate([F.cast(p) for p in parts])


def cells_noise(A: Arithmetic, y: Array, *parts: Tensor) -> Variance:
    if all(is_zero(p.total) for p in parts):
        return Variance(0.0, 0.0)
    return Variance(np.concatenate([p.variance() for p in parts]), 0.0)


cells = Operation("cells", "structural", cells_axes, cells_shape, cells_formula, cells_noise)


def gather_axes(table: Weight, ids: Any, *, scale: float = 1.0) -> Axes:
    return ("row", "dim")


def gather_shape(table: Weight, ids: Any, *, scale: float = 1.0) -> tuple[int, ...]:
    return (len(ids), table.width)


def gather_formula(F: Kit, table: Weight, ids: Any, *, scale: float = 1.0) -> Values:
    """Rows ``ids`` of the table [vocab, dim], times ``scale`` -> [row, dim]."""
    ids = np.asarray(ids, np.int64)
    if len(ids) and not (ids.min() >= 0 and ids.max() < table.row_count):
        raise ValueError(f"gather: token id {int(ids.min() if ids.min() < 0 else ids.max())} is outside {table.name} of {table.row_count} rows")
    rows = F.cast(np.stack([table.tile(int(i), int(i) + 1)[0] for i in ids]) if len(ids) else np.empty((0, table.width)))
    return rows if scale == 1.0 else rows * F.dtype.type(scale)


def gather_noise(A: Arithmetic, y: Array, table: Weight, ids: Any, *, scale: float = 1.0) -> Variance:
    return Variance(0.0, 0.0 if np.frexp(scale)[0] == 0.5 else np.square(F32.ulp(y)) / 12 + A.w3 * np.square(y))


def gather_bound(A: Arithmetic, y: Array, where: Where, table: Weight, ids: Any, *, scale: float = 1.0) -> Array:
    return np.asarray(np.abs(y[where]) * 2.01 * F32.u)


gather = Operation("gather", "structural", gather_axes, gather_shape, gather_formula, gather_noise, gather_bound)


def argmax_axes(x: Tensor) -> Axes:
    return x.axes[:-1]


def argmax_shape(x: Tensor) -> tuple[int, ...]:
    return x.data.shape[:-1]


def first_argmax(x: NDArray[Any]) -> NDArray[np.int64]:
    """Index of the largest value along the last axis: the lowest on ties, NaN never chosen, -1 where all are NaN."""
    masked = np.where(np.isnan(x), -np.inf, x)
    best = masked.argmax(-1)
    return np.where(np.isnan(x).all(-1), -1, best).astype(np.int64)


def argmax_formula(F: Kit, x: Values) -> Values:
    return first_argmax(x).astype(F.dtype)


argmax = Operation("argmax", "choice", argmax_axes, argmax_shape, argmax_formula)
