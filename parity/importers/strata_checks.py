"""What a Strata stage directory must agree on with itself and with the case (`specs/qwen38-flash-next.md` 7.3, 8.4)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from parity.case import Case
from parity.errors import UsageError

if TYPE_CHECKING:
    from dumps.importers import Strata
    from parity.adapters.mapping import Stages

F32 = NDArray[np.float32]
Q8_BYTES, Q8_VALUES = 36, 32
F16_STEP, F16_LEAST = 2.0**-11, 2.0**-25


@dataclass(frozen=True, eq=False)
class Block:
    """A directory and the ``step`` of the case that it holds; ``stages`` of the whole case."""

    case: Case
    recording: Strata
    step: int
    stages: Stages

    @property
    def layers(self) -> int:
        return sum(1 for step, path in self.stages if step == self.step and path.endswith(".h_mlp"))

    def stage(self, path: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """(axes, shape) of a stage of the block."""
        if (self.step, path) not in self.stages:
            raise UsageError(f"{self.recording.path}: holds {path}, which step {self.step} of the case has not")
        return self.stages[self.step, path]

    def append_of(self, position: int) -> int:
        """The step that commits ``position``: the last append before the block that covers it."""
        for index in reversed(range(self.step)):
            step = self.case.steps[index]
            if step.kind == "append" and step.at <= position < step.at + len(step.array):
                return index
        raise UsageError(f"{self.recording.path}: holds context row {position}, which the case does not commit before the block")

    def context_width(self, path: str) -> int:
        return next((shape[1] for (_, p), (_, shape) in self.stages.items() if p == path), 1)

    def pages(self, layer: int) -> NDArray[np.int64] | None:
        """The page table of a layer, or None where it was not recorded."""
        name = f"pt{layer}"
        return self.recording.integers(name).astype(np.int64) if name in self.recording.files else None

    def cells(self, name: str, layer: int) -> F32:
        """[cell, head, dim] of a paged pool ``[page][head][slot][dim]``. `UsageError` where a cell lies outside it."""
        file = self.recording.files[name]
        page = self.recording.page
        if page is None:
            raise UsageError(f"{file}: meta.bin does not say how many cells a page has; leave the pools out")
        _, (count, heads, dim) = self.stage(f"draft.L{layer}.{name[0]}_cells")
        pool = self.recording.values(name)
        if pool.size % (heads * page * dim):
            raise UsageError(f"{file}: expected pages of {heads} heads, {page} cells and {dim} values, found {pool.size} values")
        table = self.pages(layer)
        needed = -(-count // page)
        table = np.arange(needed) if table is None else table
        held = pool.size // (heads * page * dim)
        if len(table) < needed or table[:needed].min() < 0 or table[:needed].max() >= held:
            raise UsageError(
                f"{file}: cell {count - 1} needs {needed} pages; the page table {table.tolist()[:8]} names some outside {held}"
            )
        paged = pool.reshape(held, heads, page, dim)[table[:needed]]
        return np.ascontiguousarray(paged.transpose(0, 2, 1, 3).reshape(-1, heads, dim)[:count])


def reread(block: Block, name: str, cells: F32, layer: int) -> F32 | None:
    """The cells with their words read as f16, if only so the block's own are its keys or values; else None."""
    own = _own(block, name, layer)
    if own is None:
        return None
    words = cells.view(np.uint32)
    if (words & 0xFFFF).any() or _rounded(cells[-len(own) :], own):
        return None
    again = (words >> 16).astype(np.uint16).view(np.float16).astype(np.float32)
    return again if _rounded(again[-len(own) :], own) else None


