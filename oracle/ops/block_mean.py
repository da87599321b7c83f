"""block_mean: the mean of ``ratio`` consecutive cells, complete blocks only; cells after the last complete block are left out.

Source: `specs/qwen38-flash-next.md` 1.7 step 3 (mean of the raw keys, before norm and rope). Noise: `specs/noise-rules.md` 5.1
for a sum of ``ratio`` addends, and the rounding of the division.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle import summation
from oracle.arithmetic import Arithmetic
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Axes, Operation, Tensor, Variance, Where, gamma, is_zero


def axes(cells: Tensor, *, ratio: int) -> Axes:
    return ("block", *cells.axes[1:])


def shape(cells: Tensor, *, ratio: int) -> tuple[int, ...]:
    return (cells.data.shape[0] // ratio, *cells.data.shape[1:])


def _blocks(x: NDArray[Any], ratio: int) -> NDArray[Any]:
    """[cell, ...] -> [block, ..., ratio]."""
    count = len(x) // ratio
    return np.moveaxis(x[: count * ratio].reshape(count, ratio, *x.shape[1:]), 1, -1)


def formula(F: Kit, cells: Values, *, ratio: int) -> Values:
    """cells [cell, ...] -> [block, ...]."""
    return np.asarray(F.sum(_blocks(F.cast(cells), ratio)) / F.dtype.type(ratio))


def noise(A: Arithmetic, y: Array, cells: Tensor, *, ratio: int) -> Variance:
    a, b = summation.energy("sequential", ratio)
    addends = np.square(_blocks(cells.data, ratio)).sum(-1) / ratio**2
    own = A.w3 * (a * np.square(y) + b * addends + (np.frexp(ratio)[0] != 0.5) * np.square(y)) + (2.0**-149) ** 2
    return Variance(0.0 if is_zero(cells.total) else _blocks(cells.variance(), ratio).sum(-1) / ratio**2, own)


def bound(A: Arithmetic, y: Array, where: Where, cells: Tensor, *, ratio: int) -> Array:
    return np.asarray(gamma(ratio + 1) * np.abs(_blocks(cells.data, ratio)).sum(-1)[where] / ratio + 2.0**-148)


block_mean = Operation("block_mean", "elementwise", axes, shape, formula, noise, bound)
