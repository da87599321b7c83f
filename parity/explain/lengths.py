"""Caches of another length than the case's: which cells are missing or too many, found bit by bit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oracle.readings import Stage
from oracle.tensor import Array, Tensor
from parity.explain import Explanation
from parity.explain.base import spans


def resized(stage: Stage, y: Tensor, c: Array) -> list[Explanation]:
    """What explains that ``c`` [cell, …] has not the cells of ``y``: all that the two share in order, the rest in one piece. [] where
    they share no more than that."""
    if stage.op.name != "cells" or c.shape[1:] != y.data.shape[1:]:
        return []
    held, due = _within(c, y.data), _within(y.data, c)
    context = len(stage.args[0].data)
    if held is not None and len(c) < len(y.data):
        return _piece(np.setdiff1d(np.arange(len(y.data)), held), context, f"of {len(y.data)} cells", "missing")
    if due is not None and len(c) > len(y.data):
        extra = np.setdiff1d(np.arange(len(c)), due)
        return _piece(extra, context + len(extra), f"of its {len(c)} cells", "too many")
    return []


def _within(few: Array, many: Array) -> NDArray[np.intp] | None:
    """Which rows of ``many`` those of ``few`` are, in order; None where one is not there."""
    rows = [np.ascontiguousarray(r).tobytes() for r in many]
    found, at = [], 0
    for row in few:
        try:
            at = rows.index(np.ascontiguousarray(row).tobytes(), at)
        except ValueError:
            return None
        found.append(at)
        at += 1
    return np.array(found, np.intp)


def _piece(cells: NDArray[np.intp], context: int, of: str, what: str) -> list[Explanation]:
    """The mistake that leaves out (or keeps) the consecutive ``cells`` of a context of that many."""
    first, last = int(cells[0]), int(cells[-1])
    if len(cells) != last - first + 1 or last >= context:
        return []
    p = {"cells": cells.tolist()}
    told = f"cells {spans(cells)} {of} are {what}"
    if last == context - 1 and first > 0:
        kind, why = {
            "missing": ("context.crop", "the context's last rows lost"),
            "too many": ("context.proposals", "rows kept behind the context's own"),
        }[what]
        return [Explanation(kind, f"{why}: {told}", 0.0, parameters=p)]
    by = -len(cells) if what == "missing" else len(cells)
    kept = f"{abs(by)} cells {'fewer' if by < 0 else 'more'} than the window has" + (f", beside a sink of {first}" if first else "")
    return [Explanation("attention.window", f"the cache keeps {kept}: {told}", 0.0, parameters=p | {"delta": by})]
