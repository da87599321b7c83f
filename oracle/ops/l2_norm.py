"""l2_norm: ``y = scale x / sqrt(Σ x² + eps)`` over the last axis: the sum, not the mean, and no weight.

Source: `specs/qwen38-flash-next.md` 1.6 step 4. Noise: `specs/noise-rules.md` 5.3 with the sum in the place of the mean.
"""

from __future__ import annotations

import numpy as np

from oracle import summation
from oracle.arithmetic import Arithmetic
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Operation, Tensor, Variance, Where, axes_of_first, gamma, is_zero, shape_of_first


def formula(F: Kit, x: Values, *, eps: float, scale: float = 1.0) -> Values:
    """x [..., n] -> like x."""
    x = F.cast(x)
    normed = x / np.sqrt(F.sum(x * x, F.norm_sum) + F.dtype.type(eps))[..., None]
    return normed if scale == 1.0 else np.asarray(normed * F.dtype.type(scale))


def noise(A: Arithmetic, y: Array, x: Tensor, *, eps: float, scale: float = 1.0) -> Variance:
    square = np.square(x.data)
    total = square.sum(-1, keepdims=True)
    r2 = 1 / (total + eps)
    inherited: Array | float = 0.0
    if not is_zero(x.total):
        rho, vx = square * r2, x.variance()
        inherited = scale**2 * r2 * np.maximum(vx * (1 - 2 * rho) + rho * (rho * vx).sum(-1, keepdims=True), 0)
    a, b = summation.energy(A.norm_sum, x.data.shape[-1])
    with np.errstate(invalid="ignore", divide="ignore"):
        peaked = np.where(total > 0, np.square(square).sum(-1, keepdims=True) / np.square(total), 0.0)
    sum_terms = 0.0 if summation.parse(A.norm_sum)[0] == "f64" else a + (b + 1) * peaked
    common = y**2 * A.w3 * (2 + sum_terms * np.square(total * r2) / 4)
    return Variance(inherited, common + y**2 * A.w3 * (1 + (scale != 1.0)), common)


def bound(A: Arithmetic, y: Array, where: Where, x: Tensor, *, eps: float, scale: float = 1.0) -> Array:
    """|y| (γ_d/2 + 6u), d the longest chain of the sum of squares."""
    d = summation.depth(A.norm_sum if A.declared else "sequential", x.data.shape[-1])
    return np.asarray(np.abs(y[where]) * (gamma(d + 1) / 2 + 6 * 2.0**-24) + 2.0**-149)


l2_norm = Operation("l2_norm", "norm", axes_of_first, shape_of_first, formula, noise, bound)
