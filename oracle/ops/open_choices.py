"""The noise of choices: where errors of the scores leave open what is chosen, nothing is known of it, nor of what is looked up by it.

A choice has no error of some size, so its variance is 0 or `UNKNOWN`; operations that look something up by it inherit that (`chosen`).
Margins beyond noise: `specs/noise-rules.md` section 6.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.floats import F32
from oracle.ops.base import is_zero, spread
from oracle.tensor import Array, Tensor

UNKNOWN = F32.largest**2
"""Variance of a value of which nothing is known: its deviation is the largest number of float32."""
REACH = 8.0
"""Standard deviations of a difference within which it does not decide between two scores."""


def undecided(keys: Array, variance: Array, k: int, *, ranked: bool = True) -> NDArray[np.bool_]:
    """Rows in which errors of the scores leave open which ``k`` are the largest: keys and their variance [row, n]. ``ranked``: or in which
    order.

    Errors of two scores may point apart, so a difference has up to twice the sum of their variances.
    """
    order = np.argsort(-keys, axis=-1, kind="stable")
    keys, variance = np.take_along_axis(keys, order, -1), np.take_along_axis(variance, order, -1)
    found = np.zeros(len(keys), bool)
    for i in range(min(k, keys.shape[-1] - 1)):
        behind = i + 1 if ranked else k
        reach = REACH * np.sqrt(2 * (variance[:, i, None] + variance[:, behind:]))
        found |= (keys[:, i, None] - keys[:, behind:] < reach).any(-1)
    return found


def unknown(where: NDArray[np.bool_], shape: tuple[int, ...]) -> Array | float:
    """Variance of a choice of ``shape [row, …]`` that is unknown in the rows ``where``: 0 where it is known in all."""
    return spread(np.where(where.reshape(-1, *([1] * (len(shape) - 1))), UNKNOWN, 0.0), shape) if where.any() else 0.0


def chosen(ids: Any, shape: tuple[int, ...]) -> Array | float:
    """Variance of what is looked up by ids [row, …], of ``shape [row, …, dim …]``: where they could be others, nothing is known of it."""
    if not isinstance(ids, Tensor) or is_zero(ids.total):
        return 0.0
    return spread(ids.variance().reshape(ids.data.shape + (1,) * (len(shape) - ids.data.ndim)), shape)
