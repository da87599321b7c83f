"""rms_norm: ``y_i = W_i x_i r``, ``r = (mean x² + eps)^-1/2`` over the last axis or each of its groups, W = w or offset + w.

Noise: `specs/noise-rules.md` 5.3. The factor r is one relative error for the whole row.
"""

from __future__ import annotations

import numpy as np

from oracle import summation
from oracle.arithmetic import Arithmetic
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Operation, Tensor, Variance, Weight, Where, axes_of_first, gamma, is_zero, shape_of_first


def formula(F: Kit, x: Values, w: Weight | None, *, eps: float, offset: float = 0.0, groups: int = 1) -> Values:
    """x [..., n], w [n] or None (weightless) -> like x; the last axis is normed in ``groups`` equal parts, each by itself."""
    shape, x = x.shape, _grouped(F.cast(x), groups)
    mean = F.sum(x * x, F.norm_sum) / F.dtype.type(x.shape[-1])
    normed = (x / np.sqrt(mean + F.dtype.type(eps))[..., None]).reshape(shape)
    return np.asarray(normed if w is None else F.held(normed, ulps=4) * F.scale(w, offset))


def _grouped(x: Values, groups: int) -> Values:
    """[..., n] -> [..., groups, n / groups]."""
    return x if groups == 1 else x.reshape(*x.shape[:-1], groups, -1)


def _scale(w: Weight | None, offset: float, groups: int) -> Array | float:
    return 1.0 if w is None else _grouped(w.array() + offset, groups)


def noise(A: Arithmetic, y: Array, x: Tensor, w: Weight | None, *, eps: float, offset: float = 0.0, groups: int = 1) -> Variance:
    shape, d, y = y.shape, _grouped(x.data, groups), _grouped(y, groups)
    n = d.shape[-1]
    square = np.square(d)
    r2 = 1 / (square.mean(-1, keepdims=True) + eps)
    inherited: Array | float = 0.0
    if not is_zero(x.total):
        rho, vx = square * r2 / n, _grouped(x.variance(), groups)
        mixed = vx * (1 - 2 * rho) + rho * (rho * vx).sum(-1, keepdims=True)
        inherited = (_scale(w, offset, groups) ** 2 * r2 * np.maximum(mixed, 0)).reshape(shape)
    a, b = summation.energy(A.norm_sum, n)
    total = square.sum(-1, keepdims=True)
    share = total / (total + n * eps)
    with np.errstate(invalid="ignore", divide="ignore"):
        peaked = np.where(total > 0, np.square(square).sum(-1, keepdims=True) / np.square(total), 0.0)
    sum_terms = 0.0 if summation.parse(A.norm_sum)[0] == "f64" else a + (b + 1) * peaked
    common = y**2 * A.w3 * (2 + sum_terms * np.square(share) / 4)
    own = common + y**2 * A.w3 * (2 + (offset != 0))
    return Variance(inherited, own.reshape(shape), common.reshape(shape))


def bound(A: Arithmetic, y: Array, where: Where, x: Tensor, w: Weight | None, *, eps: float, offset: float = 0.0, groups: int = 1) -> Array:
    """|y| (γ_d/2 + 6u), d the longest chain of the sum of squares."""
    d = summation.depth(A.norm_sum if A.declared else "sequential", x.data.shape[-1] // groups)
    return np.asarray(np.abs(y[where]) * (gamma(d + 1) / 2 + 6 * 2.0**-24) + 2.0**-149)


rms_norm = Operation("rms_norm", "norm", axes_of_first, shape_of_first, formula, noise, bound)
