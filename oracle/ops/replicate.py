"""replicate: the embedding as every stream's start, ``[x | x | … | x]`` (`specs/qwen38-flash-next.md` 1.5 S1); moved, not changed."""

from __future__ import annotations

import numpy as np

from oracle.arithmetic import Arithmetic
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Axes, Operation, Tensor, Variance, is_zero


def axes(x: Tensor, *, copies: int) -> Axes:
    return x.axes


def shape(x: Tensor, *, copies: int) -> tuple[int, ...]:
    return (x.data.shape[0], x.data.shape[1] * copies)


def formula(F: Kit, x: Values, *, copies: int) -> Values:
    """x [row, dim] -> [row, copies * dim]."""
    return np.tile(F.cast(x), (1, copies))


def noise(A: Arithmetic, y: Array, x: Tensor, *, copies: int) -> Variance:
    return Variance(0.0 if is_zero(x.total) else np.tile(x.variance(), (1, copies)), 0.0)


replicate = Operation("replicate", "structural", axes, shape, formula, noise)
