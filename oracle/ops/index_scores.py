"""index_scores: how much every complete block of cells matters to a row, ``s_b = scale Σ_h relu(q_h · k_b)``.

Blocks that are not complete at the row's position score 0 and cannot be selected. Source: `specs/qwen38-flash-next.md` 1.7
step 4. Noise: `specs/noise-rules.md` 5.1 per head; a negative product far from 0 has none, an exact 0 is structural (section 6).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle import summation
from oracle.arithmetic import Arithmetic
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Axes, Operation, Tensor, Variance, Where, gamma, is_zero

_REACH = 6.0


def axes(q: Tensor, k: Tensor, pos: Any, *, ratio: int, scale: float) -> Axes:
    return ("row", "block")


def shape(q: Tensor, k: Tensor, pos: Any, *, ratio: int, scale: float) -> tuple[int, ...]:
    return (q.data.shape[0], k.data.shape[0])


def complete(pos: Any, blocks: int, ratio: int) -> NDArray[np.bool_]:
    """Which blocks are complete for a row at position ``pos``: bool [row, block]."""
    return np.asarray((np.asarray(pos)[:, None] + 1) // ratio > np.arange(blocks)[None])


def formula(F: Kit, q: Values, k: Values, pos: Any, *, ratio: int, scale: float) -> Values:
    """q [row, head, dim], k [block, 1, dim] (normed and rotated at the block's first cell), pos int64 [row] -> [row, block]."""
    products = np.maximum(F.dot(F.cast(q), F.cast(k)[:, 0]), 0)
    scores = F.sum(np.moveaxis(products, 1, -1)) * F.dtype.type(scale)
    return np.asarray(np.where(complete(pos, len(k), ratio), scores, F.dtype.type(0)))


def noise(A: Arithmetic, y: Array, q: Tensor, k: Tensor, pos: Any, *, ratio: int, scale: float) -> Variance:
    keys = k.data[:, 0]
    a, b = A.energy(keys.shape[1])
    products = q.data @ keys.T
    own = A.w3 * (a * np.square(products) + b * np.square(q.data) @ np.square(keys).T)
    moved = np.zeros_like(own)
    if not (is_zero(q.total) and is_zero(k.total)):
        moved = q.variance() @ np.square(keys).T + np.square(q.data) @ k.variance()[:, 0].T
    active = products > -_REACH * np.sqrt(own + moved)
    a, b = summation.energy("sequential", q.data.shape[1])
    own = (active * own).sum(1) + A.w3 * b * np.square(np.maximum(products, 0)).sum(1)
    seen = complete(pos, len(keys), ratio)
    # A key's error is the same for every head of the row: the heads' queries add before they are squared.
    shared = np.square(np.einsum("rhd,rhb->rbd", q.data, active.astype(float)))
    inherited = (active * (q.variance() @ np.square(keys).T)).sum(1) + np.einsum("rbd,bd->rb", shared, k.variance()[:, 0])
    return Variance(np.where(seen, scale**2 * inherited, 0.0), np.where(seen, scale**2 * own + A.w3 * (a + 1) * np.square(y), 0.0))


def bound(A: Arithmetic, y: Array, where: Where, q: Tensor, k: Tensor, pos: Any, *, ratio: int, scale: float) -> Array:
    """γ over the products of every head and over the heads; relu never makes an error larger."""
    row, block = where
    terms = np.abs(q.data[row] * k.data[block, 0][:, None]).sum((1, 2))
    chain = gamma(q.data.shape[2] + q.data.shape[1] + 2)
    return np.asarray(np.where(complete(pos, len(k.data), ratio)[where], scale * chain * terms + 2.0**-148, 0.0))


def rejudge(A: Arithmetic, order: str, y: Array, where: Where, q: Tensor, k: Tensor, pos: Any, *, ratio: int, scale: float) -> Array:
    """u²/3 of the partial sums of every active head's product, of the heads' sum and of the scale."""
    row, block = where
    products = q.data[row] * k.data[block, 0][:, None]
    per_head = np.square(summation.partial_sums(products, order)).sum(-1)
    if not A.fma and summation.parse(order)[0] != "f64":
        per_head = per_head + np.square(products).sum(-1)
    totals = products.sum(-1)
    active = totals > -_REACH * np.sqrt(A.w3 * per_head)
    heads = np.square(summation.partial_sums(np.maximum(totals, 0), order)).sum(-1)
    return np.asarray(A.w3 * (scale**2 * ((active * per_head).sum(-1) + heads) + np.square(y[where])))


index_scores = Operation("index_scores", "linear", axes, shape, formula, noise, bound, rejudge, kinked=True)
