"""Mistakes of hyper-connections and of what they carry: the streams, and the halves of a fused projection."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from oracle.faults.grammar import Options
from oracle.faults.kind import Kind, Plant, args, filled, need, params
from oracle.readings import Stage
from oracle.tensor import Tensor

Values = NDArray[Any]


def _sum(_: Options) -> Plant:
    return Plant(after=lambda stage, y: y * stage.params["streams"])


def _no_gate(_: Options) -> Plant:
    """The streams read without their gates: σ(g) taken as 1."""
    return Plant(lambda s: filled(s, 1, 60.0))


def _write(_: Options) -> Plant:
    return Plant(lambda s: filled(s, 2, 1.0))


def _streams(_: Options) -> Plant:
    """The write strengths in the reverse order of the streams."""

    def edit(stage: Stage) -> Stage:
        x, y, inject = stage.args
        need(inject.data.shape[1] > 1, "a single stream")
        return args(stage, x, y, Tensor(inject.data[:, ::-1], inject.axes))

    return Plant(edit)


def _copies(_: Options) -> Plant:
    """The embedding in the first stream only."""

    def after(stage: Stage, y: Values) -> Values:
        out = y.copy()
        out[:, y.shape[1] // stage.params["copies"] :] = 0
        return out

    return Plant(after=after)


def _half(_: Options) -> Plant:
    """The other half of a fused projection."""

    def edit(stage: Stage) -> Stage:
        start, stop, width = stage.params["start"], stage.params["stop"], stage.args[0].data.shape[-1]
        need(width == 2 * (stop - start), "no other half")
        return params(stage, start=width - stop, stop=width - start)

    return Plant(edit)


KINDS = (
    Kind(
        "hc.sum",
        ("hc_read",),
        "*",
        {},
        _sum,
        "streams added up, not averaged",
        ("K6",),
        knobs={"mean of the streams": ""},
        alike=("values.scale",),
    ),
    Kind("hc.gate", ("hc_read",), "*", {}, _no_gate, "streams read without their gates", ("K34",), knobs={"stream gates": ""}),
    Kind("hc.write", ("hc_write",), "*", {}, _write, "written to every stream with strength one", ("K34",), knobs={"stream writes": ""}),
    Kind("hc.streams", ("hc_write",), "*", {}, _streams, "the write strengths of the streams in reverse order", ("K14", "K13")),
    Kind("streams.first", ("replicate",), "*", {}, _copies, "the embedding in the first stream only", ("K2",), knobs={"all streams": ""}),
    Kind(
        "part.half",
        ("part",),
        "*",
        {},
        _half,
        "query and gate of the fused projection exchanged",
        ("K14",),
        knobs={"query before gate": ""},
    ),
)
