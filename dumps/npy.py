"""The header of a .npy file, parsed strictly (NumPy Enhancement Proposal 1, versions 1.0, 2.0 and 3.0); nothing is ever unpickled."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import IO

from .dtypes import NPY_DESCR
from .errors import DumpError, shown
from .schema import Entry

MAGIC = b"\x93NUMPY"
MAX_HEADER = 4096

_ITEM = re.compile(
    r"""\s*(?P<quote>['"])(?P<key>descr|fortran_order|shape)(?P=quote)\s*:\s*
    (?:(?P<q>['"])(?P<descr>[^'"\\]{1,32})(?P=q) | (?P<order>True|False) | \((?P<shape>[0-9,\ ]{0,400})\))\s*(?:,|$)""",
    re.VERBOSE,
)


def check_npy(path: Path, entry: Entry, where: str) -> tuple[int, bool]:
    """``(offset of the first element, Fortran order)`` of the .npy file of ``entry``.

    Only the header is read. Raises `DumpError` unless the file is a regular one, its dtype and shape are those of
    ``entry`` and its size is exactly header plus elements.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise DumpError(f"{where}: expected a regular file")
        with path.open("rb") as file:
            text, offset = header_text(file, where)
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise DumpError(f"{where}: cannot be read: {error.strerror}") from None
    descr, fortran, shape = parse_header(text, where)
    if descr not in NPY_DESCR[entry.dtype]:
        expected = " or ".join(NPY_DESCR[entry.dtype])
        raise DumpError(f"{where}: expected elements {expected} for the dtype {entry.dtype} of the manifest, found {shown(descr)}")
    if shape != entry.shape:
        raise DumpError(f"{where}: expected the shape {list(entry.shape)} of the manifest, found {shown(list(shape))}")
    if size != offset + entry.nbytes:
        raise DumpError(f"{where}: expected {offset + entry.nbytes} bytes ({offset} of header, {entry.nbytes} of elements), found {size}")
    return offset, fortran


def header_text(file: IO[bytes], where: str) -> tuple[str, int]:
    """The header of an open .npy file and the offset of its first element. Raises `DumpError`."""
    prefix = file.read(8)
    if prefix[:6] != MAGIC[: len(prefix)] or len(prefix) < 8:
        raise DumpError(f"{where}: expected a .npy file (magic {MAGIC!r} and a version), found {shown(prefix)}")
    version = (prefix[6], prefix[7])
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise DumpError(f"{where}: expected .npy version 1.0, 2.0 or 3.0, found {version[0]}.{version[1]}")
    width = 2 if version == (1, 0) else 4
    length = int.from_bytes(file.read(width), "little")
    if not 0 < length <= MAX_HEADER:
        raise DumpError(f"{where}: expected a .npy header of 1 to {MAX_HEADER} bytes, found {length}")
    header = file.read(length)
    if len(header) != length:
        raise DumpError(f"{where}: expected a .npy header of {length} bytes, found {len(header)} (truncated)")
    try:
        return header.decode("ascii"), 8 + width + length
    except UnicodeDecodeError:
        raise DumpError(f"{where}: expected an ASCII .npy header, found {shown(header)}") from None


def parse_header(text: str, where: str) -> tuple[str, bool, tuple[int, ...]]:
    """``(descr, Fortran order, shape)`` of a header. Raises `DumpError`."""
    expected = "a .npy header with a simple descr, fortran_order and shape (no pickled or structured dtype)"
    broken = DumpError(f"{where}: expected {expected}, found {shown(text.strip())}")
    body = text.strip()
    if not (body.startswith("{") and body.endswith("}")):
        raise broken
    body = body[1:-1].rstrip()
    found: dict[str, re.Match[str]] = {}
    at = 0
    while at < len(body):
        match = _ITEM.match(body, at)
        if match is None or match["key"] in found:
            raise broken
        found[match["key"]] = match
        at = match.end()
    if len(found) != 3 or found["descr"]["descr"] is None or found["fortran_order"]["order"] is None or found["shape"]["shape"] is None:
        raise broken
    sizes = [size.strip() for size in found["shape"]["shape"].split(",")]
    if len(sizes) == 1 and sizes[0]:
        raise broken  # "(3)" is a number, not a tuple
    if sizes[-1] == "":
        sizes.pop()
    if any(not size.isdigit() or len(size) > 19 for size in sizes):
        raise broken
    return found["descr"]["descr"], found["fortran_order"]["order"] == "True", tuple(map(int, sizes))
