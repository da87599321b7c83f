"""Linear: scaled, transposed, rows or inputs of the weight permuted, the bias missing, inputs or weights rounded first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from oracle import policies
from oracle.block_dot import BlockDot, seen
from oracle.floats import BF16, F16
from oracle.tensor import Array, Tensor
from oracle.weights import Weight
from parity.explain.base import Hypothesis, Suspect, mapped, rounder, scaled, shortened, with_arg, with_args
from parity.explain.general import constant_ratio

MAX_COPIED, MAX_ASSIGNED = 1 << 22, 512


def hypotheses(s: Suspect) -> Iterator[Hypothesis]:
    x, w, *bias = s.stage.args
    if bias and bias[0] is not None:
        yield Hypothesis("linear.bias", "the bias left out", with_args(s.stage, x, w))
        twice = Weight.of(2 * bias[0].array(), bias[0].axes, "f64", bias[0].name)
        yield Hypothesis("linear.bias", "the bias added twice", with_args(s.stage, x, w, twice))
    yield from _activations(s, x, w)
    yield from _scale(s)
    yield from _permuted(s)
    yield from _inputs(s, x)
    if w.row_count * w.width <= MAX_COPIED:
        yield from _weights(s, w)


def _scale(s: Suspect) -> Iterator[Hypothesis]:
    factor = constant_ratio(s.y.data[s.region], s.c[s.region])
    for value, fallback in rounder(factor) if factor is not None else []:
        p = {"factor": value}
        yield Hypothesis("linear.scale", f"the result times {value:.9g}", s.stage, scaled(value), fallback, parameters=p)


def _permuted(s: Suspect) -> Iterator[Hypothesis]:
    """Output features in another order: the rows of the weight permuted, halves swapped, heads split another way.

    The rows of the weight alone may be permuted, the bias (where there is one) as declared, or both.
    """
    bias = s.stage.args[2:]
    yield from _ordered(s, 0.0, "")
    if bias and bias[0] is not None:
        yield from _ordered(s, bias[0].array().ravel(), ", the bias as declared")


def _ordered(s: Suspect, bias: Array | float, remark: str) -> Iterator[Hypothesis]:
    """The permutation of what is added to ``bias``, if there is one."""
    shape, rows = s.c.shape, s.rows
    flat_y, flat_c = s.y.data.reshape(len(s.c), -1)[rows] - bias, s.c.reshape(len(s.c), -1)[rows] - bias
    order = matched_columns(flat_y, flat_c)
    if order is None:
        return
    pairs = ", ".join(f"{i} is {j}" for i, j in enumerate(order.tolist()) if i != j)
    text = shortened(f"output features permuted{pattern(order, shape)}{remark}; first: {pairs}", 120)
    moved = mapped(lambda a: a.reshape(len(a), -1)[:, order].reshape(shape))

    def change(t: Tensor) -> Tensor:
        return shifted(moved(shifted(t, -bias)), bias)

    yield Hypothesis("linear.permuted", text, s.stage, change, parameters={"order": order.tolist() if len(order) <= 512 else []})


def shifted(t: Tensor, by: Array | float) -> Tensor:
    """The same errors about other values: ``by`` added to every row."""
    return replace(t, data=(t.data.reshape(len(t.data), -1) + by).reshape(t.data.shape))


def pattern(order: NDArray[np.intp], shape: tuple[int, ...]) -> str:
    """What kind of permutation it is, where it has a name."""
    n, index = len(order), np.arange(len(order))
    if n % 2 == 0 and np.array_equal(order, np.roll(index, n // 2)):
        return " (the halves swapped)"
    if np.array_equal(order, index[::-1]):
        return " (reversed)"
    shift = int(order[0])
    if np.array_equal(order, np.roll(index, -shift)):
        return f" (shifted by {shift if shift <= n // 2 else shift - n:+d})"
    for width in sorted({shape[-1], *(d for d in (2, 4, 8, 16, 32, 64, 128, 256) if n % d == 0)}):
        if n % width == 0 and np.array_equal(order, index.reshape(-1, width).T.ravel()):
            return f" (read as [{width}, {n // width}] in place of [{n // width}, {width}]: the layout of heads or parts interleaved)"
        if width % 2 == 0 and n % width == 0:
            split = index.reshape(-1, 2, width // 2)
            if np.array_equal(order, split.transpose(0, 2, 1).ravel()):
                return f" (halves of every {width} interleaved)"
            if np.array_equal(order, index.reshape(-1, width // 2, 2).transpose(0, 2, 1).ravel()):
                return f" (neighbours of every {width} taken apart into halves)"
            if np.array_equal(order, split[:, ::-1].ravel()):
                return f" (halves of every {width} swapped)"
    return ""


def matched_columns(y: Array, c: Array) -> NDArray[np.intp] | None:
    """The permutation with ``c = y[:, order]``, if the columns of one are those of the other."""
    if not len(y) or y.shape[1] < 2 or y.shape[1] > 1 << 15:
        return None
    by_y, by_c = np.argsort(y[0], kind="stable"), np.argsort(c[0], kind="stable")
    order = np.empty(y.shape[1], np.intp)
    order[by_c] = by_y
    moved = np.abs(y[:, order] - c).max() <= 1e-3 * np.abs(y).max()
    if not moved and len(y) > 1 and y.shape[1] <= 4096:
        # Storage rounding makes equal values: pair columns by all rows, not by the first alone.
        distance = np.array([np.square(y - c[:, [i]]).sum(0) for i in range(y.shape[1])])
        order = distance.argmin(1)
        if len(np.unique(order)) < len(order) <= MAX_ASSIGNED:
            # Columns so alike that two have the same nearest: the pairing that is nearest as a whole.
            from scipy.optimize import linear_sum_assignment

            order = linear_sum_assignment(distance)[1]
        moved = len(np.unique(order)) == len(order) and np.abs(y[:, order] - c).max() <= 2e-2 * np.abs(y).max()
    return order if moved and not np.array_equal(order, np.arange(len(order))) else None


def _activations(s: Suspect, x: Tensor, w: Weight) -> Iterator[Hypothesis]:
    """Each activation policy; what ggml does with weights of this format is tried, and named, first, its block sums included."""
    if isinstance(w, BlockDot):
        return
    usual, flat = policies.resolved("ggml", w.stored), x.data.reshape(len(x.data), -1)
    for policy in sorted(policies.PLAIN[1:], key=lambda p: p != usual):
        name, _, how = policy.partition("-")
        if flat.shape[1] % policies.block(policy) or (name == "q8_1" and policy != usual):
            continue
        plain = Tensor(policies.apply(policy, flat).reshape(x.data.shape), x.axes)
        if np.array_equal(plain.data, x.data):
            continue
        text = f"{name.upper()} blocks{f' ({how.upper()} rounding)' if how else ''}" if name.startswith("q8") else name
        declare = f"(--arithmetic …,use={policy})"
        if policy == usual:
            declare = f"as ggml does on a CPU with {w.stored} weights (--arithmetic llama.cpp-cpu, or …,use={policy})"
        call = with_args(s.stage, *(seen(policy, x, w) if policy == usual else (plain, w)), *s.stage.args[2:])
        text = f"quantised activations, not a bug: the input rounded to {text} first {declare}"
        yield Hypothesis("linear.activations", text, call, parameters={"use": policy})


def _inputs(s: Suspect, x: Tensor) -> Iterator[Hypothesis]:
    """Inputs in another order: taps side by side, heads of the attention output, halves."""
    flat = x.data.reshape(len(x.data), -1)
    width = flat.shape[1]
    tap = s.world.target_hidden
    if tap and width % tap == 0 and 1 < width // tap <= 5:
        count = width // tap
        blocks = flat.reshape(len(flat), count, tap)
        for order in permutations(range(count)):
            if order != tuple(range(count)):
                edited = with_arg(s.stage, 0, Tensor(blocks[:, order].reshape(x.data.shape), x.axes))
                yield Hypothesis("tap.order", f"taps read in the order {list(order)}", edited, parameters={"order": list(order)})
        for t in range(count):
            without = blocks.copy()
            without[:, t] = 0
            edited = with_arg(s.stage, 0, Tensor(without.reshape(x.data.shape), x.axes))
            yield Hypothesis("tap.missing", f"tap {t} left out", edited, parameters={"tap": t})
    if x.data.ndim == 3:
        turned = x.data.transpose(0, 2, 1).reshape(x.data.shape)
        yield Hypothesis(
            "linear.input", "the input's heads and dims interleaved (read as [dim, head])", with_arg(s.stage, 0, Tensor(turned, x.axes))
        )
        backward = x.data[:, ::-1].copy()
        yield Hypothesis("linear.input", "the input's heads in reverse order", with_arg(s.stage, 0, Tensor(backward, x.axes)))
    if width % 2 == 0:
        swapped = np.roll(flat, width // 2, 1).reshape(x.data.shape)
        yield Hypothesis("linear.input", "the halves of the input swapped", with_arg(s.stage, 0, Tensor(swapped, x.axes)))


def _weights(s: Suspect, w: Weight) -> Iterator[Hypothesis]:
    whole = w.tile(0, w.row_count)

    def made(values: Array) -> Weight:
        return Weight.of(values.reshape(w.shape), w.axes, "f64", w.name)

    if w.row_count == w.width:
        yield Hypothesis("linear.transposed", "the weight transposed", with_arg(s.stage, 1, made(whole.T)))
    else:
        text = f"the weight read as [{w.width}, {w.row_count}], transposed in memory"
        yield Hypothesis("linear.transposed", text, with_arg(s.stage, 1, made(whole.reshape(w.width, w.row_count).T)))
    for store in (BF16, F16):
        rounded = store.round(whole)
        if not np.array_equal(rounded, whole):
            text = f"the weight rounded to {store.name} first"
            yield Hypothesis("linear.cast", text, with_arg(s.stage, 1, made(rounded)), parameters={"store": store.name})
            flat = s.stage.args[0]
            both = with_args(s.stage, Tensor(store.round(flat.data), flat.axes), made(rounded), *s.stage.args[2:])
            yield Hypothesis("linear.cast", f"weight and input rounded to {store.name} first", both, parameters={"store": store.name})
