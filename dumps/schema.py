"""The dump format: names, limits, and the shape of a manifest line."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

from .dtypes import STORED
from .errors import DumpError, shown

FORMAT = "dflash-stage-dump"
VERSION = 1
MANIFEST = "manifest.jsonl"
CURRENT = "current"

MAX_HEADER_BYTES = 16 << 20
MAX_LINE_BYTES = 64 << 10
MAX_MANIFEST_BYTES = 512 << 20
MAX_RECORDS = 1_000_000
MAX_STAGE_CHARS = 200
MAX_NDIM = 8
MAX_BYTES = 1 << 46
MAX_STEP = (1 << 31) - 1
MAX_ROW = (1 << 62) - 1

_AXIS = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Entry:
    """One record as its index line declares it; the leading axis of ``shape`` is the row."""

    step: int
    stage: str
    row0: int
    dtype: str
    shape: tuple[int, ...]
    axes: tuple[str, ...] | None
    sha256: str | None
    place: str

    @property
    def rows(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * STORED[self.dtype].itemsize

    @property
    def key(self) -> str:
        """How messages name the record."""
        return f"{self.stage} (step {self.step}, row {self.row0})"

    def line(self, place_key: str) -> dict[str, Any]:
        """The record as a JSON object; ``place_key`` is ``file`` or ``tensor``."""
        line: dict[str, Any] = {"step": self.step, "stage": self.stage, "row0": self.row0, "dtype": self.dtype, "shape": list(self.shape)}
        line[place_key] = self.place
        if self.sha256 is not None:
            line["sha256"] = self.sha256
        if self.axes is not None:
            line["axes"] = list(self.axes)
        return line


def check_header(value: Any, where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """``(case, provenance)`` of a manifest's first line, already parsed. Raises `DumpError`."""
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        found = value.get("format") if isinstance(value, dict) else value
        raise DumpError(f'{where}: expected the header {{"format": "{FORMAT}", ...}}, found {shown(found)}')
    if type(value.get("version")) is not int or value["version"] != VERSION:
        raise DumpError(f"{where}: expected version {VERSION}, found {shown(value.get('version'))}; read it with the release that wrote it")
    _check_keys(value, {"format", "version", "case", "provenance"}, set(), where)
    for key in ("case", "provenance"):
        if not isinstance(value[key], dict):
            raise DumpError(f"{where}: expected {key} to be a JSON object, found {shown(value[key])}")
    return value["case"], value["provenance"]


def check_entry(value: Any, place_key: str, where: str) -> Entry:
    """The record of a parsed index line, every field checked. Raises `DumpError`."""
    if not isinstance(value, dict):
        raise DumpError(f"{where}: expected a record (a JSON object), found {shown(value)}")
    _check_keys(value, {"step", "stage", "row0", "dtype", "shape", place_key}, {"sha256", "axes"}, where)
    check_stage(value["stage"], where)
    named = f"{where}, {value['stage']}"
    step = check_int(value["step"], "step", MAX_STEP, named)
    row0 = check_int(value["row0"], "row0", MAX_ROW, named)
    dtype = value["dtype"]
    if not isinstance(dtype, str) or dtype not in STORED:
        raise DumpError(f"{named}: expected dtype to be one of {', '.join(STORED)}, found {shown(dtype)}")
    shape = check_shape(value["shape"], named)
    if row0 + shape[0] > MAX_ROW:
        raise DumpError(f"{named}: expected rows up to {MAX_ROW}, found {row0} + {shape[0]}")
    axes = check_axes(value.get("axes"), len(shape), named) if "axes" in value else None
    sha256 = value.get("sha256")
    if "sha256" in value and (not isinstance(sha256, str) or not _SHA256.fullmatch(sha256)):
        raise DumpError(f"{named}: expected sha256 to be 64 lower-case hexadecimal digits, found {shown(sha256)}")
    place = value[place_key]
    if not isinstance(place, str) or not place:
        raise DumpError(f"{named}: expected {place_key} to be a name, found {shown(place)}")
    entry = Entry(step, value["stage"], row0, dtype, shape, axes, sha256, place)
    if entry.nbytes > MAX_BYTES:
        raise DumpError(f"{named}: expected at most {MAX_BYTES} bytes, found shape {list(shape)} of {dtype}")
    return entry


