"""Mistakes of gates, activations, sums, caps and embedding rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.faults.grammar import Options
from oracle.faults.kind import Kind, Plant, args, need, params
from oracle.readings import NotHereError, Stage
from oracle.tensor import Array, Tensor

Values = NDArray[Any]


def _data(stage: Stage, index: int) -> Array:
    return np.asarray(stage.args[index].data, np.float64)


def sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-x)))


def activated(kind: str, gate: Array, up: Array) -> Array:
    """What a SwiGLU with another activation gives."""
    if kind == "gelu":
        return np.asarray(0.5 * gate * (1 + np.tanh(0.7978845608028654 * (gate + 0.044715 * gate**3))) * up)
    if kind == "sigmoid":
        return sigmoid(gate) * up
    return gate * up if kind == "none" else gate * sigmoid(gate)


def _swiglu(o: Options) -> Plant:
    kind = o.choice("kind", "gelu", "sigmoid", "none", "no-up")
    return Plant(after=lambda stage, y: activated(kind, _data(stage, 0), _data(stage, 1)).reshape(y.shape))


def _swapped(_: Options) -> Plant:
    return Plant(lambda s: args(s, s.args[1], s.args[0]))


def _gate_activation(_: Options) -> Plant:
    return Plant(lambda s: params(s, kind="softplus" if s.params["kind"] == "sigmoid" else "sigmoid"))


def _gate_missing(_: Options) -> Plant:
    """The value itself; of a gate per stream, the value in every stream."""

    def after(stage: Stage, y: Values) -> Values:
        x = _data(stage, 0)
        return np.tile(x, (1, y.shape[1] // x.shape[1])) if stage.op.name == "stream_gate" else x.reshape(y.shape)

    return Plant(after=after)


def _gate_order(_: Options) -> Plant:
    """The gates of the heads turned by one."""

    def edit(stage: Stage) -> Stage:
        x, g = stage.args
        heads = x.data.shape[1]
        need(x.data.ndim == 3 and heads > 1, "a single head")
        turned = np.roll(g.data.reshape(len(g.data), heads, -1), 1, 1).reshape(g.data.shape)
        return args(stage, x, Tensor(turned, g.axes))

    return Plant(edit)


def _gate_input(_: Options) -> Plant:
    """Row r gated by what row r - 1 gives."""

    def edit(stage: Stage) -> Stage:
        x, g = stage.args
        need(len(g.data) > 1, "a single row")
        return args(stage, x, Tensor(np.roll(g.data, 1, 0), g.axes))

    return Plant(edit)


def _cap(o: Options) -> Plant:
    to = o["to"]
    value = None if to == "none" else o.number("to")

    def edit(stage: Stage) -> Stage:
        need(stage.params["cap"] is not None, "no cap")
        return params(stage, cap=value)

    return Plant(edit)


def _multiplier(o: Options) -> Plant:
    times = o.choice("times", "0", "2")

    def edit(stage: Stage) -> Stage:
        scale = stage.params["scale"]
        need(scale != 1, "no multiplier")
        return params(stage, scale=1.0 if times == "0" else scale * scale)

    return Plant(edit)


def _cap_order(_: Options) -> Plant:
    def edit(stage: Stage) -> Stage:
        need(stage.params["cap"] is not None and stage.params["scale"] != 1, "no cap with a multiplier")
        return stage

    def after(stage: Stage, y: Values) -> Values:
        scale, cap = stage.params["scale"], stage.params["cap"]
        return np.asarray(scale * cap * np.tanh(_data(stage, 0) / cap))

    return Plant(edit, after)


def _terms(o: Options) -> Plant:
    how = o.choice("how", "no-residual", "no-branch", "subtracted", "twice")
    weights = {"no-residual": (0.0, 1.0), "no-branch": (1.0, 0.0), "subtracted": (1.0, -1.0), "twice": (1.0, 2.0)}
    a, b = weights[how]
    return Plant(after=lambda stage, y: a * _data(stage, 0) + b * _data(stage, 1))


def _gather_scale(o: Options) -> Plant:
    how = o.choice("how", "missing", "width")

    def edit(stage: Stage) -> Stage:
        scale = stage.params.get("scale", 1.0)
        need(how == "width" or scale != 1, "no embedding scale")
        return params(stage, scale=1.0 if how == "missing" else scale * stage.args[0].width ** 0.5)

    return Plant(edit)


def _ids(o: Options) -> Plant:
    offset = o.integer("offset")

    def edit(stage: Stage) -> Stage:
        table, ids = stage.args
        if isinstance(ids, Tensor):
            return args(stage, table, Tensor((ids.data + offset) % table.row_count, ids.axes))
        return args(stage, table, (np.asarray(ids, np.int64) + offset) % table.row_count)

    return Plant(edit)


def _mask(o: Options) -> Plant:
    """Every row but the first embedded as the rows of ``to``: zero, the anchor's, the mean of the table."""
    to = o.choice("to", "zero", "anchor", "mean")

    def edit(stage: Stage) -> Stage:
        ids = stage.args[1]
        if isinstance(ids, Tensor) or len(ids) < 2 or len(set(np.asarray(ids[1:]).tolist())) != 1:
            raise NotHereError("there is no row of masks here")
        return stage

    def after(stage: Stage, y: Values) -> Values:
        table, out = stage.args[0], y.copy()
        mean = table.tile(0, table.row_count).mean(0) if to == "mean" else np.zeros(y.shape[1])
        out[1:] = y[0] if to == "anchor" else mean
        return out

    return Plant(edit, after)


