"""sink_attention: attention whose softmax has one more term per head, a learned score without a value (`specs/dflash-generic.md` 10).

``a = Σ e^(z_k - m) v_k / (e^(s - m) + Σ e^(z_k - m))``, m the largest score, the sink's included. A row that sees no cell gives zeros.
Noise: `specs/noise-rules.md` 5.7 with these probabilities, which sum to less than 1, and the sink's own exponential and addition.
"""

from __future__ import annotations

import numpy as np

from oracle.arithmetic import Arithmetic
from oracle.kit import Kit, Values
from oracle.ops.attention import Head, averaged, bound_of, group, heads_of, noise_of, rejudge_of
from oracle.ops.base import Array, Operation, Tensor, Variance, Weight, Where, axes_of_first, shape_of_first
from oracle.recipes import Visible


def formula(
    F: Kit, q: Values, k: Values, v: Values, sinks: Weight, *, visible: Visible, scale: float, probabilities: str = "f32"
) -> Values:
    """q [row, head, dim], k and v [cell, kv head, dim], sinks [head] -> [row, head, dim]; ``probabilities`` as `attention` has it."""
    out = np.zeros(q.shape, F.dtype)
    seen, g, extra = visible.matrix(), group(q, k), F.vector(sinks)
    rows = seen.any(1)
    for h in range(q.shape[1]):
        scores = F.dot(q[rows, h], k[:, h // g]) * F.dtype.type(scale)
        scores = np.where(seen[rows], scores, F.dtype.type(-np.inf))
        top = np.maximum(scores.max(-1, keepdims=True), extra[h])
        e = np.exp(scores - top)
        out[rows, h] = averaged(F, e, F.sum(e)[:, None] + np.exp(extra[h] - top), v[:, h // g], probabilities)
    return out


def _sink(head: Head, score: float) -> tuple[Array, Array]:
    """(probability, distance below the largest score) of a head's sink, each [row, 1]."""
    shift = np.minimum(score - np.max(np.where(head.p > 0, head.s, -np.inf), -1, keepdims=True, initial=-np.inf), 0.0)
    return 1 - head.p.sum(-1, keepdims=True), np.where(np.isfinite(shift), shift, 0.0)


def noise(
    A: Arithmetic,
    y: Array,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Weight,
    *,
    visible: Visible,
    scale: float,
    probabilities: str = "f32",
) -> Variance:
    heads = heads_of(y, q, k, v, visible, scale, sinks.array())
    return noise_of(A, y, heads, q, k, v, visible=visible, scale=scale, probabilities=probabilities)


def bound(
    A: Arithmetic,
    y: Array,
    where: Where,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Weight,
    *,
    visible: Visible,
    scale: float,
    probabilities: str = "f32",
) -> Array:
    """Attention's bound, and what the sink's exponential and addition can move."""
    u, extra = 2.0**-24, sinks.array()
    heads = heads_of(y, q, k, v, visible, scale, extra)
    out = bound_of(where, heads, visible, scale, probabilities)
    for i, (row, h, d) in enumerate(zip(*where, strict=True)):
        p, shift = (float(x[row, 0]) for x in _sink(heads[h], extra[h]))
        error = float(np.expm1(2 * u * abs(shift) + 6 * u))
        out[i] = (out[i] + (p * error + 2 * u) * abs(heads[h].o[row, d])) * (1 + 4 * error)
    return out


def rejudge(
    A: Arithmetic,
    order: str,
    y: Array,
    where: Where,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Weight,
    *,
    visible: Visible,
    scale: float,
    probabilities: str = "f32",
) -> Array:
    """Attention's own variance from its partial sums, and the sink's."""
    return rejudge_of(A, order, where, heads_of(y, q, k, v, visible, scale, sinks.array()), visible, scale, probabilities)


sink_attention = Operation("sink_attention", "attention", axes_of_first, shape_of_first, formula, noise, bound, rejudge)
