"""Opening a dump: strict, and bounded before anything is allocated."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from . import jsontext
from .dump import Dump, Piece
from .errors import DumpError, shown
from .npy import check_npy
from .schema import (
    CURRENT,
    MANIFEST,
    MAX_HEADER_BYTES,
    MAX_LINE_BYTES,
    MAX_MANIFEST_BYTES,
    MAX_RECORDS,
    MAX_STAGE_CHARS,
    Entry,
    Rows,
    check_entry,
    check_header,
)


def open_dump(path: str | Path) -> Dump:
    """The dump at ``path``: a directory (DESIGN section 8), or one packed ``.safetensors`` file.

    Index and headers are checked in full; elements stay on disk until asked for. Raises `DumpError`, naming the
    record and file, for everything that is not a well-formed dump. Non-finite elements are data.
    """
    path = Path(path)
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            return _open_directory(path)
        if stat.S_ISREG(mode):
            from .packed import open_packed

            return open_packed(path)
    except OSError as error:
        raise DumpError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        if isinstance(error, DumpError):
            raise
        raise DumpError(f"{shown(str(path))}: not a path: {error}") from None
    raise DumpError(f"{path}: expected a dump directory or a packed .safetensors file, found neither")


def announced(path: str | Path) -> str | None:
    """The stage that the writer of the directory ``path`` announced last and did not outlive by closing; None when there is none."""
    file = Path(path) / CURRENT
    try:
        if not stat.S_ISREG(file.lstat().st_mode):
            return None
        with file.open("rb") as opened:
            line, newline, _ = opened.read(4 * MAX_STAGE_CHARS + 1).partition(b"\n")
        stage = line.decode("utf-8")
    except (OSError, ValueError):
        return None
    return stage if newline and stage and stage.isprintable() else None


def _open_directory(path: Path) -> Dump:
    manifest = path / MANIFEST
    root = path.resolve()
    _check_manifest(manifest, root)
    lines = _lines(manifest)
    header = next(lines, None)
    if header is None or header[2]:
        raise DumpError(f"{manifest}: expected a header line, found {'a torn one' if header else 'an empty file'}")
    case, provenance = check_header(jsontext.parse(header[1], f"{manifest}, line 1"), f"{manifest}, line 1")
    pieces: list[Piece] = []
    rows, places = Rows(), dict[Path, int]()
    complete = truncated = False
    for number, line, torn in lines:
        where = f"{manifest}, line {number}"
        if complete:
            raise DumpError(f"{where}: expected nothing after the end line, found {shown(line)}")
        if torn:
            truncated = True
            break
        value = jsontext.parse(line, where, max_depth=4)
        if isinstance(value, dict) and "end" in value:
            _check_end(value, len(pieces), where)
            complete = True
            continue
        if len(pieces) >= MAX_RECORDS:
            raise DumpError(f"{where}: expected at most {MAX_RECORDS} records")
        entry = check_entry(value, "file", where)
        rows.add(entry, f"{where}, {entry.key}")
        file = _inside(root, entry, f"{where}, {entry.key}")
        if file in places:
            raise DumpError(f"{where}, {entry.key}: expected a file of its own, found {entry.place} of line {places[file]} again")
        places[file] = number
        offset, fortran = check_npy(file, entry, f"{path / entry.place}: {entry.key}")
        pieces.append(Piece(entry, file, offset, fortran))
    last = None if complete else announced(path)
    return Dump(path, case, provenance, pieces, complete=complete, truncated_tail=truncated, announced=last)


def _check_manifest(manifest: Path, root: Path) -> None:
    try:
        status = manifest.stat()
    except FileNotFoundError:
        raise DumpError(f"{manifest.parent}: expected a dump directory with a {MANIFEST}, found none") from None
    if not stat.S_ISREG(status.st_mode) or not manifest.resolve().is_relative_to(root):
        raise DumpError(f"{manifest}: expected a regular file inside the dump directory")
    if status.st_size > MAX_MANIFEST_BYTES:
        raise DumpError(f"{manifest}: expected at most {MAX_MANIFEST_BYTES} bytes, found {status.st_size}")


def _lines(manifest: Path) -> Iterator[tuple[int, bytes, bool]]:
    """``(number, text, torn)`` of every line. Only the last can be torn: it lacks its newline and is not JSON."""
    with manifest.open("rb") as file:
        number = 0
        limit = MAX_HEADER_BYTES
        while line := file.readline(limit + 1):
            number += 1
            if len(line) > limit:
                raise DumpError(f"{manifest}, line {number}: expected a line of at most {limit} bytes")
            yield number, line.rstrip(b"\n"), not line.endswith(b"\n") and not _is_object(line)
            limit = MAX_LINE_BYTES


def _is_object(line: bytes) -> bool:
    """No proper prefix of a JSON object is one, so a last line that is an object lost its newline at most."""
    try:
        return isinstance(jsontext.parse(line, ""), dict)
    except DumpError:
        return False


def _check_end(value: dict[str, object], records: int, where: str) -> None:
    if value.keys() != {"end", "records"} or value["end"] is not True:
        raise DumpError(f'{where}: expected the end line {{"end": true, "records": N}}, found {shown(value)}')
    if type(value["records"]) is not int or value["records"] != records:
        raise DumpError(f"{where}: the end line declares {shown(value['records'])} records, found {records}")


def _inside(root: Path, entry: Entry, where: str) -> Path:
    name = PurePosixPath(entry.place)
    if name.is_absolute() or ".." in name.parts or "\\" in entry.place or "\0" in entry.place or name.suffix != ".npy":
        raise DumpError(f"{where}: expected a .npy file inside the dump directory, found {shown(entry.place)}")
    try:
        file = Path(os.path.realpath(root / name, strict=True))
    except OSError as error:
        raise DumpError(f"{where}: {shown(entry.place)} cannot be read: {error.strerror}") from None
    if not file.is_relative_to(root):
        raise DumpError(f"{where}: expected a file inside the dump directory, found {shown(entry.place)} a link to {shown(str(file))}")
    return file
