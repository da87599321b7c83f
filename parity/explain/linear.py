"""Linear: scaled, transposed, rows of the weight permuted or swapped in halves, the bias missing, activations rounded first."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from oracle import policies
from oracle.tensor import Array, Tensor
from oracle.weights import Weight
from parity.explain.base import Hypothesis, Suspect, mapped, rounder, scaled, with_args

MAX_TRANSPOSED = 1 << 22


def hypotheses(s: Suspect) -> Iterator[Hypothesis]:
    x, w, *bias = s.stage.args
    if bias and bias[0] is not None:
        yield Hypothesis("linear.bias", "the bias left out", with_args(s.stage, x, w))
    yield from _activations(s, x)
    factor = constant_ratio(s.y.data[s.region], s.c[s.region])
    for value, fitted in rounder(factor) if factor is not None else []:
        yield Hypothesis("linear.scale", f"the result times {value:.9g}", s.stage, scaled(value), fitted)
    flat_y, flat_c = s.y.data.reshape(len(s.c), -1), s.c.reshape(len(s.c), -1)
    order = matched_columns(flat_y, flat_c)
    if order is not None:
        shape = s.c.shape
        pairs = ", ".join(f"{i} is {j}" for i, j in enumerate(order.tolist()) if i != j)
        text = f"output features permuted{_halves(order)}; first: {pairs[:80]}"
        yield Hypothesis("linear.permuted", text, s.stage, mapped(lambda a: a.reshape(len(a), -1)[:, order].reshape(shape)))
    if w.row_count == w.width and w.row_count * w.width <= MAX_TRANSPOSED:
        turned = Weight.of(w.array().reshape(w.row_count, w.width).T.reshape(w.shape), w.axes, "f64", w.name)
        yield Hypothesis("linear.transposed", "the weight transposed", with_args(s.stage, x, turned, *bias))


def _activations(s: Suspect, x: Tensor) -> Iterator[Hypothesis]:
    flat = x.data.reshape(len(x.data), -1)
    for policy, text in (("bf16", "bf16"), ("f16", "f16"), ("q8_0", "Q8_0 blocks"), ("q8_k", "Q8_K blocks")):
        if policy.startswith("q8") and flat.shape[1] % (32 if policy == "q8_0" else 256):
            continue
        seen = Tensor(policies.apply(policy, flat).reshape(x.data.shape), x.axes)
        if not np.array_equal(seen.data, x.data):
            yield Hypothesis(
                "linear.activations",
                f"quantised activations, not a bug: the input rounded to {text} first (--arithmetic …,use={policy})",
                with_args(s.stage, seen, *s.stage.args[1:]),
            )


def constant_ratio(y: Array, c: Array) -> float | None:
    """The one factor c / y, where there is one (to a per cent, the judge decides the rest)."""
    energy = float(y @ y)
    if energy == 0:
        return None
    factor = float(c @ y) / energy
    rest = c - factor * y
    return factor if abs(factor - 1) > 1e-7 and float(rest @ rest) <= 1e-4 * float(c @ c) else None


def matched_columns(y: Array, c: Array) -> NDArray[np.intp] | None:
    """The permutation with ``c = y[:, order]``, if the columns of one are those of the other."""
    if y.shape[1] < 2 or y.shape[1] > 1 << 15:
        return None
    by_y, by_c = np.argsort(y[0]), np.argsort(c[0])
    order = np.empty(y.shape[1], np.intp)
    order[by_c] = by_y
    moved = np.abs(y[:, order] - c).max() <= 1e-3 * np.abs(y).max()
    return order if moved and not np.array_equal(order, np.arange(len(order))) else None


def _halves(order: NDArray[np.intp]) -> str:
    n = len(order)
    if n % 2 == 0 and np.array_equal(order, np.roll(np.arange(n), n // 2)):
        return " (the halves swapped)"
    return ""
