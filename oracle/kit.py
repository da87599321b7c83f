"""Float kits: a dtype and a summation order. A formula is written once against a kit and read in any of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle import summation
from oracle.block_dot import BlockDot
from oracle.weights import Weight

Values = NDArray[Any]


class Kit:
    """``dtype``: the dtype of every intermediate. ``order``: summation order of dot products, ``norm_sum`` of norms.

    ``stretches_input``: YaRN's factor multiplies what is rotated, not the tables of cosines and sines.
    """

    stretches_input = False

    def __init__(self, dtype: Any, order: str = "blas", norm_sum: str | None = None) -> None:
        self.dtype = np.dtype(dtype)
        self.order = order
        self.norm_sum = norm_sum or order

    def cast(self, x: Any) -> Values:
        return np.asarray(x, self.dtype)

    def held(self, x: Values, ulps: Any = 1.0) -> Values:
        """A value between two steps of one operation. An engine that runs the steps as operations of their own writes it to memory, in
        its storage format (`oracle.eager`); here it stays as it is. ``ulps``: standard deviation of what such an engine has there, in
        float32 units of ``x``, a number or like ``x``; 0 where float32 holds it exactly.
        """
        return x

    def held_sum(self, x: Values) -> Values:
        """Sum along the last axis; an engine of single operations writes every partial sum."""
        return self.sum(x)

    def constant(self, value: float) -> Any:
        """A scalar of the model (a scale, a cap) as it meets an array."""
        return self.dtype.type(value)

    def scale(self, w: Weight, offset: float) -> Values:
        """A norm's weight and what is added to it."""
        return np.asarray(self.vector(w) + self.dtype.type(offset))

    def sigmoid(self, x: Values) -> Values:
        """1 / (1 + e^-x), held."""
        one = self.dtype.type(1)
        with np.errstate(over="ignore"):
            return self.held(one / (one + np.exp(-x)), ulps=3)

    def silu(self, x: Values) -> Values:
        """x / (1 + e^-x), held."""
        with np.errstate(over="ignore"):
            return self.held(x / (self.dtype.type(1) + np.exp(-x)), ulps=3)

    def vector(self, w: Weight) -> Values:
        """A small weight (norm, bias) as an array in its logical shape."""
        return self.cast(w.array())

    def dot(self, x: Values, w: Weight | Values) -> Values:
        """``x [..., in] @ w [rows, in]ᵀ`` -> [..., rows]; a `Weight` streams through tiles."""
        x = self.cast(x)
        if not isinstance(w, Weight):
            return self._dot(x, self.cast(w))
        if isinstance(w, BlockDot) and self.dtype != np.float64:
            return w.rounded(x)
        out = np.empty((*x.shape[:-1], w.row_count), self.dtype)
        for start, stop, tile in w.tiles(x.size // x.shape[-1] if x.size else 1):
            out[..., start:stop] = self._dot(x, self.cast(tile))
        return out

    def _dot(self, x: Values, w: Values) -> Values:
        kind, n = summation.parse(self.order)
        if kind in ("blas", "f64") or self.dtype == np.float64:
            wide = np.float64 if kind == "f64" else self.dtype
            return np.asarray((x.astype(wide, copy=False) @ w.T.astype(wide, copy=False)).astype(self.dtype, copy=False))
        k = x.shape[-1]
        if kind == "pairwise":
            return summation.total(x[..., None, :] * w, "pairwise")
        if kind == "lanes":
            lanes = [self._chain(x[..., i], w[:, i]) for i in summation.lane_indices(self.order, k)]
            return summation.total(np.stack(lanes, -1), "pairwise")
        step = n if kind == "blocked" else k
        chunks = [self._chain(x[..., i : i + step], w[:, i : i + step]) for i in range(0, k, step)]
        return summation.total(np.stack(chunks, -1), "sequential")

    def _chain(self, x: Values, w: Values) -> Values:
        """Sequential sum of products, each product and each addition rounded in the kit's dtype."""
        total = x[..., 0, None] * w[:, 0]
        for i in range(1, x.shape[-1]):
            total = total + x[..., i, None] * w[:, i]
        return np.asarray(total)

    def inner(self, x: Values, y: Values, held: bool = False) -> Values:
        """``Σ x y`` along the last axis, broadcast over the others, in the kit's order: products are rounded unless the sum is double.

        ``held``: an engine of single operations writes the products.
        """
        if summation.parse(self.order)[0] == "f64":
            return np.asarray((x.astype(np.float64) * y).sum(-1).astype(self.dtype))
        return self.sum(self.held(x * y, ulps=0) if held else x * y)

    def sum(self, x: Values, order: str | None = None) -> Values:
        """Sum along the last axis in the kit's order."""
        return summation.total(self.cast(x), order or self.order)


EXACT = Kit(np.float64)
