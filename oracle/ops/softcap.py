"""softcap: output multiplier, then tanh cap: ``cap tanh(scale x / cap)``. Noise: `specs/noise-rules.md` 5.9, last line."""

from __future__ import annotations

import numpy as np

from oracle.arithmetic import Arithmetic
from oracle.floats import F32
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Operation, Tensor, Variance, Where, axes_of_first, shape_of_first


def formula(F: Kit, x: Values, *, scale: float, cap: float | None) -> Values:
    """``y = scale * x``, then ``cap * tanh(y / cap)`` if there is a cap: the multiplier first."""
    y = np.asarray(F.cast(x) * F.constant(scale))
    if cap is None:
        return y
    c = F.constant(cap)
    return np.asarray(c * F.held(np.tanh(F.held(F.held(y) / c)), ulps=3))


def noise(A: Arithmetic, y: Array, x: Tensor, *, scale: float, cap: float | None) -> Variance:
    scaled = x.data * scale
    inherited = np.asarray(x.total) * scale**2
    if cap is None:
        return Variance(inherited, A.w3 * np.square(scaled))
    slope = np.square(1 - np.square(np.tanh(scaled / cap)))
    return Variance(slope * inherited, slope * A.w3 * np.square(scaled) + A.w3 * 3 * np.square(y))


def bound(A: Arithmetic, y: Array, where: Where, x: Tensor, *, scale: float, cap: float | None) -> Array:
    return np.asarray(np.abs(x.data[where] * scale) * 3 * F32.u + np.abs(y[where]) * 6 * F32.u + 2.0**-148)


softcap = Operation("softcap", "elementwise", axes_of_first, shape_of_first, formula, noise, bound)
