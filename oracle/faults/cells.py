"""Mistakes of a cache: cells stale, moved, never written, aliased, wrapped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.faults.grammar import Options
from oracle.faults.kind import Kind, Plant, need
from oracle.readings import Stage

Values = NDArray[Any]
OPS = ("cells",)


def _context(change: Callable[[Values], Values]) -> Plant:
    """An edit of the context's cells, those before the rows' own."""

    def edit(stage: Stage) -> Stage:
        need(len(stage.args) > 1 and len(stage.args[0].data) > 1, "no context of two cells")
        return stage

    def after(stage: Stage, y: Values) -> Values:
        count = len(y) - len(stage.args[-1].data)
        return np.concatenate([change(y[:count]), y[count:]])

    return Plant(edit, after)


def _stale(o: Options) -> Plant:
    """Cell ``cell`` holds what the cell ``from`` further holds."""
    cell, source = o.integer("cell"), o.integer("from")

    def change(y: Values) -> Values:
        out, at = y.copy(), cell % len(y)
        out[at] = y[(at + source) % len(y)]
        return out

    return _context(change)


def _shift(o: Options) -> Plant:
    by = o.integer("by")
    return _context(lambda y: np.roll(y, by, 0))


def _zero(o: Options) -> Plant:
    cell = o.integer("cell")

    def change(y: Values) -> Values:
        out = y.copy()
        out[cell % len(y)] = 0
        return out

    return _context(change)


def _alias(_: Options) -> Plant:
    """The block's first rows written over the end of the context."""

    def edit(stage: Stage) -> Stage:
        need(len(stage.args) > 1 and len(stage.args[0].data), "no context")
        return stage

    def after(stage: Stage, y: Values) -> Values:
        own = len(stage.args[-1].data)
        count, out = len(y) - own, y.copy()
        n = min(own, count, 2)
        out[count - n : count] = y[count : count + n]
        return out

    return Plant(edit, after)


def _wrap(o: Options) -> Plant:
    """A cell's index cut to ``period``: too narrow an index, or a ring too short."""
    period = o.integer("period")

    def edit(stage: Stage) -> Stage:
        need(sum(len(p.data) for p in stage.args) > period > 0, f"no cell beyond {period}")
        return stage

    return Plant(edit, lambda stage, y: y[np.arange(len(y)) % period])


def _order(_: Options) -> Plant:
    """The rows' own cells before the context's."""

    def edit(stage: Stage) -> Stage:
        need(len(stage.args) > 1 and len(stage.args[0].data), "no context")
        return stage

    return Plant(edit, lambda stage, y: np.roll(y, len(stage.args[-1].data), 0))


KINDS = (
    Kind(
        "cells.stale",
        OPS,
        "*.k_cells",
        {"cell": "-1", "from": "-1"},
        _stale,
        "a context cell holds another position's row",
        ("K20", "K4"),
        "cell",
        ("cell=-1,from=-1", "cell=0,from=1"),
    ),
    Kind(
        "cells.shift",
        OPS,
        "*.v_cells",
        {"by": "1"},
        _shift,
        "all context cells moved by one: a boundary row dropped or doubled",
        ("K4", "K20"),
        "by",
        ("by=1", "by=-1"),
    ),
    Kind(
        "cells.zero",
        OPS,
        "*.k_cells",
        {"cell": "0"},
        _zero,
        "a context cell never written",
        ("K4", "K21", "K31"),
        "cell",
        ("cell=0", "cell=-1"),
        alike=("values.zero",),
    ),
    Kind("cells.alias", OPS, "*.v_cells", {}, _alias, "the block's rows written over the end of the context", ("K21", "K30")),
    Kind(
        "cells.wrap",
        OPS,
        "*.k_cells",
        {"period": "16"},
        _wrap,
        "the cell's index cut to a period: too narrow, or a ring too short",
        ("K35", "K20"),
        "period",
        ("period=16", "period=8"),
        alike=("cells.stale", "cells.shift"),
    ),
    Kind("cells.order", OPS, "*.k_cells", {}, _order, "the rows' own cells before the context's", ("K20",), alike=("cells.shift",)),
)
