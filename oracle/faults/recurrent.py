"""Mistakes of recurrences over rows: delta nets and short convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.faults.grammar import Options
from oracle.faults.kind import Kind, Plant, args, filled, need, params
from oracle.floats import FORMATS
from oracle.kit import EXACT
from oracle.ops.delta_state import delta_state, widened
from oracle.readings import Stage, values
from oracle.tensor import Tensor
from oracle.weights import Weight

Values = NDArray[Any]


def _no_beta(_: Options) -> Plant:
    return Plant(lambda s: filled(s, 4, 1.0))


def _lost(_: Options) -> Plant:
    def edit(stage: Stage) -> Stage:
        need(np.any(stage.args[0].data), "no state yet")
        return filled(stage, 0, 0.0)

    return Plant(edit)


def _kept(o: Options) -> Plant:
    """The state written to memory in a narrow dtype: between the calls, or from every row to the next as well."""
    dtype, every = o.choice("dtype", "bf16", "f16"), o.choice("every", "step", "row")

    def edit(stage: Stage) -> Stage:
        start, *rest = stage.args
        need(np.any(start.data), "no state yet")
        return args(stage, Tensor(FORMATS[dtype].round(start.data).astype(start.data.dtype), start.axes), *rest)

    def after(stage: Stage, y: Values) -> Values:
        need(len(y) > 1, "a single row")
        start, *rest = values(stage.args)
        return np.asarray(delta_state.formula(EXACT, FORMATS[dtype].round(start), *rest, rows=dtype))

    return Plant(edit) if every == "step" else Plant(after=after)


def _late_decay(_: Options) -> Plant:
    """The state decays after the memory was read from it, not before."""

    def after(stage: Stage, y: Values) -> Values:
        start, k, v, decay, beta = (np.asarray(a.data, np.float64) for a in stage.args)
        state, keys, out = start, widened(k, start.shape[0]), np.empty(y.shape)
        for t in range(len(k)):
            memory = np.einsum("hkd,hk->hd", state, keys[t])
            d = (v[t] - memory) * beta[t][:, None]
            state = state * np.exp(decay[t])[:, None, None] + keys[t][:, :, None] * d[:, None, :]
            out[t] = state
        return out

    return Plant(after=after)


def _transposed(_: Options) -> Plant:
    def edit(stage: Stage) -> Stage:
        state, q = stage.args
        need(state.data.shape[-1] == state.data.shape[-2], "a state that is not square")
        return args(stage, Tensor(np.swapaxes(state.data, -1, -2), state.axes), q)

    return Plant(edit)


def _key_heads(_: Options) -> Plant:
    """Value head h reads key head h mod key heads, not h // group."""

    def edit(stage: Stage) -> Stage:
        state, q = stage.args
        heads, keys = state.data.shape[1], q.data.shape[1]
        need(1 < keys < heads, "no other map of heads")
        return args(stage, state, Tensor(q.data[:, np.arange(heads) % keys], q.axes))

    return Plant(edit)


def _history(_: Options) -> Plant:
    def edit(stage: Stage) -> Stage:
        need(np.any(stage.args[1].data), "no row before")
        return filled(stage, 1, 0.0)

    return Plant(edit)


def _dilation(_: Options) -> Plant:
    def edit(stage: Stage) -> Stage:
        x, history, w = stage.args
        need(stage.params.get("dilation", 1) > 1, "no dilation")
        left = len(history.data) - (w.width - 1)
        return params(args(stage, x, Tensor(history.data[left:], history.axes), w), dilation=1)

    return Plant(edit)


def _decay(how: str) -> Plant:
    def edit(stage: Stage) -> Stage:
        if how == "missing":
            return filled(stage, 3, 0.0)
        a, a_log, dt = stage.args
        return stage if how == "sign" else args(stage, a, a_log, Weight.of(np.zeros(dt.shape), dt.axes, "f32", dt.name))

    return Plant(edit, lambda stage, y: -y if how == "sign" else y)


def _turned(_: Options) -> Plant:
    """The newest tap taken for the oldest."""

    def edit(stage: Stage) -> Stage:
        if stage.op.name == "short_conv":
            x, history, w = stage.args
            return args(stage, x, history, Weight.of(w.array()[..., ::-1], w.axes, "f32", w.name))
        x, kernel, base = stage.args
        need(base.shape[1] > 1, "a single tap")
        turned = Weight.of(base.array()[:, ::-1], base.axes, "f32", base.name)
        return args(stage, x, Tensor(kernel.data[:, :, ::-1], kernel.axes), turned)

    return Plant(edit)


KINDS = (
    Kind("delta.beta", ("delta_state",), "*", {}, _no_beta, "every row written with full strength", ("K34",), knobs={"write strength": ""}),
    Kind("delta.lost", ("delta_state",), "*", {}, _lost, "the state before the window lost", ("K22",), knobs={"state carried": ""}),
    Kind(
        "delta.kept",
        ("delta_state",),
        "*",
        {"dtype": "bf16", "every": "step"},
        _kept,
        "the state kept in a narrow dtype from step to step, or from row to row",
        ("K26", "K22"),
        "dtype, every",
        ("dtype=bf16,every=step", "dtype=bf16,every=row", "dtype=f16,every=step"),
        knobs={"dtype of the state": "dtype=bf16,every=step"},
    ),
    Kind(
        "delta.order",
        ("delta_state",),
        "*",
        {},
        _late_decay,
        "the state decays after its memory is read, not before",
        ("K22",),
        knobs={"decay before the read": ""},
    ),
    Kind(
        "delta.transposed",
        ("delta_read",),
        "*",
        {},
        _transposed,
        "keys and values of the state exchanged",
        ("K14", "K35"),
        knobs={"axes of the state": ""},
    ),
    Kind(
        "delta.heads",
        ("delta_read",),
        "*",
        {},
        _key_heads,
        "value heads read another key head: h mod key heads",
        ("K13",),
        knobs={"map of key heads": ""},
    ),
    Kind("delta.decay", ("delta_state",), "*", {}, lambda o: _decay("missing"), "the state does not decay", ("K34",), knobs={"decay": ""}),
    Kind("decay.bias", ("decay",), "*", {}, lambda o: _decay("bias"), "the decay's bias left out", ("K34",), knobs={"decay bias": ""}),
    Kind("decay.sign", ("decay",), "*", {}, lambda o: _decay("sign"), "growth in place of decay", ("K26",), alike=("values.sign",)),
    Kind(
        "short_conv.history",
        ("short_conv",),
        "*",
        {},
        _history,
        "the rows before the window lost",
        ("K22", "K4"),
        knobs={"history of the convolution": ""},
    ),
    Kind("short_conv.dilation", ("short_conv",), "*", {}, _dilation, "no dilation", ("K34",), knobs={"dilation": ""}),
    Kind(
        "short_conv.order",
        ("short_conv",),
        "*",
        {},
        _turned,
        "the newest tap taken for the oldest",
        ("K15", "K14"),
        knobs={"order of the convolution": ""},
    ),
    Kind(
        "conv.taps", ("dynamic_conv",), "*", {}, _turned, "the newest tap taken for the oldest", ("K15",), knobs={"order of the taps": ""}
    ),
)
