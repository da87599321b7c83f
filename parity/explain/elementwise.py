"""Elementwise stages and moved values: swapped or missing inputs, another activation, cap and multiplier, scale, order of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from oracle.tensor import Array, Tensor
from parity.explain.base import Hypothesis, Suspect, mapped, rounder, scaled, with_args, with_params
from parity.explain.linear import constant_ratio


def swiglu(s: Suspect) -> Iterator[Hypothesis]:
    gate, up = s.stage.args
    yield Hypothesis("swiglu.swapped", "gate and up swapped", with_args(s.stage, up, gate))
    g = gate.data
    tanh = 0.5 * g * (1 + np.tanh(0.7978845608028654 * (g + 0.044715 * g**3)))
    for text, value in (
        ("GELU (tanh) in place of SiLU", tanh * up.data),
        ("the up branch left out", g / (1 + np.exp(-g))),
        ("no activation at all", g * up.data),
        ("sigmoid in place of SiLU", up.data / (1 + np.exp(-g))),
    ):
        yield Hypothesis("swiglu.activation", text, s.stage, _become(value))


def gate(s: Suspect) -> Iterator[Hypothesis]:
    x, _ = s.stage.args
    other = "softplus" if s.stage.params["kind"] == "sigmoid" else "sigmoid"
    yield Hypothesis("gate.activation", f"{other} in place of {s.stage.params['kind']}", with_params(s.stage, kind=other))
    yield Hypothesis("gate.missing", "the gate left out", s.stage, _become(x.data))


def softcap(s: Suspect) -> Iterator[Hypothesis]:
    x, scale, cap = s.stage.args[0], s.stage.params["scale"], s.stage.params["cap"]
    yield Hypothesis("softcap.multiplier", "the output multiplier left out", with_params(s.stage, scale=1.0))
    yield Hypothesis("softcap.multiplier", "the output multiplier applied twice", with_params(s.stage, scale=scale * scale))
    if cap is not None:
        yield Hypothesis("softcap.cap", "no cap", with_params(s.stage, cap=None))
        yield Hypothesis("softcap.cap", "cap 30 in place of " + f"{cap:g}", with_params(s.stage, cap=30.0))
        yield Hypothesis("softcap.order", "the cap before the multiplier", s.stage, _become(scale * cap * np.tanh(x.data / cap)))


def add(s: Suspect) -> Iterator[Hypothesis]:
    a, b = s.stage.args
    for text, value in (
        ("the residual left out", b.data),
        ("the branch left out", a.data),
        ("the branch subtracted", a.data - b.data),
        ("the branch added twice", a.data + 2 * b.data),
    ):
        yield Hypothesis("add.terms", text, s.stage, _become(value))


def gather(s: Suspect) -> Iterator[Hypothesis]:
    scale = s.stage.params.get("scale", 1.0)
    if scale != 1.0:
        yield Hypothesis("gather.scale", "the embedding scale left out", with_params(s.stage, scale=1.0))
    for text, root in (("times sqrt(width)", s.stage.args[0].width ** 0.5),):
        yield Hypothesis("gather.scale", f"embedding rows {text}", with_params(s.stage, scale=scale * root))


def moved(s: Suspect) -> Iterator[Hypothesis]:
    """For every operation: zeros, sign, one factor, rows shifted or taken from each other."""
    region = s.region
    if not s.c[region].any():
        yield Hypothesis("values.zero", "zeros", s.stage, mapped(np.zeros_like))
    yield Hypothesis("values.sign", "the sign flipped", s.stage, scaled(-1.0))
    factor = constant_ratio(s.y.data[region], s.c[region])
    for value, fitted in rounder(factor) if factor is not None and s.stage.op.name != "linear" else []:
        yield Hypothesis("values.scale", f"the result times {value:.9g}", s.stage, scaled(value), fitted)
    order = matched_rows(s.y.data, s.c)
    if order is not None:
        pairs = ", ".join(f"row {i} holds row {j}" for i, j in enumerate(order.tolist()) if i != j)
        yield Hypothesis("values.rows", pairs[:160], s.stage, mapped(lambda a: a[order]))


def matched_rows(y: Array, c: Array) -> NDArray[np.intp] | None:
    """For each row of c the row of y it equals (nearest); None where any is far from all, or every row is itself."""
    a, b = y.reshape(len(y), -1), c.reshape(len(c), -1)
    if len(a) < 2 or len(a) > 4096:
        return None
    distance = np.square(b).sum(1)[:, None] - 2 * b @ a.T + np.square(a).sum(1)[None]
    order = distance.argmin(1)
    # A row that equals its own is its own, whatever equal rows come before it.
    own = np.abs(a - b).max(1) <= 1e-4 * np.abs(a).max(initial=1e-300)
    order = np.where(own, np.arange(len(a)), order)
    near = np.abs(a[order] - b).max() <= 1e-3 * np.abs(a).max(initial=1e-300)
    return order if near and not np.array_equal(order, np.arange(len(a))) else None


def _become(value: Array) -> Callable[[Tensor], Tensor]:
    def apply(t: Tensor) -> Tensor:
        return Tensor(np.asarray(value).reshape(t.data.shape), t.axes, t.var, t.acc, t.half)

    return apply