def check_stage(stage: Any, where: str) -> str:
    """A stage path: 1 to 200 printable characters, such as ``draft.L3.q_rope`` (foreign names are allowed)."""
    if not isinstance(stage, str) or not 0 < len(stage) <= MAX_STAGE_CHARS or not stage.isprintable():
        raise DumpError(f"{where}: expected stage to be a name of 1 to {MAX_STAGE_CHARS} printable characters, found {shown(stage)}")
    return stage


def check_int(value: Any, what: str, most: int, where: str) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise DumpError(f"{where}: expected {what} to be an integer from 0 to {most}, found {shown(value)}")
    return value


def check_shape(value: Any, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_NDIM:
        raise DumpError(f"{where}: expected shape to be a list of 1 to {MAX_NDIM} sizes, rows first, found {shown(value)}")
    return tuple(check_int(size, "every size of shape", MAX_BYTES, where) for size in value)


def check_axes(value: Any, ndim: int, where: str) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(axis, str) and _AXIS.fullmatch(axis) for axis in value):
        raise DumpError(f"{where}: expected axes to be a list of names, found {shown(value)}")
    if len(value) != ndim or len(set(value)) != ndim:
        raise DumpError(f"{where}: expected axes to give {ndim} different names, found {shown(value)}")
    return tuple(value)


def _check_keys(value: dict[str, Any], required: set[str], optional: set[str], where: str) -> None:
    missing, unknown = sorted(required - value.keys()), sorted(value.keys() - required - optional)
    if missing:
        raise DumpError(f"{where}: expected the key {missing[0]!r}, found only {shown(sorted(value))}")
    if unknown:
        raise DumpError(f"{where}: unknown key {shown(unknown[0])}; expected {', '.join(sorted(required | optional))}")


class Rows:
    """Which rows of every (step, stage) are taken, and the geometry its pieces must share."""

    def __init__(self) -> None:
        self._taken: dict[tuple[int, str], list[Entry]] = {}

    def add(self, entry: Entry, where: str) -> None:
        """Register ``entry``. Raises `DumpError` when its rows are recorded already or its dtype, row shape or axes differ."""
        pieces = self._taken.get((entry.step, entry.stage))
        if pieces is None:
            self._taken[entry.step, entry.stage] = [entry]
            return
        first = pieces[0]
        for what in ("dtype", "axes"):
            if getattr(entry, what) != getattr(first, what):
                raise DumpError(f"{where}: expected {what} {getattr(first, what)} as in its other rows, found {getattr(entry, what)}")
        if entry.shape[1:] != first.shape[1:]:
            raise DumpError(f"{where}: expected rows of shape {list(first.shape[1:])} as in its other rows, found {list(entry.shape[1:])}")
        at = bisect_left(pieces, entry.row0, key=lambda piece: piece.row0)
        before, after = pieces[at - 1] if at else None, pieces[at] if at < len(pieces) else None
        if after is not None and after.row0 == entry.row0:
            raise DumpError(f"{where}: row {entry.row0} of this step and stage is recorded already")
        for other in (before, after):
            if other is not None and entry.row0 < other.row0 + other.rows and other.row0 < entry.row0 + entry.rows:
                found = f"rows {entry.row0}..{entry.row0 + entry.rows - 1} over {other.row0}..{other.row0 + other.rows - 1}"
                raise DumpError(f"{where}: expected rows not recorded before, found {found}")
        pieces.insert(at, entry)

    def discard(self, entry: Entry) -> None:
        """Forget ``entry``, whose values could not be written."""
        pieces = self._taken[entry.step, entry.stage]
        pieces.remove(entry)
        if not pieces:
            del self._taken[entry.step, entry.stage]
