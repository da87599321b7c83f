"""Random calls of the operations that have an entry point of their own in ``dlab.h``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from oracle.readings import Stage
from oracle.recipes import Rope, Visible
from parity.conformance.named_calls import HEADS, ROWS, Rng, many, real, stage, weight, wide


def _rms_norm(rng: Rng) -> Stage:
    n = wide(rng)
    return stage("rms_norm", real(rng, ROWS, many(rng), n), weight(rng, ("dim",), n), eps=1e-5, offset=float(rng.integers(0, 2)))


def _linear(rng: Rng) -> Stage:
    n, m = wide(rng), many(rng, 1, 40)
    bias = weight(rng, ("dim",), m) if rng.random() < 0.3 else None
    return stage("linear", real(rng, ROWS, many(rng), n), weight(rng, ("dim", "in"), m, n), bias)


def _rope(rng: Rng) -> Stage:
    rows, dim = many(rng), 2 * many(rng, 1, 20)
    recipe = Rope(10000.0, dim, str(rng.choice(["neox", "interleaved"])))
    x = real(rng, HEADS, rows, many(rng, 1, 4), dim + int(rng.integers(0, 5)))
    return stage("rope", x, np.arange(rows, dtype=np.int64) + int(rng.integers(0, 3000)), recipe)


def _attention(rng: Rng) -> Stage:
    rows, cells, shared, dim = many(rng), many(rng, 9, 40), many(rng, 1, 4), many(rng, 1, 70)
    q_pos, k_pos = np.arange(cells - rows, cells, dtype=np.int64), np.arange(cells, dtype=np.int64)
    visible = Visible("none", True, None, q_pos, k_pos, cells - rows)
    q = real(rng, HEADS, rows, 2 * shared, dim)
    k, v = (real(rng, ("cell", "head", "dim"), cells, shared, dim) for _ in "kv")
    return stage("attention", q, k, v, visible=visible, scale=dim**-0.5)


def _gate(rng: Rng) -> Stage:
    rows, heads = many(rng), many(rng, 1, 5)
    x, g = real(rng, HEADS, rows, heads, many(rng, 1, 40)), real(rng, ("row", "head"), rows, heads)
    return stage("gate", x, g, kind=str(rng.choice(["sigmoid", "softplus"])))


def _swiglu(rng: Rng) -> Stage:
    rows, n = many(rng), wide(rng)
    return stage("swiglu", real(rng, ROWS, rows, n), real(rng, ROWS, rows, n))


def _add(rng: Rng) -> Stage:
    rows, n = many(rng), wide(rng)
    return stage("add", real(rng, ROWS, rows, n), real(rng, ROWS, rows, n))


def _gather(rng: Rng) -> Stage:
    table = weight(rng, ("vocab", "dim"), 50, wide(rng))
    return stage("gather", table, rng.integers(0, 50, many(rng)).astype(np.int64), scale=float(rng.choice([1.0, 3.5])))


def _softmax(rng: Rng) -> Stage:
    return stage("softmax", real(rng, ROWS, many(rng), wide(rng), scale=3.0))


def _softcap(rng: Rng) -> Stage:
    return stage("softcap", real(rng, ROWS, many(rng), wide(rng)), scale=0.5, cap=float(rng.choice([5.0, 30.0])))


ENTRY_CALLS: dict[str, Callable[[Rng], Stage]] = {
    "rms_norm": _rms_norm,
    "linear": _linear,
    "rope": _rope,
    "attention": _attention,
    "gate": _gate,
    "swiglu": _swiglu,
    "add": _add,
    "gather": _gather,
    "softmax": _softmax,
    "softcap": _softcap,
}
