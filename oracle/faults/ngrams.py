"""Mistakes of hashed n-grams and of the gate of their embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.faults.grammar import Options
from oracle.faults.kind import Kind, Plant, args, need
from oracle.kit import EXACT
from oracle.readings import Stage

Values = NDArray[Any]


def _root(_: Options) -> Plant:
    """The product itself, without its signed root."""

    def after(stage: Stage, y: Values) -> Values:
        key, query = (EXACT.cast(a.data).reshape(len(y), stage.params["streams"], -1) for a in stage.args)
        return np.asarray((key * query).sum(-1) / np.sqrt(key.shape[-1]))

    return Plant(after=after)


def _hash(o: Options) -> Plant:
    """The tokens before the first of the window read as end marks (history), or every row hashed as the row before it (row)."""
    how = o.choice("how", "history", "row")

    def edit(stage: Stage) -> Stage:
        table, ids, history, recipe = stage.args
        if how == "row":
            need(len(ids) > 1, "a single row")
            return args(stage, table, np.concatenate([history[-1:], ids[:-1]]), history, recipe)
        blank = np.full_like(history, recipe.end)
        need(not np.array_equal(blank, history), "no token before")
        return args(stage, table, ids, blank, recipe)

    return Plant(edit)


KINDS = (
    Kind("ple.root", ("ple_gate",), "*", {}, _root, "the product without its signed root", ("K34",), knobs={"signed root": ""}),
    Kind(
        "ngram.hash",
        ("ngram",),
        "*",
        {"how": "history"},
        _hash,
        "tokens before the window not hashed, or every row hashed as the one before",
        ("K4", "K3"),
        "how",
        ("how=history", "how=row"),
        {"n-gram history": "how=history"},
        ("values.rows",),
    ),
)
