"""Fused q, k, v matrices, joined as published and taken apart as they were not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from oracle.tensor import Array
from oracle.weights import Weight

Heads = list[Array]


def _grouped(q: Heads, k: Heads, v: Heads) -> Heads:
    """The query heads of a group, then its key and value heads: the layout of matrices fused by group."""
    return [h for g in range(len(k)) for part in (q, k, v) for h in part[g * len(part) // len(k) : (g + 1) * len(part) // len(k)]]


def _interleaved(q: Heads, k: Heads, v: Heads) -> Heads:
    """A head of each side by side, as where all have equally many; what is left of them behind."""
    return [h for triple in zip(q, k, v, strict=False) for h in triple] + q[len(k) :] + v[len(k) :]


LAYOUTS: dict[str, Callable[[Heads, Heads, Heads], Heads]] = {
    "q, v, k": lambda q, k, v: q + v + k,
    "k, q, v": lambda q, k, v: k + q + v,
    "v, k, q": lambda q, k, v: v + k + q,
    "by group": _grouped,
    "interleaved": _interleaved,
    "query heads in reverse": lambda q, k, v: q[::-1] + k + v,
}


def permuted(layout: str, q: Weight, k: Weight, v: Weight) -> tuple[Weight, Weight, Weight]:
    """The three matrices [head, dim, in] joined in ``layout`` and taken apart as q, k, v. A query head may hold its gate as well."""
    parts = [list(w.array().reshape(-1, *k.shape[1:])) for w in (q, k, v)]
    heads = np.stack(LAYOUTS[layout](*parts) if layout in LAYOUTS else [h for part in parts for h in part])
    cuts = np.split(heads, np.cumsum([len(p) for p in parts])[:-1])
    made = [Weight.of(c.reshape(w.shape), w.axes, w.stored, w.name) for c, w in zip(cuts, (q, k, v), strict=True)]
    return made[0], made[1], made[2]
