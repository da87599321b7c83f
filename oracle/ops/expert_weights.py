"""expert_weights: the selected experts' own scores, without the selection bias, normalised to a sum of 1, times a factor.

Source: `specs/laguna.md` 1.3 (14e); noise: `specs/noise-rules.md` 5.10. The normaliser is one relative error for the whole row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle import summation
from oracle.arithmetic import Arithmetic
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Axes, Operation, Tensor, Variance, Where, gamma, is_zero
from oracle.ops.expert_linear import indices
from oracle.ops.open_choices import chosen


def axes(scores: Tensor, selected: Tensor, *, normalise: bool = True, scale: float = 1.0) -> Axes:
    return selected.axes


def shape(scores: Tensor, selected: Tensor, *, normalise: bool = True, scale: float = 1.0) -> tuple[int, ...]:
    return selected.data.shape


def _gathered(scores: NDArray[Any], selected: Values) -> NDArray[Any]:
    return np.take_along_axis(scores, indices(selected, scores.shape[-1]), -1)


def formula(F: Kit, scores: Values, selected: Values, *, normalise: bool = True, scale: float = 1.0) -> Values:
    """scores [row, expert], selected [row, rank] -> weights [row, rank], ``scale`` times the (normalised) scores."""
    s = _gathered(F.cast(scores), selected)
    if normalise:
        s = s / F.sum(s)[..., None]
    return np.asarray(s if scale == 1.0 else F.held(s, ulps=3) * F.dtype.type(scale))


def noise(A: Arithmetic, y: Array, scores: Tensor, selected: Tensor, *, normalise: bool = True, scale: float = 1.0) -> Variance:
    s = _gathered(scores.data, selected.data)
    vs = None if is_zero(scores.total) else _gathered(scores.variance(), selected.data)
    own = np.square(y) * A.w3 * (0 if scale == 1.0 else 1)
    other = chosen(selected, y.shape)
    if not normalise:
        return Variance((0.0 if vs is None else scale**2 * vs) + other, own)
    total = s.sum(-1, keepdims=True)
    share = s / total
    inherited: Array | float = 0.0
    if vs is not None:
        mixed = vs * (1 - 2 * share) + np.square(share) * vs.sum(-1, keepdims=True)
        inherited = np.square(scale / total) * np.maximum(mixed, 0)
    a, b = summation.energy(A.order, s.shape[-1])
    common = np.square(y) * A.w3 * (a + b * np.square(share).sum(-1, keepdims=True))
    return Variance(inherited + other, common + own + np.square(y) * A.w3, common)


def bound(A: Arithmetic, y: Array, where: Where, scores: Tensor, selected: Tensor, **_: Any) -> Array:
    return np.asarray(np.abs(y[where]) * (gamma(y.shape[-1] + 1) + 3 * 2.0**-24) * 1.001 + 2.0**-148)


expert_weights = Operation("expert_weights", "norm", axes, shape, formula, noise, bound)