def _silu(o: Options) -> Plant:
    kind = o.choice("kind", "none", "sigmoid", "gelu")

    def after(stage: Stage, y: Values) -> Values:
        g = _data(stage, 0) * stage.params.get("scale", 1.0)
        return activated(kind, g, np.ones_like(g))

    return Plant(after=after)


def _inner_scale(_: Options) -> Plant:
    def edit(stage: Stage) -> Stage:
        need(stage.params.get("scale", 1.0) != 1, "no scale inside")
        return params(stage, scale=1.0)

    return Plant(edit)


def _gain(_: Options) -> Plant:
    def edit(stage: Stage) -> Stage:
        need(stage.params.get("gain", 1.0) != 1, "no gain")
        return params(stage, gain=1.0)

    return Plant(edit)


def _no_sigmoid(_: Options) -> Plant:
    return Plant(after=lambda stage, y: _data(stage, 0).reshape(y.shape))


KINDS = (
    Kind("swiglu.swapped", ("swiglu",), "*.mlp_act", {}, _swapped, "gate and up exchanged", ("K14",), knobs={"gate and up": ""}),
    Kind(
        "swiglu.activation",
        ("swiglu",),
        "*.mlp_act",
        {"kind": "gelu"},
        _swiglu,
        "another activation in place of SiLU, or no up branch",
        ("K34",),
        "kind",
        ("kind=none", "kind=sigmoid", "kind=gelu", "kind=no-up"),
        {"activation": "kind=gelu"},
    ),
    Kind(
        "gate.activation",
        ("gate",),
        "*.attn_gated",
        {},
        _gate_activation,
        "sigmoid and softplus confused",
        ("K34",),
        knobs={"gate activation": ""},
    ),
    Kind("gate.missing", ("gate", "stream_gate"), "*", {}, _gate_missing, "the gate left out", ("K6", "K34"), knobs={"gate": ""}),
    Kind("gate.order", ("gate",), "*.attn_gated", {}, _gate_order, "the gates of the heads turned by one", ("K13", "K14")),
    Kind(
        "gate.input",
        ("gate",),
        "*.attn_gated",
        {},
        _gate_input,
        "gated by another row's gate",
        ("K3",),
    ),
    Kind(
        "softcap.cap",
        ("softcap",),
        "*.logits",
        {"to": "none"},
        _cap,
        "no cap, or another",
        ("K6", "K34"),
        "to",
        ("to=none", "to=30"),
        {"softcap": "to=none"},
    ),
    Kind(
        "softcap.multiplier",
        ("softcap",),
        "*.logits",
        {"times": "0"},
        _multiplier,
        "the output multiplier left out, or applied twice",
        ("K6", "K34"),
        "times",
        ("times=0", "times=2"),
        {"output multiplier": "times=0"},
        ("values.scale",),
    ),
    Kind(
        "softcap.order",
        ("softcap",),
        "*.logits",
        {},
        _cap_order,
        "the cap before the multiplier",
        ("K6",),
        knobs={"cap after multiplier": ""},
    ),
    Kind(
        "add.terms",
        ("add",),
        "*.h_attn",
        {"how": "no-residual"},
        _terms,
        "residual or branch left out, subtracted, added twice",
        ("K2", "K6"),
        "how",
        ("how=no-residual", "how=no-branch", "how=subtracted", "how=twice"),
    ),
    Kind(
        "gather.scale",
        ("gather",),
        "*.embed",
        {"how": "missing"},
        _gather_scale,
        "the embedding scale left out, or sqrt(width) applied",
        ("K6", "K34"),
        "how",
        ("how=missing", "how=width"),
        {"embedding scale": "how=missing"},
        ("values.scale",),
    ),
    Kind(
        "gather.ids",
        ("gather",),
        "*.embed",
        {"offset": "1"},
        _ids,
        "the row of another token id",
        ("K18", "K17"),
        "offset",
    ),
    Kind(
        "mask.embedding",
        ("gather",),
        "draft.embed",
        {"to": "zero"},
        _mask,
        "mask rows embedded as zeros, as the anchor, as the mean row",
        ("K18",),
        "to",
        ("to=zero", "to=anchor", "to=mean"),
        {"mask embedding": "to=zero"},
        ("values.zero",),
    ),
    Kind(
        "silu.activation",
        ("silu",),
        "*",
        {"kind": "none"},
        _silu,
        "no SiLU, a sigmoid or a GELU in its place",
        ("K15",),
        "kind",
        ("kind=none", "kind=sigmoid", "kind=gelu"),
        {"SiLU": "kind=none"},
    ),
    Kind(
        "silu.scale",
        ("silu", "squash"),
        "*",
        {},
        _inner_scale,
        "the scale inside left out (one over the streams)",
        ("K6",),
        knobs={"scale over the streams": ""},
    ),
    Kind(
        "squash.gain",
        ("squash",),
        "*",
        {},
        _gain,
        "the write strength's gain of 2 left out",
        ("K6",),
        knobs={"write gain": ""},
        alike=("values.scale",),
    ),
    Kind("sigmoid.missing", ("sigmoid",), "*", {}, _no_sigmoid, "no sigmoid", ("K17", "K34")),
)
