"""expert_sum: what a row's experts made, weighted and summed in the order of their ranks: ``y_r = Σ_j w_rj y_rj``.

Source: `specs/laguna.md` 1.3 (14f); noise: `specs/noise-rules.md` 5.10, last line. Engines that apply the routed factor to the
sum instead of the weights round once more.
"""

from __future__ import annotations

import numpy as np

from oracle.arithmetic import Arithmetic
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Axes, Operation, Tensor, Variance, Where, gamma, is_zero


def axes(y: Tensor, weights: Tensor) -> Axes:
    return (y.axes[0], *y.axes[2:])


def shape(y: Tensor, weights: Tensor) -> tuple[int, ...]:
    return (y.data.shape[0], *y.data.shape[2:])


def formula(F: Kit, y: Values, weights: Values) -> Values:
    """y [row, rank, dim], weights [row, rank] -> [row, dim]."""
    return F.held_sum(F.held(np.moveaxis(F.cast(weights)[..., None] * F.cast(y), 1, -1), ulps=0))


def noise(A: Arithmetic, out: Array, y: Tensor, weights: Tensor) -> Variance:
    w = weights.data[..., None]
    inherited: Array | float = 0.0
    if not (is_zero(y.total) and is_zero(weights.total)):
        inherited = (np.square(w) * y.variance() + np.square(y.data) * weights.variance()[..., None]).sum(1)
    a, b = A.energy(weights.data.shape[1])
    return Variance(inherited, A.w3 * ((a + 1) * np.square(out) + b * np.square(w * y.data).sum(1)))


def bound(A: Arithmetic, out: Array, where: Where, y: Tensor, weights: Tensor) -> Array:
    """γ_(k+2) Σ |w y|, for any order and either place of the factor."""
    rows, dims = where
    terms = np.abs(weights.data[rows] * y.data[rows, :, dims]).sum(-1)
    return np.asarray(gamma(weights.data.shape[1] + 2) * terms + 2.0**-148)


expert_sum = Operation("expert_sum", "linear", axes, shape, formula, noise, bound)
