"""Writing a dump while an engine runs: the directory form."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike

from . import jsontext
from .dtypes import Stored, encode
from .errors import DumpError
from .schema import (
    CURRENT,
    FORMAT,
    MANIFEST,
    MAX_HEADER_BYTES,
    MAX_RECORDS,
    VERSION,
    Entry,
    Rows,
    check_entry,
    check_stage,
)

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


class DumpWriter:
    """Appends records to a dump directory (DESIGN section 8); a crash of the process leaves a valid prefix.

    ``path``: a directory that is absent or empty. ``case`` and ``provenance``: JSON objects (what was run; which candidate,
    library version, arithmetic, device or emulated). ``checksums``: store the SHA-256 of every record's elements.
    As a context manager it closes the dump; after an exception it leaves it incomplete, with the announced stage in place.
    All methods may be called from any thread. Raises `DumpError`.
    """

    def __init__(self, path: str | Path, case: dict[str, Any], provenance: dict[str, Any], *, checksums: bool = True) -> None:
        self.path = Path(path)
        self._checksums = checksums
        self._lock = threading.Lock()
        self._rows = Rows()
        self._counter = 0
        self._written = 0
        self._current: int | None = None
        header = {"format": FORMAT, "version": VERSION, "case": case, "provenance": provenance}
        for key in ("case", "provenance"):
            if not isinstance(header[key], dict):
                raise DumpError(f"{self.path}: expected {key} to be a JSON object, found {type(header[key]).__name__}")
        line = jsontext.render(header, "header") + "\n"
        if len(line) > MAX_HEADER_BYTES:
            raise DumpError(f"{self.path}: expected a case and provenance of at most {MAX_HEADER_BYTES} bytes, found {len(line)}")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if any(self.path.iterdir()):
                raise DumpError(f"{self.path}: expected an absent or empty directory; remove it or choose another name")
            self._manifest = (self.path / MANIFEST).open("xb")
            self._append(line)
        except OSError as error:
            raise DumpError(f"{self.path}: cannot be written: {error.strerror}") from None

    def put(
        self,
        step: SupportsIndex,
        stage: str,
        array: ArrayLike,
        row0: SupportsIndex = 0,
        dtype: str | None = None,
        axes: Sequence[str] | None = None,
    ) -> None:
        """Record ``array`` ``[row, ...]`` as rows ``row0`` onwards of ``stage`` in ``step``.

        Any strides are accepted. ``dtype`` (f64 f32 f16 bf16 i64 i32 u8) defaults to the array's own; uint16 elements are bf16 bit
        patterns and need ``dtype="bf16"``; another dtype is accepted when every value fits it exactly. ``axes`` names the
        axes. Rows recorded already are refused, and so are pieces of one stage that differ in dtype, axes or row shape.
        """
        name, stored = encode(array, dtype, f"{stage} (step {step}, row {row0})")
        line: dict[str, Any] = {
            "step": _plain(step),
            "stage": stage,
            "row0": _plain(row0),
            "dtype": name,
            "shape": list(stored.shape),
            "file": "?",
        }
        if axes is not None:
            line["axes"] = axes if isinstance(axes, str) else list(axes)
        if self._checksums:
            line["sha256"] = digest(stored)
        checked = check_entry(line, "file", str(self.path))
        with self._lock:
            entry = self._reserve(checked)
        try:
            self._write(entry, stored)
            text = jsontext.render(entry.line("file"), entry.key) + "\n"
            with self._lock:
                self._open_manifest(entry.key)
                self._append(text)
                self._written += 1
        except BaseException as error:
            with self._lock:
                self._rows.discard(entry)
            if isinstance(error, OSError):
                raise DumpError(f"{self.path / entry.place}: {entry.key} cannot be written: {error.strerror}") from None
            raise

    def announce(self, stage: str) -> None:
        """Note that ``stage`` is about to run, so that a crash can be located (see `dumps.announced`); nothing of it is permanent."""
        data = (check_stage(stage, str(self.path)) + "\n").encode()
        with self._lock:
            self._open_manifest(stage)
            try:
                if self._current is None:
                    self._current = os.open(self.path / CURRENT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
                os.pwrite(self._current, data, 0)
                os.ftruncate(self._current, len(data))
            except OSError as error:
                raise DumpError(f"{self.path / CURRENT}: cannot be written: {error.strerror}") from None

    def close(self, *, complete: bool = True) -> None:
        """End the dump; with ``complete`` it says so and forgets the announced stage. A second call does nothing."""
        with self._lock:
            if self._manifest.closed:
                return
            try:
                if complete:
                    self._append(f'{{"end":true,"records":{self._written}}}\n')
                    (self.path / CURRENT).unlink(missing_ok=True)
            except OSError as error:
                raise DumpError(f"{self.path}: cannot be written: {error.strerror}") from None
            finally:
                self._manifest.close()
                if self._current is not None:
                    os.close(self._current)
                    self._current = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close(complete=kind is None)

    def _open_manifest(self, what: str) -> None:
        if self._manifest.closed:
            raise DumpError(f"{self.path}: {what}: the dump is closed")

    def _append(self, line: str) -> None:
        self._manifest.write(line.encode("ascii"))
        self._manifest.flush()

    def _reserve(self, checked: Entry) -> Entry:
        self._open_manifest(checked.key)
        if self._counter >= MAX_RECORDS:
            raise DumpError(f"{self.path}: {checked.key}: a dump holds at most {MAX_RECORDS} records")
        file = f"{self._counter:06d}-{_UNSAFE.sub('_', checked.stage)[:80]}.npy"
        entry = replace(checked, place=file)
        self._rows.add(entry, f"{self.path}: {entry.key}")
        self._counter += 1
        return entry

    def _write(self, entry: Entry, stored: Stored) -> None:
        temporary = self.path / (entry.place + ".part")
        try:
            with temporary.open("xb") as file:
                np.lib.format.write_array(file, stored, allow_pickle=False)
            temporary.replace(self.path / entry.place)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _plain(value: SupportsIndex) -> SupportsIndex:
    """A NumPy integer as `int`; what is no integer is left for the check to name."""
    return int(value) if isinstance(value, np.integer) else value


def digest(stored: Stored) -> str:
    """SHA-256 of the elements of ``stored`` in C order, as stored (little-endian)."""
    return hashlib.sha256(np.ascontiguousarray(stored).reshape(-1).view(np.uint8).data).hexdigest()
