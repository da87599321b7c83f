"""short_conv: causal depthwise convolution, ``y_t = Σ_k w_k x_{t - dilation (K - 1 - k)}``, each channel by itself, no bias.

Source: `specs/qwen38-flash-next.md` 1.6 step 2 and 1.8 step 7. Noise: `specs/noise-rules.md` 5.12.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle import summation
from oracle.arithmetic import Arithmetic
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Axes, Operation, Tensor, Variance, Weight, Where, gamma, is_zero
from oracle.ops.linear import narrowing


def axes(x: Tensor, history: Tensor, w: Weight, *, dilation: int = 1) -> Axes:
    return x.axes


def shape(x: Tensor, history: Tensor, w: Weight, *, dilation: int = 1) -> tuple[int, ...]:
    return x.data.shape


def _taps(x: NDArray[Any], history: NDArray[Any], count: int, dilation: int) -> NDArray[Any]:
    """The ``count`` values that every output reads: [row, *channel, tap], the oldest first."""
    reach = (count - 1) * dilation
    if history.shape != (reach, *x.shape[1:]):
        needed = f"{count} taps of dilation {dilation} need {reach} earlier rows of {x.shape[1:]}"
        raise ValueError(f"short_conv: {needed}, found {history.shape}")
    rows = np.concatenate([history, x])
    return np.stack([rows[k * dilation : k * dilation + len(x)] for k in range(count)], -1)


def formula(F: Kit, x: Values, history: Values, w: Weight, *, dilation: int = 1) -> Values:
    """x [row, *channel], history [(taps - 1) * dilation, *channel] (the rows before x), w [*channel, tap] -> like x."""
    return F.inner(_taps(F.cast(x), F.cast(history), w.width, dilation), F.vector(w))


def noise(A: Arithmetic, y: Array, x: Tensor, history: Tensor, w: Weight, *, dilation: int = 1) -> Variance:
    weights = w.array()
    products = _taps(x.data, history.data, w.width, dilation) * weights
    a, b = A.energy(w.width)
    own = A.w3 * (a * y**2 + b * np.square(products).sum(-1)) + narrowing(A.order, y)
    if is_zero(x.total) and is_zero(history.total):
        return Variance(0.0, own)
    return Variance((_taps(x.variance(), history.variance(), w.width, dilation) * np.square(weights)).sum(-1), own)


def bound(A: Arithmetic, y: Array, where: Where, x: Tensor, history: Tensor, w: Weight, *, dilation: int = 1) -> Array:
    products = _taps(x.data, history.data, w.width, dilation) * w.array()
    return np.asarray(gamma(w.width + 1) * np.abs(products[where]).sum(-1) + 2.0**-148)


def rejudge(A: Arithmetic, order: str, y: Array, where: Where, x: Tensor, history: Tensor, w: Weight, *, dilation: int = 1) -> Array:
    """u²/3 (Σ s_m² + Σ p²) of the suspects' own partial sums."""
    products = (_taps(x.data, history.data, w.width, dilation) * w.array())[where]
    energy = np.square(summation.partial_sums(products, order)).sum(-1)
    if not A.fma and summation.parse(order)[0] != "f64":
        energy = energy + np.square(products).sum(-1)
    return np.asarray(A.w3 * energy + narrowing(order, products.sum(-1)))


short_conv = Operation("short_conv", "linear", axes, shape, formula, noise, bound, rejudge)
