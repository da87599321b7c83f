"""gate: attention output times an activated gate, ``y = x σ(g)`` or ``y = x softplus(g)``.

A gate per channel has the shape of x; a gate per head [row, head] is the same for every channel of the head.
Noise: `specs/noise-rules.md` 5.9.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.arithmetic import Arithmetic
from oracle.floats import F32
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Operation, Tensor, Variance, Where, axes_of_first, shape_of_first
from oracle.ops.swiglu import sigmoid

# A small input of a nearly closed gate: the product has fewer bits.
_SUBNORMAL = (2.0**-149) ** 2
KINDS = ("sigmoid", "softplus")


def _like(x: NDArray[Any], g: NDArray[Any]) -> NDArray[Any]:
    """The gate over x's channels: [row, head] gains the channel axis, a flat [row, head * dim] takes x's shape."""
    return g[..., None] if g.ndim < x.ndim and g.shape == x.shape[:-1] else g.reshape(x.shape)


def formula(F: Kit, x: Values, g: Values, *, kind: str) -> Values:
    """x [row, head, dim], g [row, head], [row, head, dim] or [row, head * dim] -> like x. Softplus in its stable form."""
    z = _like(x, F.cast(g))
    if kind == "sigmoid":
        return np.asarray(F.cast(x) * F.sigmoid(z))
    return np.asarray(F.cast(x) * F.held(np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z))), ulps=3))


def noise(A: Arithmetic, y: Array, x: Tensor, g: Tensor, *, kind: str) -> Variance:
    z, vz = _like(x.data, g.data), _like(x.data, g.variance())
    s = sigmoid(z)
    if kind == "sigmoid":
        inherited = np.square(x.data * s * (1 - s)) * vz + np.square(s) * x.variance()
        flush = np.where(z < -87.3, np.square(2.0**-126 * np.abs(x.data)), 0.0)
        return Variance(inherited, np.square(y) * A.w3 * (3 + 4 * np.square(1 - s)) + flush + _SUBNORMAL)
    activated = np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z)))
    inherited = np.square(x.data * s) * vz + np.square(activated) * x.variance()
    return Variance(inherited, A.w3 * 5 * np.square(y) + _SUBNORMAL)


def bound(A: Arithmetic, y: Array, where: Where, x: Tensor, g: Tensor, *, kind: str) -> Array:
    z = np.broadcast_to(_like(x.data, g.data), x.data.shape)[where]
    flush = np.where(z < -87.3, 2.0**-125 * np.abs(x.data[where]), 0.0)
    return np.asarray(np.abs(y[where]) * 10 * F32.u + flush + 2.0**-148)


def factor(x: Tensor, g: Tensor) -> Array | None:
    """A gate per head: its activation errs the same way for every channel, and in every row that has the same gate."""
    return g.data if g.data.size < x.data.size else None


gate = Operation("gate", "elementwise", axes_of_first, shape_of_first, formula, noise, bound, factor=factor)
