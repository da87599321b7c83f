"""Strata's tap captures: as stages of a target's case, and the prompt path against the window path (`specs/qwen38-flash-next.md` 2.3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from oracle.tensor import Array
from parity.adapters.mapping import Stages
from parity.case import Case
from parity.errors import UsageError
from parity.importers import Imported

if TYPE_CHECKING:
    from dumps import DumpWriter
    from dumps.importers import TapRecord

# The two paths round differently; of the wirings that can be wrong, none comes near these.
COSINE, RELATIVE = 0.99, 0.12
BOUNDARIES = (4, 16, 24, 36, 44)
STAGE = "target.L{layer}.attn_hc.hc_read"


def place_taps(case: Case, records: list[TapRecord], stages: Stages, writer: DumpWriter, taps: Sequence[int] = BOUNDARIES) -> Imported:
    """Captured rows as what the attention of each boundary layer reads, in the windows of a target's case. `UsageError`."""
    from dumps.dtypes import bf16_bits

    if case.role != "target" or case.family != "qwen38-flash-next":
        raise UsageError(f"tap captures belong to a qwen38-flash-next target, the case {case.name} is a {case.family} {case.role}'s")
    done = Imported()
    if not records:
        return done
    layers = [n for n in taps if (0, STAGE.format(layer=n)) in stages]
    if len(records[0].taps) != len(layers):
        raise UsageError(f"the records hold {len(records[0].taps)} taps; the case's target has the boundary layers {layers}")
    for number, record in enumerate(records):
        for step, row0, part in _rows(case, record):
            for tap, layer in enumerate(layers):
                path = STAGE.format(layer=layer)
                values = np.ascontiguousarray(record.taps[tap, part])
                if values.shape[1] != stages[step, path][1][1]:
                    raise UsageError(f"record {number}: its taps are {values.shape[1]} wide, {path} is {stages[step, path][1][1]}")
                if not np.isfinite(values).all():
                    done.findings.append(f"record {number} ({record.source} at {record.position}): tap {tap} is not finite")
                if record.bf16 and not (values.view(np.uint32) & 0xFFFF).any():
                    writer.put(step, path, bf16_bits(values), row0=row0, dtype="bf16", axes=("row", "dim"))
                else:
                    writer.put(step, path, values, row0=row0, dtype="f32", axes=("row", "dim"))
                    if record.bf16:
                        done.findings.append(f"record {number}: says that the engine holds bf16, but its values are not")
                done.placed.setdefault((step, path), []).append(f"record {number}")
    return done


def _rows(case: Case, record: TapRecord) -> Iterator[tuple[int, int, slice]]:
    """(step, first row in it, rows of the record) for every window of the case that the record meets."""
    for index, step in enumerate(case.steps):
        first, last = max(step.at, record.position), min(step.at + len(step.array), record.position + record.rows)
        if first < last:
            yield index, first - step.at, slice(first - record.position, last - record.position)


@dataclass(frozen=True)
class Crossing:
    """One tap of one position in both paths. ``cosine`` and ``relative`` (mean |d| / mean |a|); ``why``: what else it would be."""

    position: int
    tap: int
    cosine: float
    relative: float
    why: str = ""

    @property
    def passes(self) -> bool:
        return self.cosine >= COSINE and self.relative <= RELATIVE


def cross(a: list[TapRecord], b: list[TapRecord]) -> list[Crossing]:
    """Every tap of every position that one recording holds from the prompt path and the other from the window path.

    Taps that miss are compared with the other taps and the neighbouring positions. `UsageError` where no position is in both.
    """
    found: list[Crossing] = []
    for one, other in ((a, b), (b, a)):
        prompt, windows = _by_position(one, "prompt"), _by_position(other, "window")
        for position in sorted(prompt.keys() & windows.keys()):
            x, y = prompt[position], windows[position]
            if x.shape != y.shape:
                raise UsageError(f"position {position}: {x.shape[0]} taps of {x.shape[1]} in one recording, {y.shape[0]} of {y.shape[1]}")
            found += [_compared(position, tap, x, y, prompt) for tap in range(len(x))]
    if not found:
        raise UsageError("no position is in the prompt path of one recording and in the window path of the other: run N tokens, then N + 1")
    return found


def _by_position(records: list[TapRecord], source: str) -> dict[int, NDArray[np.float64]]:
    """[tap, dim] of every position, the last record of it."""
    return {r.position + i: r.taps[:, i].astype(np.float64) for r in records if r.source == source for i in range(r.rows)}


def _compared(position: int, tap: int, prompt: Array, window: Array, others: dict[int, Array]) -> Crossing:
    with np.errstate(all="ignore"):
        relative = float(np.mean(np.abs(window[tap] - prompt[tap])) / np.mean(np.abs(prompt[tap])))
    crossing = Crossing(position, tap, _cosine(window[tap], prompt[tap]), relative)
    return crossing if crossing.passes else Crossing(position, tap, crossing.cosine, relative, _why(position, tap, window, prompt, others))


def _why(position: int, tap: int, window: Array, prompt: Array, others: dict[int, Array]) -> str:
    """What the window's tap is, if it is another of the prompt's."""
    if not np.isfinite(window[tap]).all() or not np.isfinite(prompt[tap]).all():
        return "not finite"
    for other in range(len(prompt)):
        if other != tap and _cosine(window[tap], prompt[other]) >= COSINE:
            return f"it is the prompt path's tap {other}"
    for shift in (-1, 1):
        if position + shift in others and _cosine(window[tap], others[position + shift][tap]) >= COSINE:
            return f"it is the prompt path's position {position + shift}"
    return ""


def _cosine(a: Array, b: Array) -> float:
    with np.errstate(all="ignore"):
        return float(a @ b / np.sqrt((a @ a) * (b @ b)))
