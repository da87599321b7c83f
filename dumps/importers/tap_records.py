"""Strata's tap captures: one record per prompt chunk and per verify window (`specs/qwen38-flash-next.md` 2.3)."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import DumpError

MAGIC = 0x31504644
SOURCES = ("prompt", "window")
HEADER = 28
MAX_TAPS, MAX_WIDTH, MAX_ROWS, MAX_POSITION = 64, 1 << 17, 1 << 20, 1 << 30


@dataclass(frozen=True, eq=False)
class TapRecord:
    """``taps`` float32 [tap, row, dim] of rows at ``position …``. ``source``: prompt or window; ``bf16``: the engine held them so."""

    source: str
    position: int
    taps: NDArray[np.float32]
    bf16: bool

    @property
    def rows(self) -> int:
        return int(self.taps.shape[1])


def read_tap_records(path: Path) -> list[TapRecord]:
    """All records of a file, memory-mapped; a file cut within a record is an error. Raises `DumpError`."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise DumpError(f"{path}: expected a regular file")
        data = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)
    except OSError as error:
        raise DumpError(f"{path}: cannot be read: {error.strerror}") from None
    return list(_records(path, data))


def _records(path: Path, data: NDArray[np.uint8]) -> Iterator[TapRecord]:
    at = number = 0
    shape: tuple[int, int] | None = None
    while at < len(data):
        where = f"{path}: record {number} at byte {at}"
        if len(data) - at < HEADER:
            raise DumpError(f"{where}: expected a header of {HEADER} bytes, found {len(data) - at}; truncated")
        magic, source, position, rows, taps, width, flag = (int(n) for n in data[at : at + HEADER].view("<u4"))
        if magic != MAGIC:
            raise DumpError(f"{where}: expected the magic {MAGIC:#010x} ('DFP1'), found {magic:#010x}")
        if source >= len(SOURCES) or flag > 1:
            raise DumpError(f"{where}: expected source 0 (prompt) or 1 (window) and a flag 0 or 1, found {source} and {flag}")
        if not (0 < rows <= MAX_ROWS and 0 < taps <= MAX_TAPS and 0 < width <= MAX_WIDTH and position <= MAX_POSITION):
            raise DumpError(
                f"{where}: expected rows, taps and width within limits, found {rows} rows, {taps} taps of {width} at {position}"
            )
        if shape is not None and shape != (taps, width):
            raise DumpError(f"{where}: expected {shape[0]} taps of {shape[1]} as in the records before, found {taps} of {width}")
        shape, size = (taps, width), 4 * taps * rows * width
        if len(data) - at - HEADER < size:
            raise DumpError(f"{where}: expected {size} bytes of values, found {len(data) - at - HEADER}; truncated")
        values = data[at + HEADER : at + HEADER + size].view("<f4").reshape(taps, rows, width)
        yield TapRecord(SOURCES[source], position, values, bool(flag))
        at, number = at + HEADER + size, number + 1
