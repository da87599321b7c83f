"""add, swiglu and scale_cap (output multiplier and tanh softcap): `specs/noise-rules.md` 5.6 and 5.9."""

from __future__ import annotations

import numpy as np

from oracle.arithmetic import Arithmetic
from oracle.floats import F32
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Operation, Tensor, Variance, Where, axes_of_first, shape_of_first


def add_formula(F: Kit, a: Values, b: Values) -> Values:
    """a + b, same shapes."""
    return F.cast(a) + F.cast(b)


def add_noise(A: Arithmetic, y: Array, a: Tensor, b: Tensor) -> Variance:
    return Variance(np.asarray(a.total) + np.asarray(b.total), np.square(F32.ulp(y)) / 12)


def add_bound(A: Arithmetic, y: Array, where: Where, a: Tensor, b: Tensor) -> Array:
    return F32.ulp(y[where]) / 2


add = Operation("add", "elementwise", axes_of_first, shape_of_first, add_formula, add_noise, add_bound)


def sigmoid(g: Array) -> Array:
    """1/(1+e^-g) without overflow."""
    e = np.exp(-np.abs(g))
    return np.where(g >= 0, 1 / (1 + e), e / (1 + e))


def swiglu_formula(F: Kit, gate: Values, up: Values) -> Values:
    """silu(gate) * up with silu(g) = g / (1 + e^-g)."""
    g = F.cast(gate)
    with np.errstate(over="ignore"):
        return g / (F.dtype.type(1) + np.exp(-g)) * F.cast(up)


def swiglu_noise(A: Arithmetic, y: Array, gate: Tensor, up: Tensor) -> Variance:
    g, h = gate.data, up.data
    s = sigmoid(g)
    inherited = np.square(h * s * (1 + g * (1 - s))) * gate.total + np.square(g * s) * up.total
    own = np.square(y) * A.w3 * (4 + 4 * np.square(1 - s))
    # Where e^-g overflows f32 the sigmoid is subnormal and engines return 0: an absolute error, not a relative one.
    flush = np.where(g < -87.3, np.square(2.0**-126 * np.abs(g * h)), 0.0)
    return Variance(inherited, own + flush)


def swiglu_bound(A: Arithmetic, y: Array, where: Where, gate: Tensor, up: Tensor) -> Array:
    g, h = gate.data[where], up.data[where]
    flush = np.where(g < -87.3, 2.0**-125 * np.abs(g * h), 0.0)
    return np.asarray(np.abs(y[where]) * 10 * F32.u + flush + 2.0**-148)


swiglu = Operation("swiglu", "elementwise", axes_of_first, shape_of_first, swiglu_formula, swiglu_noise, swiglu_bound)


def softcap_formula(F: Kit, x: Values, *, scale: float, cap: float | None) -> Values:
    """``y = scale * x``, then ``cap * tanh(y / cap)`` if there is a cap: the multiplier first."""
    y = F.cast(x) * F.dtype.type(scale)
    if cap is None:
        return y
    c = F.dtype.type(cap)
    return c * np.tanh(y / c)


def softcap_noise(A: Arithmetic, y: Array, x: Tensor, *, scale: float, cap: float | None) -> Variance:
    scaled = x.data * scale
    inherited = np.asarray(x.total) * scale**2
    if cap is None:
        return Variance(inherited, A.w3 * np.square(scaled))
    slope = np.square(1 - np.square(np.tanh(scaled / cap)))
    return Variance(slope * inherited, slope * A.w3 * np.square(scaled) + A.w3 * 3 * np.square(y))


def softcap_bound(A: Arithmetic, y: Array, where: Where, x: Tensor, *, scale: float, cap: float | None) -> Array:
    return np.asarray(np.abs(x.data[where] * scale) * 3 * F32.u + np.abs(y[where]) * 6 * F32.u + 2.0**-148)


softcap = Operation("softcap", "elementwise", axes_of_first, shape_of_first, softcap_formula, softcap_noise, softcap_bound)
