"""Mistakes of norms: eps, 1 + w, a missing or doubled weight, the mean over another axis, no norm at all."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.faults.grammar import Options
from oracle.faults.kind import Kind, Plant, args, need, params
from oracle.readings import Stage
from oracle.weights import Weight

RMS, ANY = ("rms_norm",), ("rms_norm", "l2_norm")


def _eps(o: Options) -> Plant:
    factor = o.number("factor")
    return Plant(lambda s: params(s, eps=s.params["eps"] * factor))


def _offset(o: Options) -> Plant:
    offset = o["offset"]
    value = None if offset == "other" else o.number("offset")

    def edit(stage: Stage) -> Stage:
        need(_weight(stage) is not None, "no weight")
        now = stage.params.get("offset", 0.0)
        return params(stage, offset=1.0 - now if value is None else value)

    return Plant(edit)


def _weight(stage: Stage) -> Weight | None:
    found: Weight | None = stage.args[1] if len(stage.args) > 1 else None
    return found


def _times(o: Options) -> Plant:
    times = o.choice("times", "0", "2")

    def edit(stage: Stage) -> Stage:
        w = _weight(stage)
        need(w is not None, "no weight")
        assert w is not None
        if times == "0":
            return args(params(stage, offset=0.0), stage.args[0], None)
        offset = stage.params.get("offset", 0.0)
        return args(stage, stage.args[0], Weight.of(np.square(w.array() + offset) - offset, w.axes, "f32", w.name))

    return Plant(edit)


def _axis(_: Options) -> Plant:
    """One mean for the whole row, where every head (or group) has its own: the result times own scale over common scale."""

    def after(stage: Stage, y: NDArray[Any]) -> NDArray[Any]:
        x, groups, eps = np.asarray(stage.args[0].data, np.float64), stage.params.get("groups", 1), stage.params["eps"]
        need(x.ndim == 3 or groups > 1, "one norm per row already")
        parts = x.reshape(len(x), -1, x.shape[-1] // groups)
        own, common = np.square(parts).mean(-1, keepdims=True), np.square(parts).mean((1, 2), keepdims=True)
        return np.asarray(y * np.broadcast_to(np.sqrt((own + eps) / (common + eps)), parts.shape).reshape(y.shape))

    def edit(stage: Stage) -> Stage:
        need(stage.args[0].data.ndim == 3 or stage.params.get("groups", 1) > 1, "one norm per row already")
        return stage

    return Plant(edit, after)


def _missing(_: Options) -> Plant:
    return Plant(after=lambda stage, y: np.asarray(stage.args[0].data))


def _scale(_: Options) -> Plant:
    def edit(stage: Stage) -> Stage:
        need(stage.params.get("scale", 1.0) != 1.0, "no scale")
        return params(stage, scale=1.0)

    return Plant(edit)


KINDS = (
    Kind(
        "norm.eps",
        ANY,
        "*.xn",
        {"factor": "10"},
        _eps,
        "eps times factor",
        ("K5", "K34"),
        "factor",
        ("factor=1000", "factor=10", "factor=0"),
        {"eps": "factor=10"},
    ),
    Kind(
        "norm.offset",
        RMS,
        "*.xn",
        {"offset": "other"},
        _offset,
        "w taken as 1 + w, or 1 + w as w",
        ("K5",),
        "offset",
        knobs={"norm weight (w or 1+w)": ""},
        alike=("norm.weight",),
    ),
    Kind(
        "norm.weight",
        RMS,
        "*.xn",
        {"times": "0"},
        _times,
        "the weight left out (times=0) or applied twice (times=2)",
        ("K5", "K14"),
        "times",
        ("times=0", "times=2"),
        {"norm weight": "times=0"},
        ("norm.offset",),
    ),
    Kind(
        "norm.axis",
        RMS,
        "*.q_norm",
        {},
        _axis,
        "one mean over the whole row in place of one per head (or per tap, or per stream)",
        ("K5",),
        knobs={"norm axis": ""},
    ),
    Kind("norm.missing", ANY, "*.ctx.k_norm", {}, _missing, "no norm at all, as rows injected past the cache's transform", ("K5", "K28")),
    Kind(
        "norm.scale",
        ("l2_norm",),
        "*.q_norm",
        {},
        _scale,
        "the query's scale left out of its L2 norm",
        ("K6",),
        knobs={"query scale": ""},
        alike=("values.scale",),
    ),
)
