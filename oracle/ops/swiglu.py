"""swiglu: ``silu(gate) up`` with ``silu(g) = g / (1 + e^-g)``. Noise: `specs/noise-rules.md` 5.9, the flush zone included."""

from __future__ import annotations

import numpy as np

from oracle.arithmetic import Arithmetic
from oracle.floats import F32
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Operation, Tensor, Variance, Where, axes_of_first, shape_of_first


def sigmoid(g: Array) -> Array:
    """1/(1+e^-g) without overflow."""
    e = np.exp(-np.abs(g))
    return np.where(g >= 0, 1 / (1 + e), e / (1 + e))


def formula(F: Kit, gate: Values, up: Values) -> Values:
    """silu(gate) * up with silu(g) = g / (1 + e^-g)."""
    return np.asarray(F.silu(F.cast(gate)) * F.cast(up))


def noise(A: Arithmetic, y: Array, gate: Tensor, up: Tensor) -> Variance:
    g, h = gate.data, up.data
    s = sigmoid(g)
    inherited = np.square(h * s * (1 + g * (1 - s))) * gate.total + np.square(g * s) * up.total
    own = np.square(y) * A.w3 * (4 + 4 * np.square(1 - s))
    # Where e^-g overflows f32 the sigmoid is subnormal and engines return 0: an absolute error, not a relative one.
    flush = np.where(g < -87.3, np.square(2.0**-126 * np.abs(g * h)), 0.0)
    return Variance(inherited, own + flush + (2.0**-149) ** 2)


def bound(A: Arithmetic, y: Array, where: Where, gate: Tensor, up: Tensor) -> Array:
    g, h = gate.data[where], up.data[where]
    flush = np.where(g < -87.3, 2.0**-125 * np.abs(g * h), 0.0)
    return np.asarray(np.abs(y[where]) * 10 * F32.u + flush + 2.0**-148)


swiglu = Operation("swiglu", "elementwise", axes_of_first, shape_of_first, formula, noise, bound)