def check(block: Block) -> list[str]:
    """One line for each thing that does not agree."""
    recording, files = block.recording, block.recording.files
    found = [*_ids(block), *_embedding(block), *_head(block)]
    for layer in range(block.layers):
        if f"steps{layer}" in files:
            found += _steps(block, layer)
        table = block.pages(layer)
        if table is not None and not np.array_equal(table, np.arange(len(table))):
            found.append(f"pt{layer}: expected the pages in order, found {table.tolist()[:8]}")
        for name in (f"kpool{layer}", f"vpool{layer}"):
            own = _own(block, name, layer) if name in files else None
            if own is not None:
                cells = block.cells(name, layer)
                cells = cells if (again := reread(block, name, cells, layer)) is None else again
                found += _written(block, name, cells[-len(own) :], own)
    if "pool_meta" in files:
        cell, page, *_ = (*recording.plain("pool_meta"), 0, 0)
        if cell != recording.anchor - 1 or (recording.page and page != cell // recording.page):
            found.append(f"pool_meta: expected the last context row in cell {recording.anchor - 1}, found cell {cell} of page {page}")
    return found


def _ids(block: Block) -> Iterator[str]:
    """The anchor and the mask of meta against the block's ids."""
    ids, recording = block.case.steps[block.step].array, block.recording
    if recording.token is not None and recording.token != int(ids[0]):
        yield f"meta: the anchor is token {recording.token}, the case's is {int(ids[0])}"
    if recording.mask is not None and any(int(i) != recording.mask for i in ids[1:]):
        yield f"meta: the mask is token {recording.mask}, the case's masks are {sorted({int(i) for i in ids[1:]})}"


def _embedding(block: Block) -> Iterator[str]:
    if "emb" not in block.recording.files or block.recording.rows < 2:
        return
    rows = block.recording.values("emb").reshape(block.recording.rows, -1)
    differ = [i for i in range(2, len(rows)) if not np.array_equal(rows[i], rows[1])]
    if differ:
        yield f"emb: expected the same mask row in rows 1 to {len(rows) - 1}, found others in rows {differ}"
    if np.array_equal(rows[0], rows[1]):
        yield "emb: row 0 is the mask's, expected the anchor's"


def _steps(block: Block, layer: int) -> Iterator[str]:
    recording = block.recording
    found, end = recording.integers(f"steps{layer}"), recording.anchor + recording.rows
    if found.size != 4 * recording.rows:
        raise UsageError(f"{recording.files[f'steps{layer}']}: expected {4 * recording.rows} integers, found {found.size}")
    want = [end - 1, end, None if recording.page is None else end // recording.page, end]
    for row, record in enumerate(found.reshape(-1, 4).tolist()):
        if any(w is not None and w != f for w, f in zip(want, record, strict=True)):
            as_floats = found.view(np.float32)
            hint = "; its integers were converted to floats, not copied" if as_floats[0] == end - 1 else ""
            yield f"steps{layer}: row {row} is {record}, expected {want}: the attention does not end at {end}{hint}"
            return


def _own(block: Block, name: str, layer: int) -> F32 | None:
    """The block's own keys or values [row, head, dim] beside a pool."""
    other = f"{name[0]}{layer}"
    if other not in block.recording.files:
        return None
    _, (_, heads, dim) = block.stage(f"draft.L{layer}.{name[0]}_cells")
    values = block.recording.values(other)
    if values.size != block.recording.rows * heads * dim:
        raise UsageError(f"{block.recording.files[other]}: expected {[block.recording.rows, heads, dim]} values, found {values.size}")
    return values.reshape(-1, heads, dim)


def _wrong(cells: F32, own: F32) -> NDArray[np.bool_]:
    with np.errstate(invalid="ignore"):
        close: NDArray[np.bool_] = np.abs(cells - own) <= F16_STEP * np.abs(own) * 1.001 + F16_LEAST
    return ~close


def _rounded(cells: F32, own: F32) -> bool:
    """Whether cells are their rows rounded to f16."""
    return not _wrong(cells, own).any()


def _written(block: Block, name: str, cells: F32, own: F32) -> Iterator[str]:
    wrong = _wrong(cells, own)
    if wrong.any():
        row, head, _ = (int(i[0]) for i in np.nonzero(wrong))
        cell = block.recording.anchor + row
        yield f"{name}: cell {cell}, head {head} is not row {row} of {name[0]}{name[5:]} in f16 ({int(wrong.sum())} of {wrong.size} values)"


def _head(block: Block) -> Iterator[str]:
    """The head's Q8_1 activations against the final norm: 32 values and one scale a block, half a step apart at most."""
    recording = block.recording
    if "head_act_q8" not in recording.files or "final_norm" not in recording.files:
        return
    want = recording.values("final_norm").reshape(recording.rows, -1)
    raw, blocks = recording.raw("head_act_q8"), want.size // Q8_VALUES
    if want.shape[1] % Q8_VALUES or raw.size != blocks * Q8_BYTES:
        yield f"head_act_q8: expected {blocks} blocks of {Q8_BYTES} bytes, found {raw.size} bytes"
        return
    packed = raw.reshape(blocks, Q8_BYTES)
    scale = np.ascontiguousarray(packed[:, :2]).view("<f2").astype(np.float64)
    found = scale * packed[:, 4:].view(np.int8)
    # The scale is kept in f16, so the largest of 127 steps is off by 2^-11 of itself.
    limit = scale * (0.5 + 127 * F16_STEP) + F16_LEAST * 127
    with np.errstate(invalid="ignore"):
        wrong = ~(np.abs(found - want.reshape(blocks, Q8_VALUES)) <= limit)
    if wrong.any():
        row = int(np.nonzero(wrong)[0][0]) * Q8_VALUES // want.shape[1]
        yield f"head_act_q8: row {row} is not final_norm in blocks of Q8_1 ({int(wrong.sum())} of {wrong.size} values)"
