"""linear: ``y = x Wᵀ (+ b)``, the output axes declared by the weight.

Noise (`specs/noise-rules.md` 5.1): ``v = (W∘W)(vx + w3 b x∘x) + w3 a y²``, (a, b) the energy of the summation tree; of a
`BlockDot`, the roundings between its exact block sums only (5.2).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from oracle import summation
from oracle.arithmetic import Arithmetic
from oracle.block_dot import SUB, BlockDot, exact_energy
from oracle.floats import F32
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Axes, Operation, Tensor, Variance, Weight, Where, gamma, is_zero

_SUBNORMAL = (2.0**-149) ** 2 / 12


def axes(x: Tensor, w: Weight, bias: Weight | None = None) -> Axes:
    return (x.axes[0], *w.axes[:-1])


def shape(x: Tensor, w: Weight, bias: Weight | None = None) -> tuple[int, ...]:
    return (x.data.shape[0], *w.shape[:-1])


def _flat(x: Array, w: Weight) -> Array:
    flat = x.reshape(x.shape[0], -1)
    if flat.shape[1] != w.width:
        raise ValueError(f"linear: {w.name} takes {w.width} inputs, its input has {flat.shape[1]} (shape {x.shape})")
    return flat


def formula(F: Kit, x: Values, w: Weight, bias: Weight | None = None) -> Values:
    """x [row, ...] flattened to [row, in]; w [out..., in]; bias [out...] -> [row, out...]."""
    flat = _flat(x, w)
    product = _blockwise(F, flat, w) if isinstance(w, BlockDot) and F.dtype != np.float64 else F.dot(flat, w)
    y = product.reshape(x.shape[0], *w.shape[:-1])
    return y if bias is None else y + F.vector(bias)


def _blockwise(F: Kit, x: Values, w: BlockDot) -> Values:
    """[row, out] as a block kernel sums: blocks exactly, then one after another in the kit's dtype, the minima in a chain of their own."""
    out = np.empty((len(x), w.row_count), F.dtype)
    for start, stop in w.inner.spans(len(x)):
        scaled, minima = (np.moveaxis(F.cast(part), 0, -1) for part in w.sums(x.astype(np.float64), start, stop))
        out[:, start:stop] = summation.total(scaled, "sequential") + summation.total(minima, "sequential")
    return out


def noise(A: Arithmetic, y: Array, x: Tensor, w: Weight, bias: Weight | None = None) -> Variance:
    flat = _flat(x.data, w)
    spread_in = None if is_zero(x.total) else x.variance().reshape(flat.shape)
    sums = y if bias is None else y - bias.array()
    if isinstance(w, BlockDot):
        own = A.w3 * (w.energy(flat).reshape(y.shape) + sums**2) + w.width * _SUBNORMAL
        inherited = None if spread_in is None else _squared_products(spread_in, w)
    else:
        a, b = A.energy(w.width)
        squares, inherited = _squared_products(flat * flat, w), None if spread_in is None else _squared_products(spread_in, w)
        own = A.w3 * (a * sums**2 + b * squares.reshape(y.shape)) + w.width * _SUBNORMAL + narrowing(A.order, sums)
    if bias is not None:
        own = own + A.w3 * y**2
    return Variance(0.0 if inherited is None else inherited.reshape(y.shape), own)


def _squared_products(x: Array, w: Weight) -> Array:
    """``x (W∘W)ᵀ`` [row, out]."""
    out = np.empty((len(x), w.row_count))
    for start, stop, tile in w.tiles(len(x)):
        out[:, start:stop] = x @ (tile * tile).T
    return out


def narrowing(order: str, sums: Array) -> Array | float:
    """A sum kept in double is rounded to float32 once; in the other orders the last addition is that rounding."""
    return np.square(F32.ulp(sums)) / 12 if summation.parse(order)[0] == "f64" else 0.0


def _suspects(y: Array, where: Where, x: Tensor, w: Weight) -> tuple[Array, Array]:
    """Products [suspect, in] (of a block kernel: its exact block sums) and the values of the biased result at the suspects."""
    flat = _flat(x.data, w)
    out = np.ravel_multi_index(where[1:], y.shape[1:])
    if isinstance(w, BlockDot):
        return w.suspects(flat, where[0], out), y[where]
    rows = np.concatenate([w.tile(i, i + 1) for i in out])
    return flat[where[0]] * rows, y[where]


def bound(A: Arithmetic, y: Array, where: Where, x: Tensor, w: Weight, bias: Weight | None = None) -> Array:
    """γ_K (|W||x|), for any order; plus the rounding of the bias."""
    if isinstance(w, BlockDot):
        reach = w.reach(_flat(x.data, w), where[0], np.ravel_multi_index(where[1:], y.shape[1:]))
        return np.asarray(gamma(w.inner.width // SUB + 12) * reach)
    products, at = _suspects(y, where, x, w)
    return np.asarray(gamma(w.width + 1) * np.abs(products).sum(-1) + (2.0**-24 * np.abs(at) if bias is not None else 0.0))


def rejudge(A: Arithmetic, order: str, y: Array, where: Where, x: Tensor, w: Weight, bias: Weight | None = None) -> Array:
    """u²/3 (Σ s_m² + Σ p²): the exact energy of the suspects in the order; products are exact in double."""
    products, at = _suspects(y, where, x, w)
    if isinstance(w, BlockDot):
        return np.asarray(A.w3 * (exact_energy(products) + at**2) + w.width * _SUBNORMAL)
    energy = np.square(summation.partial_sums(products, order)).sum(-1)
    if not A.fma and summation.parse(order)[0] != "f64":
        energy = energy + np.square(products).sum(-1)
    energy = energy + (at**2 if bias is not None else 0.0)
    return np.asarray(A.w3 * energy + w.width * _SUBNORMAL + narrowing(order, products.sum(-1)))


def coherent(A: Arithmetic, y: Array, where: Where, x: Tensor, w: Weight, **_: Any) -> tuple[Array, Array]:
    """For suspects: the bound ``u Σ|s_m|`` of errors that all point one way, and the share of distinct products."""
    products, _at = _suspects(y, where, x, w)
    reach = 2.0**-24 * np.abs(summation.partial_sums(products, A.order)).sum(-1)
    distinct = np.array([len(np.unique(p)) / max(len(p), 1) for p in products])
    return reach, distinct


linear = Operation("linear", "linear", axes, shape, formula, noise, bound, rejudge)
