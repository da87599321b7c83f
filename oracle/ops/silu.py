"""silu: ``y = g / (1 + e^-g)`` with ``g = scale x``. Noise: `specs/noise-rules.md` 5.9, the flush zone included."""

from __future__ import annotations

import numpy as np

from oracle.arithmetic import Arithmetic
from oracle.floats import F32
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Operation, Tensor, Variance, Where, axes_of_first, shape_of_first
from oracle.ops.swiglu import sigmoid


def formula(F: Kit, x: Values, *, scale: float = 1.0) -> Values:
    """x of any shape -> like x; hyper-connections divide by the number of streams inside (``scale = 1 / streams``)."""
    g = F.cast(x) * F.dtype.type(scale)
    with np.errstate(over="ignore"):
        return np.asarray(g / (F.dtype.type(1) + np.exp(-g)))


def noise(A: Arithmetic, y: Array, x: Tensor, *, scale: float = 1.0) -> Variance:
    g = x.data * scale
    s = sigmoid(g)
    slope = s * (1 + g * (1 - s))
    scaled = 0.0 if np.frexp(scale)[0] == 0.5 else A.w3 * np.square(g * slope)
    flush = np.where(g < -87.3, np.square(2.0**-126 * g), 0.0)
    return Variance(np.square(scale * slope) * x.total, np.square(y) * A.w3 * (3 + 4 * np.square(1 - s)) + scaled + flush)


def bound(A: Arithmetic, y: Array, where: Where, x: Tensor, *, scale: float = 1.0) -> Array:
    g = x.data[where] * scale
    flush = np.where(g < -87.3, 2.0**-125 * np.abs(g), 0.0)
    return np.asarray(np.abs(y[where]) * (10 + 2 * np.abs(g)) * F32.u + flush + 2.0**-148)


silu = Operation("silu", "elementwise", axes_of_first, shape_of_first, formula, noise, bound)
