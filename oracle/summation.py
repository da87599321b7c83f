"""Summation orders: how a sum is formed, and the error energy of its tree (`specs/noise-rules.md` section 3).

Names: ``sequential``, ``pairwise``, ``blocked:n`` (chunks of n from zero, then added in sequence), ``lanes:L`` (L
interleaved chains, then a tree of neighbours), ``lanes:LxW`` (the same, a lane taking W neighbours at a time), ``blas`` (the
library's own, unknown order), ``f64`` (accumulated in double).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.tensor import Array
from oracle.trees import Grower, Tree

Energy = tuple[float, float]


def parse(order: str) -> tuple[str, int]:
    """Split an order's name into (kind, parameter); ValueError names what is known."""
    kind, _, text = order.partition(":")
    if order in ("sequential", "pairwise", "blas", "f64"):
        return order, 0
    count, x, width = text.partition("x")
    if ((kind == "blocked" and not x) or kind == "lanes") and _positive(count) and (not x or _positive(width)):
        return kind, int(count)
    raise ValueError(f"summation order {order!r}: expected sequential, pairwise, blocked:n, lanes:n, lanes:nxw, blas or f64")


def _positive(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) > 0


def neighbours(order: str) -> int:
    """W of ``lanes:LxW``, 1 of ``lanes:L``: how many addends in a row one lane takes."""
    return int(order.partition("x")[2] or 1)


def lane_indices(order: str, terms: int) -> list[NDArray[np.intp]]:
    """Which addends each lane of an order of lanes takes, in their order; lanes without any are left out."""
    lane = np.arange(terms) // neighbours(order) % parse(order)[1]
    return [np.flatnonzero(lane == i) for i in range(lane.max(initial=-1) + 1)]


def _sequential(k: float) -> Energy:
    return (k + 1) * (2 * k + 1) / (6 * k), (k * k - 1) / (6 * k)


def _pairwise(k: float) -> Energy:
    n = 2.0 ** math.ceil(math.log2(max(k, 1)))
    return max(2 - 2 / n, 1.0), max(math.log2(n) - 2 + 2 / n, 0.0)


def energy(order: str, terms: int) -> Energy:
    """(a, b) of ``v_acc = u²/3 (a y² + b Σ p²)`` for a sum of ``terms`` addends; an unknown order counts as sequential."""
    kind, n = parse(order)
    k = max(terms, 1)
    if kind == "f64":
        return 0.0, 0.0
    if kind == "pairwise":
        return _pairwise(k)
    if kind == "blocked":
        n, chunks = min(n, k), math.ceil(k / min(n, k))
        (a_n, b_n), (a_c, b_c) = _sequential(n), _sequential(chunks)
        return a_n / chunks + a_c, a_n * (1 - 1 / chunks) + b_n + b_c
    if kind == "lanes":
        n = _used(order, k)
        (a_k, b_k), (a_p, b_p) = _sequential(math.ceil(k / n)), _pairwise(n)
        return a_k / n + a_p, a_k * (1 - 1 / n) + b_k + b_p
    return _sequential(k)


def depth(order: str, terms: int) -> int:
    """Longest chain of additions in the tree: the d of the deterministic bound γ_d. Unknown orders: ``terms``."""
    kind, n = parse(order)
    k = max(terms, 1)
    if kind == "f64":
        return 0
    if kind == "pairwise":
        return math.ceil(math.log2(k)) if k > 1 else 1
    if kind == "blocked":
        n = min(n, k)
        return n + math.ceil(k / n)
    if kind == "lanes":
        return len(lane_indices(order, k)[0]) + math.ceil(math.log2(_used(order, k))) + 1
    return k


def _used(order: str, terms: int) -> int:
    """Lanes that take any of ``terms`` addends."""
    return min(parse(order)[1], math.ceil(terms / neighbours(order)))


