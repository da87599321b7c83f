"""The stage directory of the Strata engine: one ``.bin`` file a stage of one proposal (`specs/qwen38-flash-next.md` 7)."""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import DumpError, shown

MAX_FILES = 1 << 14
MAX_ROWS, MAX_POSITION, MAX_PAGE = 1 << 10, 1 << 30, 1 << 12
INTEGERS = re.compile(r"(steps|pt)\d+|head_ids|head_picks|pool_cells0")
WITHOUT_COUNT = ("meta", "pool_meta")
#: the names of the first version, which recorded layer 0 alone
OLDEST = {"q_raw": "qraw0", "q_normed": "qnormed0"}


@dataclass(frozen=True, eq=False)
class Strata:
    """An opened directory. ``anchor``: the position of the block's first row, ``rows``: K; ``token``, ``mask``, ``page`` (the cells of a
    page) are None where an old ``meta`` does not say. ``files``: name -> path, the oldest names in today's."""

    path: Path
    anchor: int
    rows: int
    token: int | None
    mask: int | None
    page: int | None
    files: dict[str, Path]

    def values(self, name: str) -> NDArray[np.float32]:
        """float32 [count] of a file. Raises `DumpError`."""
        return self._words(name).view(np.float32)

    def integers(self, name: str) -> NDArray[np.int32]:
        """int32 [count]: the bit patterns of a file of integers. Raises `DumpError`."""
        return self._words(name).view(np.int32)

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The bytes behind the count. Raises `DumpError`."""
        return self._words(name).view(np.uint8)

    def plain(self, name: str) -> tuple[int, ...]:
        """The u32 values of a file without a count. Raises `DumpError`."""
        return tuple(_u32(self.files[name]))

    def _words(self, name: str) -> NDArray[np.uint32]:
        path = self.files[name]
        words = _u32(path)
        if not len(words) or int(words[0]) != len(words) - 1:
            found = f"{int(words[0])} in a file of {len(words) - 1} values" if len(words) else "an empty file"
            raise DumpError(f"{path}: expected a u32 count and as many values, found {found}; truncated, or written without a count")
        return words[1:]


def open_strata(path: Path) -> Strata:
    """List the directory and read its ``meta``. Raises `DumpError`."""
    files = _listed(path)
    if "meta" not in files:
        raise DumpError(f"{path}: expected meta.bin (a Strata stage directory), found {len(files)} other .bin files")
    meta = [int(n) for n in _u32(files["meta"])]
    if len(meta) not in (2, 5):
        raise DumpError(f"{files['meta']}: expected 5 u32 (position, rows, anchor, mask, page size) or, of old, 2; found {len(meta)}")
    anchor, rows = meta[0], meta[1]
    if not (0 < rows <= MAX_ROWS and 0 <= anchor <= MAX_POSITION):
        raise DumpError(f"{files['meta']}: expected 1 to {MAX_ROWS} rows at a position, found {rows} rows at {anchor}")
    if len(meta) == 2:
        return Strata(path, anchor, rows, None, None, None, files)
    if not 0 < meta[4] <= MAX_PAGE:
        raise DumpError(f"{files['meta']}: expected pages of 1 to {MAX_PAGE} cells, found {meta[4]}")
    return Strata(path, anchor, rows, meta[2], meta[3], meta[4], files)


def _listed(path: Path) -> dict[str, Path]:
    try:
        entries = sorted(path.iterdir())
    except OSError as error:
        raise DumpError(f"{path}: cannot be read: {error.strerror}") from None
    if len(entries) > MAX_FILES:
        raise DumpError(f"{path}: expected at most {MAX_FILES} files, found {len(entries)}")
    files: dict[str, Path] = {}
    for entry in entries:
        if entry.suffix != ".bin":
            continue
        name = OLDEST.get(entry.stem, entry.stem)
        if name in files:
            raise DumpError(f"{path}: the stage {name} is there twice, as {files[name].name} and {entry.name}")
        files[name] = entry
    return files


def _u32(path: Path) -> NDArray[np.uint32]:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise DumpError(f"{path}: expected a regular file")
        if status.st_size % 4:
            raise DumpError(f"{path}: expected 32-bit values, found {status.st_size} bytes; truncated")
        if status.st_size == 0:
            return np.zeros(0, np.uint32)
        return np.memmap(path, "<u4", "r").view(np.ndarray)
    except OSError as error:
        raise DumpError(f"{shown(str(path))}: cannot be read: {error.strerror}") from None
