"""Strata's stage directory as stages of a drafter's case: one block, and the context rows fused before it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oracle.floats import F16
from parity.adapters.mapping import Stages
from parity.case import Case
from parity.errors import UsageError
from parity.importers import Imported
from parity.importers.strata_checks import Block, check, reread

if TYPE_CHECKING:
    from dumps import DumpWriter
    from dumps.importers import Strata

#: file, {l} a layer's number -> stage
BLOCK = {
    "emb": "draft.embed",
    "xn{l}": "draft.L{l}.xn",
    "qraw{l}": "draft.L{l}.q_raw",
    "qnormed{l}": "draft.L{l}.q_norm",
    "q{l}": "draft.L{l}.q_rope",
    "k{l}": "draft.L{l}.k_rope",
    "v{l}": "draft.L{l}.v",
    "attn{l}": "draft.L{l}.attn",
    "h_attn{l}": "draft.L{l}.h_attn",
    "h_mlp{l}": "draft.L{l}.h_mlp",
    "final_norm": "draft.final_norm",
    "head_logits": "draft.logits",
    "head_picks": "draft.pick",
}
POOLS = {"kpool{l}": "draft.L{l}.k_cells", "vpool{l}": "draft.L{l}.v_cells"}
#: what is checked, but is no stage
CHECKED = ("meta", "pool_meta", "steps{l}", "pt{l}", "head_act_q8", "pool_cells0", "pool_k0", "pool_head", "head_ids")
CONTEXT = re.compile(r"ctx_b([0-9]{1,10})")


def place_strata(case: Case, recording: Strata, stages: Stages, writer: DumpWriter) -> Imported:
    """Put the directory's block and context rows in the dump, and check it against itself. `UsageError`, `DumpError`."""
    block = Block(case, recording, _step(case, recording), stages)
    done = Imported()
    names = {_name(pattern, layer): (pattern, layer) for pattern in (*BLOCK, *POOLS, *CHECKED) for layer in range(block.layers)}
    _put_context(block, done, writer)
    for name in recording.files:
        if name in ("tapsin", "ctx") or CONTEXT.fullmatch(name):
            continue
        if name not in names:
            done.unmapped.append(name)
            continue
        pattern, layer = names[name]
        if pattern in BLOCK:
            _put(block, done, writer, name, BLOCK[pattern].replace("{l}", str(layer)))
        elif pattern in POOLS:
            _put_pool(block, done, writer, name, POOLS[pattern].replace("{l}", str(layer)), layer)
    done.findings += check(block)
    return done


def _name(pattern: str, layer: int) -> str:
    return pattern.replace("{l}", str(layer))


def _step(case: Case, recording: Strata) -> int:
    """The step of the case that the directory holds."""
    if case.role != "drafter":
        raise UsageError(f"{recording.path}: holds a drafter's block, the case {case.name} is a {case.role}'s")
    for index, step in enumerate(case.steps):
        if (step.kind, step.at, len(step.array)) == ("propose", recording.anchor, recording.rows):
            return index
    there = ", ".join(f"{len(s.array)} rows at {s.at}" for s in case.steps if s.kind == "propose")
    raise UsageError(f"{recording.path}: holds a block of {recording.rows} rows at {recording.anchor}; the case's blocks: {there}")


def _put(block: Block, done: Imported, writer: DumpWriter, name: str, path: str) -> None:
    values: NDArray[Any] = block.recording.integers(name) if name == "head_picks" else block.recording.values(name)
    axes, shape = block.stage(path)
    if values.size != int(np.prod(shape)):
        raise UsageError(f"{block.recording.files[name]}: has {values.size} values, {path} has {list(shape)} ({', '.join(axes)})")
    values = values.reshape(shape)
    writer.put(block.step, path, values, dtype="i32" if name == "head_picks" else "f32", axes=axes)
    done.placed[block.step, path] = [name]
    if not np.isfinite(values).all():
        done.findings.append(f"{name}: {int((~np.isfinite(values)).sum())} of its values are not finite")


def _put_pool(block: Block, done: Imported, writer: DumpWriter, name: str, path: str, layer: int) -> None:
    """The cells in order, in f16 as the engine keeps them. Words that were misread are read again, and that is a finding."""
    axes, _ = block.stage(path)
    cells = block.cells(name, layer)
    other = reread(block, name, cells, layer)
    if other is not None:
        cells = other
        done.findings.append(
            f"{name}: its f16 words were widened as if they were bf16 (the recorder's mistake, not the engine's): read again they hold "
            f"{name[0]}{layer}; the dump has them so"
        )
    fits = bool(F16.holds(cells.astype(np.float64)).all())
    if not fits:
        done.findings.append(f"{name}: expected f16 values widened to f32, found values that f16 does not hold")
    writer.put(block.step, path, cells, dtype="f16" if fits else "f32", axes=axes)
    done.placed[block.step, path] = [name]


def _put_context(block: Block, done: Imported, writer: DumpWriter) -> None:
    """``ctx_b<position>`` at their positions, then ``ctx`` and ``tapsin``: the rows right before the block."""
    taken: dict[tuple[str, int], NDArray[np.float32]] = {}
    for name in sorted(block.recording.files, key=lambda n: (not CONTEXT.fullmatch(n), n)):
        found = CONTEXT.fullmatch(name)
        if found is None and name not in ("ctx", "tapsin"):
            continue
        path = "draft.taps" if name == "tapsin" else "draft.ctx"
        width = block.context_width(path)
        values = block.recording.values(name)
        if values.size % width or not values.size:
            raise UsageError(f"{block.recording.files[name]}: expected rows of {width} values for {path}, found {values.size} values")
        rows = values.reshape(-1, width)
        start = int(found[1]) if found else block.recording.anchor - len(rows)
        if start < 0 or start + len(rows) > block.recording.anchor:
            raise UsageError(f"{block.recording.files[name]}: rows {start} to {start + len(rows) - 1} are not before the block's position")
        fresh = [i for i in range(len(rows)) if (path, start + i) not in taken]
        for i in set(range(len(rows))) - set(fresh):
            if not np.array_equal(taken[path, start + i], rows[i]):
                done.findings.append(f"{name}: position {start + i} differs from what another file of the recording has there")
        for step, row0, part in _pieces(block, [start + i for i in fresh]):
            kept = rows[[p - start for p in part]]
            writer.put(step, path, kept, row0=row0, dtype="f32", axes=("row", "dim"))
            done.placed.setdefault((step, path), []).append(name)
        taken |= {(path, start + i): rows[i] for i in fresh}


def _pieces(block: Block, positions: list[int]) -> Iterator[tuple[int, int, list[int]]]:
    """Runs of positions that one append of the case commits: (its step, the first row, the positions)."""
    run: list[int] = []
    where = {p: block.append_of(p) for p in positions}
    for p in positions:
        if run and (p != run[-1] + 1 or where[p] != where[run[-1]]):
            yield where[run[0]], run[0] - block.case.steps[where[run[0]]].at, run
            run = []
        run.append(p)
    if run:
        yield where[run[0]], run[0] - block.case.steps[where[run[0]]].at, run
