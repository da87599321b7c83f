"""stream_gate: one value for every stream, gated by the stream's own scalar, ``y_s = σ(g_s) x``.

Source: `specs/qwen38-flash-next.md` 1.8 step 5. Noise: the sigmoid gate of `specs/noise-rules.md` 5.9; the error of
the scalar is one relative error for the whole row of a stream.
"""

from __future__ import annotations

import numpy as np

from oracle.arithmetic import Arithmetic
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Axes, Operation, Tensor, Variance, Where
from oracle.ops.gate import gate
from oracle.ops.replicate import replicate
from oracle.ops.swiglu import sigmoid


def axes(x: Tensor, g: Tensor) -> Axes:
    return x.axes


def shape(x: Tensor, g: Tensor) -> tuple[int, ...]:
    return (x.data.shape[0], x.data.shape[1] * g.data.shape[1])


def formula(F: Kit, x: Values, g: Values) -> Values:
    """x [row, dim], g [row, stream] -> [row, stream * dim]."""
    copies = replicate.formula(F, x, copies=g.shape[1]).reshape(len(x), g.shape[1], -1)
    return gate.formula(F, copies, g, kind="sigmoid").reshape(len(x), -1)


def _streams(x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """x copied to every stream and the gate copied to every channel, both [row, stream, dim]."""
    streams, dim = g.data.shape[1], x.data.shape[1]
    copied = Tensor(x.data[:, None].repeat(streams, 1), ("row", "stream", "dim"), x.variance()[:, None].repeat(streams, 1))
    return copied, Tensor(g.data[..., None].repeat(dim, -1), copied.axes, g.variance()[..., None].repeat(dim, -1))


def noise(A: Arithmetic, y: Array, x: Tensor, g: Tensor) -> Variance:
    copied, gates = _streams(x, g)
    v = gate.noise(A, y.reshape(copied.data.shape), copied, gates, kind="sigmoid")
    scalar = A.w3 * (2 + 4 * np.square(1 - sigmoid(gates.data))) * np.square(y.reshape(copied.data.shape))
    inherited, own, common = (np.asarray(part).reshape(y.shape) for part in (v.inherited, v.own, scalar))
    return Variance(inherited, own, common)


def bound(A: Arithmetic, y: Array, where: Where, x: Tensor, g: Tensor) -> Array:
    copied, gates = _streams(x, g)
    row, column = where
    split = (row, column // x.data.shape[1], column % x.data.shape[1])
    return gate.bound(A, y.reshape(copied.data.shape), split, copied, gates, kind="sigmoid")


stream_gate = Operation("stream_gate", "norm", axes, shape, formula, noise, bound)
