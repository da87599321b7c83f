"""Structural stages: what each cell, each embedding row and each part really holds, found bit by bit among the recorded stages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.ops.base import Weight
from oracle.tensor import Array, Tensor
from parity.explain.base import Hypothesis, Suspect, become, shortened, spans, with_args, with_params

MAX_TABLE = 1 << 27
NAMED = 6


def cells(s: Suspect) -> Iterator[Hypothesis]:
    """cells: every diverging cell equal to another cell, to a cell of an earlier step, to a row of a recorded stage, or zeros."""
    places = _places(s)
    wrong = s.rows
    own = s.stage.path, s.stage.step
    found = [_source(s.c[cell], int(cell), places, own) for cell in wrong]
    if None in found:
        return
    value = s.y.data.copy()
    value[wrong] = s.c[wrong]
    groups: dict[str, list[int]] = {}
    for cell, source in zip(wrong, found, strict=True):
        assert source is not None
        groups.setdefault(_phrase(source, int(cell), s.stage.step), []).append(int(cell))
    text = "; ".join(f"cell{'s' if len(at) > 1 else ''} {spans(at)} {phrase}" for phrase, at in list(groups.items())[:NAMED])
    kinds = {_kind(f, s.stage.step) for f in found if f is not None}
    kind = kinds.pop() if len(kinds) == 1 else "cells.content"
    p = {"cells": {str(int(c)): list(f) for c, f in zip(wrong[:512], found, strict=False) if f is not None}}
    yield Hypothesis(kind, shortened(text, 240), s.stage, become(value), parameters=p)


Place = tuple[str, int, int]
ZEROS = ("zeros", -1, -1)


def _places(s: Suspect) -> dict[bytes, list[Place]]:
    """Where a row of values may come from: (stage, step, row) by the bytes of the row; this stage's own healthy cells first."""
    found: dict[bytes, list[Place]] = {}
    width = s.c[0].size if len(s.c) else 0

    def note(rows: Array, path: str, step: int) -> None:
        flat = np.ascontiguousarray(rows.reshape(len(rows), -1))
        for i, row in enumerate(flat):
            found.setdefault(row.tobytes(), []).append((path, step, i))

    note(s.y.data, s.stage.path, s.stage.step)
    world = s.world
    if world.dump is not None:
        for step in sorted((t for t in world.dump.steps if t <= s.stage.step), reverse=True):
            for path in world.stages(step):
                shape = world.shape(step, path)
                if (path, step) == (s.stage.path, s.stage.step) or len(shape) < 2 or int(np.prod(shape[1:])) != width:
                    continue
                rows = world.recorded(step, path)
                if rows is not None:
                    note(rows, path, step)
    return found


def _source(row: Array, cell: int, places: dict[bytes, list[Place]], own: tuple[str, int]) -> Place | None:
    if not row.any():
        return ZEROS
    options = places.get(np.ascontiguousarray(row.reshape(-1)).tobytes())
    if not options:
        return None
    # A cell of this cache says more than the stage it was filled from, one of now more than one of before.
    return min(options, key=lambda p: (p[0] != own[0], p[1] != own[1], abs(p[2] - cell)))


def _phrase(source: Place, cell: int, step: int) -> str:
    path, at, row = source
    if source == ZEROS:
        return "are zeros"
    name = path.rpartition(".")[2]
    if name.endswith("_cells"):
        where = f"the cell {row - cell:+d} from it" if row != cell else "its own content"
        return f"hold {where}" + ("" if at == step else f" of step {at} (stale)")
    shift = f"row {row - cell:+d} from it" if row != cell else "the row of the same number"
    return f"hold {shift} of {path}" + ("" if at == step else f" of step {at}")


def _kind(source: Place, step: int) -> str:
    path, at, _ = source
    if source == ZEROS:
        return "cells.zero"
    if at != step:
        return "cells.stale"
    return "cells.shift" if path.endswith("_cells") else "cells.alias"


def embedding(s: Suspect) -> Iterator[Hypothesis]:
    """gather: which token's row each diverging row holds, and the scale."""
    table, ids, *_ = s.stage.args
    scale = s.stage.params.get("scale", 1.0)
    if scale != 1.0:
        yield Hypothesis("gather.scale", "the embedding scale left out", with_params(s.stage, scale=1.0))
        yield Hypothesis("gather.scale", "the embedding scale applied twice", with_params(s.stage, scale=scale * scale))
    root = table.width**0.5
    yield Hypothesis("gather.scale", "embedding rows times sqrt(width)", with_params(s.stage, scale=scale * root))
    yield Hypothesis("gather.scale", "embedding rows over sqrt(width)", with_params(s.stage, scale=scale / root))
    if isinstance(ids, Tensor):
        return
    mine = np.asarray(ids, np.int64)
    yield from _layouts(s, table, mine)
    solved = _solved_ids(s, table, mine, scale)
    if solved is not None and not np.array_equal(solved, mine):
        yield _tokens(s, table, mine, solved)


