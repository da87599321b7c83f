"""ple_gate: how strongly each stream asks for the n-gram's value, ``sign(d) sqrt(max(|d|, floor))`` with ``d = key · query / sqrt(n)``.

A product of exactly 0 gives 0. Source: `specs/qwen38-flash-next.md` 1.8 step 4. Noise: `specs/noise-rules.md` 5.1 for d, through
the root's slope; within reach of 0 the sign is open and the whole jump of twice the floor's root counts as noise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.arithmetic import Arithmetic
from oracle.floats import F32
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Axes, Operation, Tensor, Variance, Where, gamma
from oracle.ops.hc_read import by_stream

FLOOR = 1e-6
_REACH = 6.0


def axes(key: Tensor, query: Tensor, *, streams: int) -> Axes:
    return ("row", "stream")


def shape(key: Tensor, query: Tensor, *, streams: int) -> tuple[int, ...]:
    return (key.data.shape[0], streams)


def _both(key: NDArray[Any], query: NDArray[Any], streams: int) -> tuple[NDArray[Any], NDArray[Any]]:
    return by_stream(key, streams), by_stream(query, streams)


def formula(F: Kit, key: Values, query: Values, *, streams: int) -> Values:
    """key and query [row, stream * dim] -> [row, stream]."""
    k, q = _both(F.cast(key), F.cast(query), streams)
    total = F.inner(k, q, held=True)
    cancelled = np.sqrt(np.square(k * q).sum(-1)) / np.maximum(np.abs(total), 2.0**-60)
    d = F.held(F.held(total, ulps=2 + 2 * cancelled) / F.dtype.type(np.sqrt(k.shape[-1])))
    return np.asarray(np.sign(d) * np.sqrt(np.maximum(np.abs(d), F.dtype.type(FLOOR))))


def _through(v: Array, d: Array) -> Array:
    """Variance of the root from that of d, the floor's flat part and the jump at 0 included."""
    slope = np.where(np.abs(d) > FLOOR, 0.25 / np.maximum(np.abs(d), FLOOR), 0.0)
    near = np.abs(d) < _REACH * np.sqrt(v)
    edge = np.where(np.abs(d) < FLOOR + _REACH * np.sqrt(v), 0.25 / FLOOR, slope)
    return np.asarray(edge * v + np.where(near, 4 * FLOOR, 0.0))


def noise(A: Arithmetic, y: Array, key: Tensor, query: Tensor, *, streams: int) -> Variance:
    k, q = _both(key.data, query.data, streams)
    n = k.shape[-1]
    a, b = A.energy(n)
    d = (k * q).sum(-1) / np.sqrt(n)
    # The product is divided by a rounded root of n.
    sums = A.w3 * ((a + 2) * np.square(d) + b * np.square(k * q).sum(-1) / n)
    vk, vq = _both(key.variance(), query.variance(), streams)
    moved = (np.square(k) * vq + np.square(q) * vk).sum(-1) / n
    both, own = _through(sums + moved, d), _through(sums, d)
    return Variance(np.maximum(both - own, 0), own + A.w3 * np.square(y))


def bound(A: Arithmetic, y: Array, where: Where, key: Tensor, query: Tensor, *, streams: int) -> Array:
    """The root of the two ends of d's own interval."""
    k, q = _both(key.data, query.data, streams)
    n = k.shape[-1]
    d = ((k * q).sum(-1) / np.sqrt(n))[where]
    reach = gamma(n + 3) * (np.abs(k * q).sum(-1) / np.sqrt(n))[where]

    def root(x: Array) -> Array:
        return np.asarray(np.sign(x) * np.sqrt(np.maximum(np.abs(x), FLOOR)))

    return np.asarray(np.maximum(root(d + reach) - root(d), root(d) - root(d - reach)) + 2 * F32.u * np.abs(y[where]) + 2.0**-148)


ple_gate = Operation("ple_gate", "linear", axes, shape, formula, noise, bound)
