"""A dump as its readers see it: records joined over rows, stored dtypes kept, exact widening."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import jsontext
from .dtypes import STORED, Stored, widen
from .errors import DumpError
from .schema import FORMAT, VERSION, Entry
from .writer import digest


@dataclass(eq=False)
class Piece:
    """One record of the index and where its elements lie: ``entry.nbytes`` bytes at ``offset`` of ``path``."""

    entry: Entry
    path: Path
    offset: int
    fortran: bool = False
    _verified: bool = field(default=False, repr=False)

    def array(self, verify: bool = True) -> Stored:
        """The elements in their stored dtype (bf16 as uint16), read-only and memory-mapped; a declared SHA-256 is verified once,
        unless ``verify`` is false."""
        entry = self.entry
        where = f"{self.path}: {entry.key}"
        dtype = STORED[entry.dtype]
        if entry.nbytes == 0:
            stored: Stored = np.zeros(entry.shape, dtype)
            stored.flags.writeable = False
        else:
            order = "F" if self.fortran else "C"
            try:
                if self.path.stat().st_size < self.offset + entry.nbytes:
                    raise DumpError(f"{where}: expected {entry.nbytes} bytes at offset {self.offset}, but the file has shrunk since")
                stored = np.memmap(self.path, dtype, "r", self.offset, entry.shape, order).view(np.ndarray)  # type: ignore[call-overload]
            except OSError as error:
                raise DumpError(f"{where}: cannot be read: {error.strerror}") from None
        if verify and entry.sha256 is not None and not self._verified:
            found = digest(stored)
            if found != entry.sha256:
                raise DumpError(f"{where}: expected elements of SHA-256 {entry.sha256}, found {found}; the file was changed")
            self._verified = True
        return stored


class StageRecord:
    """All rows recorded of one stage in one step.

    ``rows`` counts them and ``row0`` is the first; ``row_ids`` ``[row]`` int64 numbers them (rows between pieces may be absent).
    ``dtype`` is as recorded, ``shape`` and ``axes`` (None when not declared) are those of the joined rows.
    """

    def __init__(self, pieces: list[Piece]) -> None:
        self.pieces = tuple(sorted(pieces, key=lambda piece: piece.entry.row0))
        first = self.pieces[0].entry
        self.step, self.stage, self.dtype, self.axes, self.row0 = first.step, first.stage, first.dtype, first.axes, first.row0
        self.rows = sum(piece.entry.rows for piece in self.pieces)
        self.shape = (self.rows, *first.shape[1:])

    def __repr__(self) -> str:
        return f"StageRecord({self.stage!r}, step={self.step}, row0={self.row0}, shape={self.shape}, dtype={self.dtype!r})"

    @property
    def row_ids(self) -> NDArray[np.int64]:
        return np.concatenate([np.arange(p.entry.row0, p.entry.row0 + p.entry.rows, dtype=np.int64) for p in self.pieces])

    @property
    def contiguous(self) -> bool:
        """True when no row between the first and the last is absent."""
        last = self.pieces[-1].entry
        return last.row0 + last.rows - self.row0 == self.rows

    def array(self) -> Stored:
        """``[row, ...]`` in the stored dtype (bf16 as uint16 bit patterns, bool as uint8), rows in order; read-only.

        Raises `DumpError` when a declared SHA-256 does not match or the file is gone.
        """
        parts = [piece.array() for piece in self.pieces]
        if len(parts) == 1:
            return parts[0]
        joined = np.concatenate(parts)
        joined.flags.writeable = False
        return joined

    def float64(self) -> NDArray[np.float64]:
        """``[row, ...]`` widened exactly. Raises `DumpError` as `array` does, and for an i64 value that float64 cannot hold."""
        try:
            return widen(self.array(), self.dtype)
        except OverflowError as error:
            raise DumpError(f"{self.stage} (step {self.step}): {error}; use array()") from None


class Dump:
    """The recorded stages of one run; made by `open_dump`, read lazily.

    ``complete``: the writer closed it. ``truncated_tail``: the last index line was torn by a crash and is not part of the dump.
    ``announced``: the stage the writer was about to run when it stopped, if it said so and did not close.
    """

    def __init__(
        self,
        path: Path,
        case: dict[str, Any],
        provenance: dict[str, Any],
        pieces: list[Piece],
        *,
        complete: bool,
        truncated_tail: bool = False,
        announced: str | None = None,
    ) -> None:
        self.path, self.case, self.provenance = path, case, provenance
        self.complete, self.truncated_tail, self.announced = complete, truncated_tail, announced
        self.pieces = tuple(pieces)
        grouped: dict[tuple[int, str], list[Piece]] = {}
        for piece in pieces:
            grouped.setdefault((piece.entry.step, piece.entry.stage), []).append(piece)
        self._records = {key: StageRecord(group) for key, group in grouped.items()}

    def __repr__(self) -> str:
        state = "complete" if self.complete else "incomplete"
        return f"Dump({str(self.path)!r}, {len(self._records)} stages in {len(self.steps)} steps, {state})"

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """The step numbers, ascending."""
        return tuple(sorted({step for step, _ in self._records}))

    def stages(self, step: int) -> tuple[str, ...]:
        """The stage paths of ``step`` in the order in which their first rows were recorded."""
        return self._by_step.get(step, ())

    @cached_property
    def _by_step(self) -> dict[int, tuple[str, ...]]:
        found: dict[int, list[str]] = {}
        for step, stage in self._records:
            found.setdefault(step, []).append(stage)
        return {step: tuple(stages) for step, stages in found.items()}

    def get(self, step: int, stage: str) -> StageRecord | None:
        """All recorded rows of ``stage`` in ``step``; None when there is none."""
        return self._records.get((step, stage))

    def records(self) -> Iterator[StageRecord]:
        """Every stage of every step in recorded order."""
        return iter(self._records.values())

    def without(self, names: Collection[str]) -> Dump:
        """The same dump as if its writer had not recorded the stages whose last part is one of ``names`` (``q_rope``)."""
        pieces = [piece for piece in self.pieces if piece.entry.stage.rpartition(".")[2] not in names]
        return Dump(self.path, self.case, self.provenance, pieces, complete=self.complete, truncated_tail=self.truncated_tail)

    def verify(self) -> None:
        """Read everything and check every declared SHA-256. Raises `DumpError`."""
        for piece in self.pieces:
            piece.array()

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the content: header, completeness and, in recorded order, every record with the digest of its elements.

        It is the same for the directory and the packed form of one dump. Reads everything; raises `DumpError` as `verify` does.
        """
        whole = hashlib.sha256()
        header = {"format": FORMAT, "version": VERSION, "case": self.case, "provenance": self.provenance, "complete": self.complete}
        whole.update(jsontext.render(header, "header").encode() + b"\n")
        for piece in self.pieces:
            entry, stored = piece.entry, piece.array()
            identity = [entry.step, entry.stage, entry.row0, entry.dtype, entry.shape, entry.axes, entry.sha256 or digest(stored)]
            whole.update(jsontext.render(identity, entry.key).encode() + b"\n")
        return whole.hexdigest()
