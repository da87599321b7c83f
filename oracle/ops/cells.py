"""cells: what attention may read, the context's cells followed by the block's own; values are moved and not changed."""

from __future__ import annotations

import numpy as np

from oracle.arithmetic import Arithmetic
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Axes, Operation, Tensor, Variance, is_zero


def axes(*parts: Tensor) -> Axes:
    return ("cell", *parts[0].axes[1:])


def shape(*parts: Tensor) -> tuple[int, ...]:
    return (sum(p.data.shape[0] for p in parts), *parts[0].data.shape[1:])


def formula(F: Kit, *parts: Values) -> Values:
    """Context cells, then block cells: [cell, head, dim]."""
    return np.concatenate([F.cast(p) for p in parts])


def noise(A: Arithmetic, y: Array, *parts: Tensor) -> Variance:
    if all(is_zero(p.total) for p in parts):
        return Variance(0.0, 0.0)
    return Variance(np.concatenate([p.variance() for p in parts]), 0.0)


cells = Operation("cells", "structural", axes, shape, formula, noise)
