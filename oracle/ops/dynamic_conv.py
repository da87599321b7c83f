"""dynamic_conv: DFlash 2's grouped dynamic causal convolution over the rows of a block (`specs/dflash-generic.md` 14).

``y[t] = Σ_{j<K} (base[side, j] + kernel[t, side, j, c // s]) x[t-j]``, rows before the block being zero. Stages, under a layer:
``attn_kernel`` (a linear product of the normed input), ``attn_conv_in`` (side 0, replaces the sublayer's input) and
``attn_conv_out`` (side 1 of the same kernel, on the sublayer's output, before the residual sum); ``mlp_kernel`` … alike.
Noise (`specs/noise-rules.md` 5.12): a sum of K taps; the generated kernel's own error arrives with its tensor.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle import summation
from oracle.arithmetic import Arithmetic
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Operation, Tensor, Variance, Weight, Where, axes_of_first, gamma, is_zero, shape_of_first


def _taps(x: NDArray[Any], taps: int) -> NDArray[Any]:
    """x [row, dim] -> [row, tap, dim]: tap j of row t is x[t-j], zero before the block."""
    padded = np.concatenate([np.zeros((taps - 1, x.shape[1]), x.dtype), x])
    return np.stack([padded[taps - 1 - j : taps - 1 - j + len(x)] for j in range(taps)], 1)


def _channels(kernel: NDArray[Any], side: int, dim: int) -> NDArray[Any]:
    """One side of kernel [row, side, tap, group] over the channels: [row, tap, dim], channel c of group ``c // s``."""
    part = kernel[:, side]
    return np.repeat(part, dim // part.shape[-1], -1)


def formula(F: Kit, x: Values, kernel: Values, base: Weight, *, side: int) -> Values:
    """x [row, dim], kernel [row, side, tap, group], base [side, tap, dim] -> [row, dim]."""
    coefficients = F.vector(base)[side] + _channels(F.cast(kernel), side, x.shape[1])
    products = coefficients * _taps(F.cast(x), base.shape[1])
    return F.sum(np.moveaxis(products, 1, -1), "sequential")


def _addends(x: Tensor, kernel: Tensor, base: Weight, side: int) -> tuple[Array, Array, Array]:
    """Taps of x, coefficients and the energy of ``base x`` and ``kernel x`` taken apart; each [row, tap, dim]."""
    seen, fixed, made = _taps(x.data, base.shape[1]), base.array()[side], _channels(kernel.data, side, x.data.shape[1])
    return seen, fixed + made, np.square(fixed * seen) + np.square(made * seen)


def noise(A: Arithmetic, y: Array, x: Tensor, kernel: Tensor, base: Weight, *, side: int) -> Variance:
    """An engine may form the coefficient first or add ``base x`` and ``kernel x``: the energies of both are charged."""
    seen, coefficients, apart = _addends(x, kernel, base, side)
    squares = np.square(coefficients * seen).sum(1)
    a, b = summation.energy("sequential", base.shape[1])
    own = A.w3 * (a * np.square(y) + (b + 1) * squares + apart.sum(1))
    if is_zero(x.total) and is_zero(kernel.total):
        return Variance(0.0, own)
    through_x = (np.square(coefficients) * _taps(x.variance(), base.shape[1])).sum(1)
    return Variance(through_x + (np.square(seen) * _channels(kernel.variance(), side, x.data.shape[1])).sum(1), own)


def bound(A: Arithmetic, y: Array, where: Where, x: Tensor, kernel: Tensor, base: Weight, *, side: int) -> Array:
    """γ_(2K+1) Σ (|base x| + |kernel x|): any order of the 2K addends."""
    seen, fixed = np.abs(_taps(x.data, base.shape[1])), np.abs(base.array()[side])
    reach = ((fixed + np.abs(_channels(kernel.data, side, x.data.shape[1]))) * seen).sum(1)
    return np.asarray(gamma(2 * base.shape[1] + 1) * reach[where] + 2.0**-148)


dynamic_conv = Operation("dynamic_conv", "elementwise", axes_of_first, shape_of_first, formula, noise, bound)
