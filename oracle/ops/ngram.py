"""ngram: the hashed n-gram embedding of every token, the table rows of its heads side by side; moved, not changed.

Source: `specs/qwen38-flash-next.md` 1.8. Only the rows that are hit are read, so the table may be a map of any size.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from oracle.kit import Kit, Values
from oracle.ngrams import NGrams, Table
from oracle.ops.base import Axes, Operation


def axes(table: Table, ids: Any, history: Any, recipe: NGrams) -> Axes:
    return ("row", "dim")


def shape(table: Table, ids: Any, history: Any, recipe: NGrams) -> tuple[int, ...]:
    return (len(ids), recipe.heads * table.width)


def formula(F: Kit, table: Table, ids: Any, history: Any, recipe: NGrams) -> Values:
    """table [n-gram, dim], ids int64 [row], history int64 [size - 1] (the tokens before, end marks where there are none)
    -> [row, head * dim]."""
    rows = recipe.rows(ids, history)
    if rows.size and int(rows.max()) >= table.row_count:
        raise ValueError(f"ngram: row {int(rows.max())} is outside {table.name} of {table.row_count} rows")
    found = [np.concatenate([table.tile(int(r), int(r) + 1)[0] for r in token]) for token in rows]
    return F.cast(np.stack(found) if found else np.empty(shape(table, ids, history, recipe)))


ngram = Operation("ngram", "structural", axes, shape, formula)
