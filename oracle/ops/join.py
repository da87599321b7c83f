"""join: rows side by side, ``[a ; b ; …]`` along the last axis; values are moved and not changed (`specs/dflash-generic.md` 15)."""

from __future__ import annotations

import numpy as np

from oracle.arithmetic import Arithmetic
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Axes, Operation, Tensor, Variance, is_zero


def axes(*parts: Tensor) -> Axes:
    return parts[0].axes


def shape(*parts: Tensor) -> tuple[int, ...]:
    return (*parts[0].data.shape[:-1], sum(p.data.shape[-1] for p in parts))


def formula(F: Kit, *parts: Values) -> Values:
    """Parts [row, dim …] -> [row, sum of the dims]."""
    return np.concatenate([F.cast(p) for p in parts], -1)


def noise(A: Arithmetic, y: Array, *parts: Tensor) -> Variance:
    if all(is_zero(p.total) for p in parts):
        return Variance(0.0, 0.0)
    return Variance(np.concatenate([p.variance() for p in parts], -1), 0.0)


join = Operation("join", "structural", axes, shape, formula, noise)