def tree(order: str, terms: int) -> Tree:
    """The tree of a sum of ``terms`` addends in the order; ValueError of an order that has none (``blas``, ``f64``)."""
    kind, n = parse(order)
    grower, leaves = Grower(terms), range(terms)
    if kind == "sequential":
        return grower.tree(grower.chain(leaves))
    if kind == "pairwise":
        return grower.tree(grower.balanced(leaves))
    if kind == "blocked":
        return grower.tree(grower.chain([grower.chain(leaves[i : i + n]) for i in range(0, terms, n)]))
    if kind == "lanes":
        return grower.tree(grower.balanced([grower.chain([int(i) for i in lane]) for lane in lane_indices(order, terms)]))
    raise ValueError(f"summation order {order!r} does not say in which order it adds")


def partial_sums(products: Array, order: str) -> Array:
    """Exact partial sums of ``products [..., k]`` in the order, float64 [..., additions]: the s_m of ``u²/3 Σ s_m²``."""
    kind, n = parse(order)
    k = products.shape[-1]
    if kind == "f64":
        return np.zeros((*products.shape[:-1], 1))
    if kind in ("sequential", "blas"):
        return np.cumsum(products, -1)
    if kind == "pairwise":
        return _tree(products)
    if kind == "blocked":
        padded = _pad(products, n)
        inner = np.cumsum(padded, -1)
        outer = np.cumsum(inner[..., -1], -1)
        return np.concatenate([inner.reshape(*products.shape[:-1], -1)[..., :k], outer], -1)
    lanes = _lanes(products, order)
    chains = np.cumsum(lanes, -1)
    return np.concatenate([chains.reshape(*products.shape[:-1], -1), _tree(chains[..., -1])], -1)


def _lanes(products: Array, order: str) -> Array:
    """[..., k] -> [..., lanes, longest chain], zeros at the end of the shorter ones."""
    indices = lane_indices(order, products.shape[-1])
    out = np.zeros((*products.shape[:-1], len(indices), len(indices[0])))
    for i, index in enumerate(indices):
        out[..., i, : len(index)] = products[..., index]
    return out


def _pad(products: Array, n: int) -> Array:
    """[..., k] -> [..., chunks, n], zeros at the end."""
    k = products.shape[-1]
    chunks = -(-k // n)
    out = np.zeros((*products.shape[:-1], chunks * n))
    out[..., :k] = products
    return out.reshape(*products.shape[:-1], chunks, n)


def _tree(leaves: Array) -> Array:
    level, sums = leaves, []
    while level.shape[-1] > 1:
        level = _fold(level)
        sums.append(level)
    return np.concatenate(sums, -1) if sums else leaves


def _fold(level: NDArray[Any]) -> NDArray[Any]:
    if level.shape[-1] % 2:
        level = np.concatenate([level, np.zeros_like(level[..., :1])], -1)
    return np.asarray(level[..., 0::2] + level[..., 1::2])


def total(x: NDArray[Any], order: str) -> NDArray[Any]:
    """Sum of ``x [..., k]`` along the last axis, every addition rounded in x's own dtype, in the order."""
    kind, n = parse(order)
    k = x.shape[-1]
    if kind == "f64":
        return np.asarray(x.sum(-1, dtype=np.float64).astype(x.dtype))
    if kind == "blas":
        return np.asarray(x.sum(-1))
    if kind == "sequential":
        return np.asarray(np.add.accumulate(x, -1)[..., -1])
    if kind == "pairwise":
        while x.shape[-1] > 1:
            x = _fold(x)
        return np.asarray(x[..., 0])
    if kind == "blocked":
        parts = [np.add.accumulate(x[..., i : i + n], -1)[..., -1] for i in range(0, k, n)]
        return np.asarray(np.add.accumulate(np.stack(parts, -1), -1)[..., -1])
    lanes = [np.add.accumulate(x[..., index], -1)[..., -1] for index in lane_indices(order, k)]
    return total(np.stack(lanes, -1), "pairwise")
