"""Mistakes of attention: which cells were seen, the scale, the map of heads, the probabilities' dtype; and of the cells themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.faults.grammar import Options
from oracle.faults.kind import Kind, Plant, args, need, params
from oracle.floats import FORMATS
from oracle.ops.attention import attention
from oracle.readings import FaultError, Stage
from oracle.recipes import WINDOW_RULES, Visible
from oracle.tensor import Tensor

OPS = ("attention", "sink_attention")


@dataclass(frozen=True, eq=False)
class Seen:
    """Visibility as it was changed: ``cells`` bool [row, cell]."""

    cells: NDArray[np.bool_]

    def matrix(self) -> NDArray[np.bool_]:
        return self.cells


def _scale(o: Options) -> Plant:
    factor = o.number("factor")
    return Plant(lambda s: params(s, scale=s.params["scale"] * factor))


def _visible(change: Callable[[Visible], Any]) -> Plant:
    """An edit of a `Visible` recipe; a `NotHereError` where an indexer chose the cells."""

    def edit(stage: Stage) -> Stage:
        v = stage.params["visible"]
        need(isinstance(v, Visible), "a choice of cells, no mask rule,")
        return params(stage, visible=change(v))

    return Plant(edit)


def _cells(change: Callable[[NDArray[np.bool_]], None]) -> Plant:
    """An edit of the visibility itself, bool [row, cell]."""

    def edit(stage: Stage) -> Stage:
        seen = stage.params["visible"].matrix().copy()
        change(seen)
        return params(stage, visible=Seen(seen))

    return Plant(edit)


def _window(o: Options) -> Plant:
    delta, width = o.integer("delta"), o.integer("width")

    def change(v: Visible) -> Visible:
        need(v.window is not None and v.rule not in ("none", "SINK_RING"), "no window")
        assert v.window is not None
        wrong = max(width or v.window + delta, 1)
        need(wrong != v.window, "this very window")
        return replace(v, window=wrong)

    return _visible(change)


def _rule(o: Options) -> Plant:
    rule = o.choice("rule", *(r for r in WINDOW_RULES if r != "SINK_RING"))

    def change(v: Visible) -> Visible:
        need(v.window is not None and v.rule not in ("none", "SINK_RING", rule), "no window under another rule")
        return replace(v, rule=rule)

    return _visible(change)


def _causal(_: Options) -> Plant:
    return _visible(lambda v: replace(v, causal=not v.causal))


def _cell(o: Options) -> Plant:
    at = o.integer("cell")

    def change(seen: NDArray[np.bool_]) -> None:
        if not -seen.shape[1] <= at < seen.shape[1]:
            raise FaultError(f"fault attention.cell: cell {at} is not among the {seen.shape[1]} cells")
        seen[:, at] = False

    return _cells(change)


def _extra(o: Options) -> Plant:
    """``cell`` counts among the cells that a row does not see."""
    at = o.integer("cell")

    def change(seen: NDArray[np.bool_]) -> None:
        hidden = [np.flatnonzero(~row) for row in seen]
        need(any(len(h) for h in hidden), "no cell that is not seen")
        for row, cells in zip(seen, hidden, strict=True):
            if len(cells):
                row[cells[at % len(cells)]] = True

    return _cells(change)


def _context(o: Options) -> Plant:
    part = o.choice("part", "context", "block")

    def change(v: Visible) -> Seen:
        need(0 < v.block_start < len(v.k_pos), "only one of context and block")
        seen = v.matrix().copy()
        seen[:, slice(0, v.block_start) if part == "context" else slice(v.block_start, None)] = False
        return Seen(seen)

    return _visible(change)


def _sink(_: Options) -> Plant:
    """Cells before the first gap in the positions are the sink."""

    def change(v: Visible) -> Seen:
        gaps = np.flatnonzero(np.diff(v.k_pos[: v.block_start]) > 1)
        need(len(gaps), "no sink apart from the window")
        seen = v.matrix().copy()
        seen[:, : gaps[0] + 1] = False
        return Seen(seen)

    return _visible(change)


def _gqa(o: Options) -> Plant:
    how = o.choice("map", "mod", "first", "next")

    def edit(stage: Stage) -> Stage:
        q, k, v, *sinks = stage.args
        heads, kv = q.data.shape[1], k.data.shape[1]
        index = np.arange(heads)
        wrong = {"mod": index % kv, "first": index * 0, "next": (index // (heads // kv) + 1) % kv}[how]
        need(not np.array_equal(wrong, index // (heads // kv)), "no other map of these heads")
        return args(stage, q, *(Tensor(t.data[:, wrong], t.axes) for t in (k, v)), *sinks)

    return Plant(edit)


def _values(_: Options) -> Plant:
    return Plant(lambda s: args(s, s.args[0], s.args[1], Tensor(s.args[1].data, s.args[1].axes), *s.args[3:]))


def _sinks(_: Options) -> Plant:
    """The softmax over the cells alone."""
    return Plant(lambda s: replace(s, op=attention, args=s.args[:3]))


def _probabilities(o: Options) -> Plant:
    """Every probability rounded to a narrow dtype before it meets its value."""
    dtype = o.choice("dtype", "bf16", "f16")

    def after(stage: Stage, y: NDArray[Any]) -> NDArray[Any]:
        q, k, v = (np.asarray(t.data, np.float64) for t in stage.args[:3])
        sinks = stage.args[3].array() if len(stage.args) > 3 else np.full(q.shape[1], -np.inf)
        seen, scale, group = stage.params["visible"].matrix(), stage.params["scale"], q.shape[1] // k.shape[1]
        out = np.array(y, np.float64)
        for h in range(q.shape[1]):
            scores = np.where(seen, q[:, h] @ k[:, h // group].T * scale, -np.inf)
            top = np.maximum(np.maximum(scores.max(-1, keepdims=True), sinks[h]), -1e300)
            e, sink = np.exp(scores - top), np.exp(sinks[h] - top)
            p = FORMATS[dtype].round(e / np.maximum(e.sum(-1, keepdims=True) + sink, 1e-300))
            out[:, h] = p @ v[:, h // group]
        return out

    return Plant(after=after)


KINDS = (
    Kind(
        "attention.scale",
        OPS,
        "*.attn",
        {"factor": "1.01"},
        _scale,
        "the score scale times factor",
        ("K6",),
        "factor",
        ("factor=2", "factor=1.01"),
        {"attention scale": "factor=1.001"},
    ),
    Kind(
        "attention.window",
        OPS,
        "*.attn",
        {"delta": "-1", "width": "0"},
        _window,
        "the window off by delta, or width in its place",
        ("K10", "K34"),
        "delta",
        ("delta=-1", "delta=1", "delta=-3"),
        {"window-1": "delta=-1", "window+1": "delta=1"},
        ("attention.rule", "attention.cell", "attention.extra"),
    ),
    Kind(
        "attention.rule",
        OPS,
        "*.attn",
        {"rule": "W_LT_ctx"},
        _rule,
        "another engine's window rule: one-sided, anchor-wide, none",
        ("K10",),
        "rule",
        ("rule=none", "rule=W_ANCHOR", "rule=W_LE", "rule=W_LT_ctx", "rule=W_LT"),
        {"window at all": "rule=none"},
        ("attention.window", "attention.cell", "attention.extra"),
    ),
    Kind(
        "attention.causal",
        OPS,
        "*.attn",
        {},
        _causal,
        "causal and bidirectional confused",
        ("K11",),
        knobs={"causality": ""},
        alike=("attention.extra", "attention.cell"),
    ),
    Kind(
        "attention.cell",
        OPS,
        "*.attn",
        {"cell": "0"},
        _cell,
        "one cell not seen",
        ("K4", "K20"),
        "cell",
        ("cell=-1", "cell=1", "cell=-3"),
        alike=("attention.window", "attention.sink", "attention.causal", "attention.rule"),
    ),
    Kind(
        "attention.extra",
        OPS,
        "*.attn",
        {"cell": "0"},
        _extra,
        "one cell seen that is not visible: stale, evicted or of the future",
        ("K20", "K21"),
        "cell",
        ("cell=0", "cell=-1"),
        alike=("attention.window", "attention.causal", "attention.rule"),
    ),
    Kind(
        "attention.cells",
        OPS,
        "*.attn",
        {"part": "context"},
        _context,
        "no context cell seen, or none of the block",
        ("K21", "K11"),
        "part",
        ("part=context", "part=block"),
    ),
    Kind("attention.sink", OPS, "*.attn", {}, _sink, "the sink cells not seen", ("K12",), knobs={"sink": ""}, alike=("attention.cell",)),
    Kind(
        "attention.sinks",
        ("sink_attention",),
        "*.attn",
        {},
        _sinks,
        "the learned sink scores left out of the softmax",
        ("K12",),
        knobs={"sink scores": ""},
    ),
    Kind(
        "attention.gqa",
        OPS,
        "*.attn",
        {"map": "mod"},
        _gqa,
        "query heads read another kv head: h mod kv, the first, the next",
        ("K13",),
        "map",
        ("map=mod", "map=first", "map=next"),
        {"map of heads": "map=mod"},
    ),
    Kind("attention.values", OPS, "*.attn", {}, _values, "keys read in place of values", ("K29", "K14")),
    Kind(
        "attention.probabilities",
        OPS,
        "*.attn",
        {"dtype": "bf16"},
        _probabilities,
        "probabilities rounded to a narrow dtype",
        ("K26",),
        "dtype",
        ("dtype=bf16", "dtype=f16"),
    ),
)