def _layouts(s: Suspect, table: Weight, mine: NDArray[np.int64]) -> Iterator[Hypothesis]:
    """Mistakes in how a block is laid out: anchor and masks."""
    if len(mine) < 2:
        return
    anchor, mask = int(mine[0]), int(mine[-1])
    yield Hypothesis(
        "mask.embedding", "mask rows embedded as the anchor", with_args(s.stage, table, np.full(len(mine), anchor), *s.stage.args[2:])
    )
    for text, other in (
        ("the anchor's row holds the mask", np.where(np.arange(len(mine)) == 0, mask, mine)),
        ("the anchor in the last row, masks before it", np.roll(mine, -1)),
        ("the anchor in the second row", np.roll(mine, 1)),
        ("the anchor in the first two rows", np.where(np.arange(len(mine)) == 1, anchor, mine)),
    ):
        if not np.array_equal(other, mine):
            yield Hypothesis("anchor.layout", text, with_args(s.stage, table, other, *s.stage.args[2:]), parameters={"ids": other.tolist()})


def _solved_ids(s: Suspect, table: Weight, mine: NDArray[np.int64], scale: float) -> NDArray[np.int64] | None:
    """The token whose row each diverging row equals, int64 [row]; None where one has no such row or the table is too big to search."""
    if table.row_count * table.width > MAX_TABLE:
        near = {int(i) + d for i in mine for d in (-1, 0, 1)} | {0, 1, 2, 3, table.row_count - 1}
        options = np.array(sorted(i for i in near if 0 <= i < table.row_count))
        rows = np.stack([table.tile(int(i), int(i) + 1)[0] for i in options])
    else:
        options, rows = np.arange(table.row_count), table.tile(0, table.row_count)
    solved = mine.copy()
    for r in s.rows:
        distance = np.abs(rows * scale - s.c[r]).max(1)
        best = int(distance.argmin())
        if not distance[best] <= 1e-2 * max(float(np.abs(s.c[r]).max(initial=0.0)), 1e-30):
            return None
        solved[r] = options[best]
    return solved


def _tokens(s: Suspect, table: Weight, mine: NDArray[np.int64], solved: NDArray[np.int64]) -> Hypothesis:
    wrong = np.flatnonzero(mine != solved)
    masks = wrong[wrong > 0]
    edited = with_args(s.stage, table, solved, *s.stage.args[2:])
    if len(wrong) and len(masks) == len(wrong) and len(np.unique(solved[masks])) == 1 and len(np.unique(mine[masks])) == 1:
        text = f"rows {spans(wrong)} hold token {solved[masks[0]]}, not the mask {mine[masks[0]]}"
        return Hypothesis("mask.id", text, edited, parameters={"token": int(solved[masks[0]]), "mask": int(mine[masks[0]])})
    text = ", ".join(f"row {r} holds token {solved[r]}, not {mine[r]}" for r in wrong[:NAMED])
    return Hypothesis("gather.ids", text, edited, parameters={"ids": solved.tolist()})


def parts(s: Suspect) -> Iterator[Hypothesis]:
    """part: another slice of the same projection, or one that is interleaved."""
    x, p = s.stage.args[0].data, s.stage.params
    width, whole = p["stop"] - p["start"], x.shape[-1]
    for start in range(0, whole - width + 1, width):
        if start != p["start"]:
            text = f"entries {start} to {start + width - 1} in place of {p['start']} to {p['stop'] - 1} (the other part)"
            yield Hypothesis("part.half", text, with_params(s.stage, start=start, stop=start + width))
    if whole % width == 0:
        number = p["start"] // width
        yield Hypothesis("part.interleaved", "the parts interleaved, not side by side", s.stage, become(x[..., number :: whole // width]))
        flat = x.reshape(len(x), -1)
        half = flat[:, number * flat.shape[1] * width // whole :][:, : s.c[0].size]
        if half.size == s.c.size:
            yield Hypothesis("part.whole", "the projection split in two over all heads, not inside each", s.stage, become(half))


def replicate(s: Suspect) -> Iterator[Hypothesis]:
    """replicate: the copies interleaved, or only one of them."""
    x, copies = s.stage.args[0].data, s.stage.params["copies"]
    yield Hypothesis("streams.layout", "the streams interleaved (each value repeated)", s.stage, become(np.repeat(x, copies, 1)))
    first = np.concatenate([x, np.zeros((len(x), x.shape[1] * (copies - 1)))], 1)
    yield Hypothesis("streams.first", "only the first stream filled, zeros in the others", s.stage, become(first))
    yield Hypothesis("streams.start", "divided by the number of streams", s.stage, become(np.tile(x, (1, copies)) / copies))


def joined(s: Suspect) -> Iterator[Hypothesis]:
    """join: the parts in another order."""
    tensors: list[Any] = [a for a in s.stage.args if isinstance(a, Tensor)]
    if 1 < len(tensors) <= 4:
        turned = tensors[::-1]
        if sum(t.data.shape[-1] for t in turned) == s.c.shape[-1]:
            yield Hypothesis("join.order", "the parts in reverse order", with_args(s.stage, *turned))
