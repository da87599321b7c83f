"""hc_read: a hyper-connection's read, ``y = (1/C) Σ_s σ(g_s) x_s`` over C streams side by side.

The streams are the *normed* ones (`specs/qwen38-flash-next.md` 1.5 S3); g is the low-rank gate before its sigmoid.
Noise: `specs/noise-rules.md` 5.12.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle import summation
from oracle.arithmetic import Arithmetic
from oracle.floats import F32
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Axes, Operation, Tensor, Variance, Where
from oracle.ops.swiglu import sigmoid


def axes(x: Tensor, g: Tensor, *, streams: int) -> Axes:
    return x.axes


def shape(x: Tensor, g: Tensor, *, streams: int) -> tuple[int, ...]:
    return (x.data.shape[0], x.data.shape[1] // streams)


def by_stream(x: NDArray[Any], streams: int) -> NDArray[Any]:
    """[row, stream * dim] -> [row, stream, dim]."""
    if x.shape[1] % streams:
        raise ValueError(f"hyper-connection: {x.shape[1]} values are not {streams} streams of one width")
    return x.reshape(len(x), streams, -1)


def formula(F: Kit, x: Values, g: Values, *, streams: int) -> Values:
    """x and g [row, stream * dim] -> [row, dim]."""
    one = F.dtype.type(1)
    with np.errstate(over="ignore"):
        gates = F.held(one / (one + np.exp(-by_stream(F.cast(g), streams))), ulps=3)
    gated = F.held(by_stream(F.cast(x), streams) * gates, ulps=0)
    return np.asarray(F.sum(np.moveaxis(gated, 1, -1)) / F.dtype.type(streams))


def noise(A: Arithmetic, y: Array, x: Tensor, g: Tensor, *, streams: int) -> Variance:
    n, s = by_stream(x.data, streams), sigmoid(by_stream(g.data, streams))
    vn, vg = by_stream(x.variance(), streams), by_stream(g.variance(), streams)
    inherited = (np.square(s) * vn + np.square(n * s * (1 - s)) * vg).sum(1) / streams**2
    gated = np.square(s * n)
    a, b = summation.energy("sequential", streams)
    own = A.w3 * (gated * (3 + 4 * np.square(1 - s)) + b * gated).sum(1) / streams**2
    flush = np.square(2.0**-126 * np.where(by_stream(g.data, streams) < -87.3, n, 0.0)).sum(1)
    return Variance(inherited, own + A.w3 * (a + (np.frexp(streams)[0] != 0.5)) * np.square(y) + flush + (2.0**-149) ** 2)


def bound(A: Arithmetic, y: Array, where: Where, x: Tensor, g: Tensor, *, streams: int) -> Array:
    n, z = by_stream(x.data, streams), by_stream(g.data, streams)
    gated = np.abs(n * sigmoid(z)).sum(1)[where] / streams
    flush = (np.where(z < -87.3, 2.0**-125, 0.0) * np.abs(n)).sum(1)[where]
    return np.asarray(gated * (12 + streams) * F32.u + flush + 2.0**-148)


hc_read = Operation("hc_read", "elementwise", axes, shape, formula, noise, bound)
