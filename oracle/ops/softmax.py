"""softmax: ``p_j = e^(x_j - max) / Σ e^(x_i - max)`` along the last axis. Noise: `specs/noise-rules.md` 5.8.

The normaliser is one relative error for the whole row.
"""

from __future__ import annotations

import numpy as np

from oracle import summation
from oracle.arithmetic import Arithmetic
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Operation, Tensor, Variance, Where, axes_of_first, gamma, is_zero, shape_of_first


def formula(F: Kit, x: Values) -> Values:
    """x [..., n] -> probabilities, like x."""
    x = F.cast(x)
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / F.sum(e)[..., None])


def _through(p: Array, v: Array) -> Array:
    """Variance of p from independent variances v of the exponents: p_j² (v_j (1 - 2 p_j) + Σ p_i² v_i)."""
    mixed = v * (1 - 2 * p) + (np.square(p) * v).sum(-1, keepdims=True)
    return np.asarray(np.square(p) * np.maximum(mixed, 0))


def noise(A: Arithmetic, y: Array, x: Tensor) -> Variance:
    shifted = x.data - x.data.max(-1, keepdims=True)
    inherited = 0.0 if is_zero(x.total) else _through(y, x.variance())
    a, b = summation.energy(A.order, y.shape[-1])
    # Addends below half an ulp of a float32 sum may be lost from it.
    lost = 0.0 if summation.parse(A.order)[0] == "f64" else np.where(y < 2.0**-23, y, 0).sum(-1, keepdims=True)
    sums = A.w3 * (a + b * np.square(y).sum(-1, keepdims=True) + 1) + np.square(0.3 * lost)
    common = np.square(y) * sums
    # Below float32's normal range an exponential keeps few bits, or is flushed to 0.
    flush = np.square(np.clip(y, 2.0**-149, 2.0**-126)) * (y < 2.0**-124)
    return Variance(inherited, _through(y, A.w3 * (np.square(shifted) + 4)) + common + np.square(y) * A.w3 + flush, common)


def bound(A: Arithmetic, y: Array, where: Where, x: Tensor) -> Array:
    """First order in the exponents' errors, γ_n for the normaliser in any order."""
    u, n = 2.0**-24, y.shape[-1]
    shifted = x.data - x.data.max(-1, keepdims=True)
    reach = np.expm1(2 * u * np.abs(shifted) + 6 * u)
    mean = (y * reach).sum(-1, keepdims=True)
    relative = (reach + mean + gamma(n + 2) + 2 * u) / np.maximum(1 - mean - gamma(n + 2), 2.0**-10)
    return np.asarray((y * np.broadcast_to(relative, y.shape))[where] + np.clip(y[where], 2.0**-149, 2.0**-124))


softmax = Operation("softmax", "norm", axes_of_first, shape_of_first, formula, noise, bound)
