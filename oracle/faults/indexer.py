"""Mistakes of the indexer: pooled keys, scores, and the cells selected by them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.faults.grammar import Options
from oracle.faults.kind import Kind, Plant, need, params
from oracle.readings import Stage

Values = NDArray[Any]


def _pooling(_: Options) -> Plant:
    """The last cell of every block in place of their mean."""
    return Plant(after=lambda stage, y: np.asarray(stage.args[0].data[stage.params["ratio"] - 1 :: stage.params["ratio"]][: len(y)]))


def _budget(o: Options) -> Plant:
    blocks = o.integer("blocks")

    def edit(stage: Stage) -> Stage:
        ratio, budget = stage.params["ratio"], stage.params["budget"]
        need(budget + blocks * ratio >= ratio, "no smaller budget")
        return params(stage, budget=budget + blocks * ratio)

    return Plant(edit)


def _tail(_: Options) -> Plant:
    """The incomplete block at the end not attended to, but for the row itself."""

    def after(stage: Stage, y: Values) -> Values:
        pos, ratio, out = np.asarray(stage.args[1]), stage.params["ratio"], y.copy()
        for row, p in zip(out, pos, strict=True):
            row[(p + 1) // ratio * ratio : p] = 0
        return out

    return Plant(after=after)


def _index(how: str) -> Plant:
    """Negative products of the heads not cut (relu), or the scale left out (scale)."""

    def edit(stage: Stage) -> Stage:
        return params(stage, scale=1.0) if how == "scale" else stage

    def after(stage: Stage, y: Values) -> Values:
        q, k = (np.asarray(a.data, np.float64) for a in stage.args[:2])
        return y if how == "scale" else np.where(y == 0, 0.0, np.einsum("rhd,bd->rb", q, k[:, 0]) * stage.params["scale"])

    return Plant(edit, after)


KINDS = (
    Kind(
        "index.pool",
        ("block_mean",),
        "*",
        {},
        _pooling,
        "the last cell of a block in place of the mean",
        ("K4",),
        knobs={"pooled index": ""},
    ),
    Kind(
        "index.budget",
        ("select_cells",),
        "*",
        {"blocks": "-1"},
        _budget,
        "one block more or less selected",
        ("K10", "K34"),
        "blocks",
        ("blocks=-1", "blocks=1"),
        {"budget": "blocks=-1"},
    ),
    Kind(
        "index.tail",
        ("select_cells",),
        "*",
        {},
        _tail,
        "the incomplete block at the end not attended to",
        ("K10", "K4"),
        knobs={"tail": ""},
    ),
    Kind(
        "index.relu",
        ("index_scores",),
        "*",
        {},
        lambda o: _index("relu"),
        "negative products of the indexer's heads not cut",
        ("K34",),
        knobs={"indexer's relu": ""},
    ),
    Kind(
        "index.scale",
        ("index_scores",),
        "*",
        {},
        lambda o: _index("scale"),
        "the indexer's scale left out",
        ("K6",),
        alike=("values.scale",),
    ),
)
