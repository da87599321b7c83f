"""gather: rows of an embedding table by token id, times a scale; ids are given, or chosen by a stage before.

Noise: `specs/noise-rules.md` 5.6 (exact without a scale).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from oracle.arithmetic import Arithmetic
from oracle.floats import F32
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Axes, Operation, Tensor, Variance, Weight, Where
from oracle.ops.open_choices import chosen


def axes(table: Weight, ids: Any, *, scale: float = 1.0) -> Axes:
    return ("row", "dim")


def shape(table: Weight, ids: Any, *, scale: float = 1.0) -> tuple[int, ...]:
    return (len(ids.data if isinstance(ids, Tensor) else ids), table.width)


def formula(F: Kit, table: Weight, ids: Any, *, scale: float = 1.0) -> Values:
    """Rows ``ids`` of the table [vocab, dim], times ``scale`` -> [row, dim]."""
    if np.asarray(ids).dtype.kind == "f":
        found = F.cast(looked_up(table, ids))
        return found if scale == 1.0 else found * F.dtype.type(scale)
    ids = np.asarray(ids, np.int64)
    if len(ids) and not (ids.min() >= 0 and ids.max() < table.row_count):
        outside = int(ids.min() if ids.min() < 0 else ids.max())
        raise ValueError(f"gather: token id {outside} is outside {table.name} of {table.row_count} rows")
    rows = F.cast(np.stack([table.tile(int(i), int(i) + 1)[0] for i in ids]) if len(ids) else np.empty((0, table.width)))
    return rows if scale == 1.0 else rows * F.dtype.type(scale)


def looked_up(table: Weight, choice: Any) -> Array:
    """Rows of the table [vocab, in] by ids that a stage chose (so floats) -> [row, dim]; NaN where an id has no row."""
    ids = np.nan_to_num(np.asarray(choice, np.float64), nan=-1, posinf=-1, neginf=-1).astype(np.int64)
    rows = np.full((len(ids), table.width), np.nan)
    for at, i in enumerate(ids):
        if 0 <= i < table.row_count:
            rows[at] = table.tile(int(i), int(i) + 1)[0]
    return rows


def noise(A: Arithmetic, y: Array, table: Weight, ids: Any, *, scale: float = 1.0) -> Variance:
    return Variance(chosen(ids, y.shape), 0.0 if np.frexp(scale)[0] == 0.5 else np.square(F32.ulp(y)) / 12 + A.w3 * np.square(y))


def bound(A: Arithmetic, y: Array, where: Where, table: Weight, ids: Any, *, scale: float = 1.0) -> Array:
    return np.asarray(np.abs(y[where]) * 2.01 * F32.u)


gather = Operation("gather", "structural", axes, shape, formula, noise, bound)
