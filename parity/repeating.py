"""Several runs of one candidate on one case, bit for bit: the first stage and rows that do not repeat (a race shows there first)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from dumps import Dump, StageRecord

BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True)
class Unrepeated:
    """A stage that differs between runs. ``rows``: those with a different bit in any further run, all where one lacks the stage or has
    another shape; ``elements`` of ``of``: how many differ in the worst run; ``runs``: numbers of those that differ from run 1."""

    step: int
    stage: str
    rows: list[int]
    elements: int
    of: int
    runs: list[int]


def unrepeated(runs: Sequence[Dump]) -> list[Unrepeated]:
    """Every stage whose recorded bits are not the same in all ``runs``, in the recorded order of the first."""
    first, *others = runs
    keys = dict.fromkeys((step, stage) for d in runs for step in d.steps for stage in d.stages(step))
    found = []
    for step, stage in keys:
        a = first.get(step, stage)
        per_run = {n: _rows(a, other.get(step, stage)) for n, other in enumerate(others, 2)}
        differing = {n: counts for n, counts in per_run.items() if counts.any()}
        if differing:
            length = max(len(c) for c in differing.values())
            rows = sorted({int(r) for c in differing.values() for r in np.flatnonzero(c)})
            row0 = 0 if a is None else a.row0
            size = length if a is None else int(np.prod(a.shape))
            most = max(int(c.sum()) for c in differing.values())
            found.append(Unrepeated(step, stage, [row0 + r for r in rows], most, size, list(differing)))
    return found


def _rows(a: StageRecord | None, b: StageRecord | None) -> NDArray[np.int64]:
    """Different elements of each row; every element where the stages cannot be laid side by side."""
    if a is None or b is None or (a.shape, a.dtype, a.row0) != (b.shape, b.dtype, b.row0):
        one = a or b
        assert one is not None
        return np.full(one.rows, max(int(np.prod(one.shape[1:])), 1), np.int64)
    x, y = (np.ascontiguousarray(r.array()) for r in (a, b))
    bits = BITS[x.dtype.itemsize]
    different: NDArray[np.int64] = (x.view(bits) != y.view(bits)).reshape(len(x), -1).sum(1)
    return different


def summary(runs: int, found: Sequence[Unrepeated]) -> dict[str, Any]:
    """For the report: ``runs``, ``reproducible``, ``stages``."""
    return {"runs": runs, "reproducible": not found, "stages": [asdict(f) for f in found]}
