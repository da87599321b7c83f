"""A strict reader of GGUF files, versions 2 and 3, little endian.

Every count and length is checked against the bytes that are left before anything is made from it, so that a
damaged or hostile file costs no more memory than its own size. The rules are those of ggml's own loader (sizes in
`specs/native-backends.md` section 2.1), with overlap, gaps and trailing bytes refused as well.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np

from oracle.artifacts.container import Bytes, Container, FileIdentity, StoredTensor, fail, map_file, show

MAGIC = b"GGUF"
VERSIONS = (2, 3)
HEADER_BYTES = 24
SMALLEST_KEY = 13
SMALLEST_TENSOR = 8 + 4 + 8 + 4 + 8
LONGEST_KEY = 65535
LONGEST_TENSOR_NAME = 63
LARGEST_ALIGNMENT = 1 << 20
SMALL_STRINGS = 256

SCALARS: dict[int, tuple[str, str]] = {
    0: ("u8", "<B"),
    1: ("i8", "<b"),
    2: ("u16", "<H"),
    3: ("i16", "<h"),
    4: ("u32", "<I"),
    5: ("i32", "<i"),
    6: ("f32", "<f"),
    7: ("bool", "<B"),
    10: ("u64", "<Q"),
    11: ("i64", "<q"),
    12: ("f64", "<d"),
}
STRING, ARRAY = 8, 9

# ggml type id -> name, values per block, bytes per block. The decodable ones are in `blocks.FORMATS`; the others
# are known only so that a target that uses them elsewhere can still lend its embedding and head.
GGML_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("f32", 1, 4),
    1: ("f16", 1, 2),
    2: ("q4_0", 32, 18),
    3: ("q4_1", 32, 20),
    6: ("q5_0", 32, 22),
    7: ("q5_1", 32, 24),
    8: ("q8_0", 32, 34),
    10: ("q2_k", 256, 84),
    11: ("q3_k", 256, 110),
    12: ("q4_k", 256, 144),
    13: ("q5_k", 256, 176),
    14: ("q6_k", 256, 210),
    15: ("q8_k", 256, 292),
    16: ("iq2_xxs", 256, 66),
    17: ("iq2_xs", 256, 74),
    18: ("iq3_xxs", 256, 98),
    19: ("iq1_s", 256, 50),
    20: ("iq4_nl", 32, 18),
    21: ("iq3_s", 256, 110),
    22: ("iq2_s", 256, 82),
    23: ("iq4_xs", 256, 136),
    24: ("i8", 1, 1),
    25: ("i16", 1, 2),
    26: ("i32", 1, 4),
    27: ("i64", 1, 8),
    28: ("f64", 1, 8),
    29: ("iq1_m", 256, 56),
    30: ("bf16", 1, 2),
    34: ("tq1_0", 256, 54),
    35: ("tq2_0", 256, 66),
    39: ("mxfp4", 32, 17),
    40: ("nvfp4", 64, 36),
    41: ("q1_0", 128, 18),
}


class Strings(Sequence[str]):
    """A long string array left in the file: its length is known, an item is decoded when asked for."""

    def __init__(self, data: Bytes, bounds: array[int]) -> None:
        self._data, self._bounds = data, bounds

    def __len__(self) -> int:
        return len(self._bounds) // 2

    def __repr__(self) -> str:
        return f"<{len(self)} strings>"

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        at = 2 * (index % len(self))
        return self._data[self._bounds[at] : self._bounds[at + 1]].tobytes().decode("utf-8", "replace")

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))


class TensorInfo(NamedTuple):
    """One entry of the tensor list: the file's words, checked one by one."""

    name: str
    stored: str
    shape: tuple[int, ...]
    offset: int
    row_bytes: int
    size: int


class Cursor:
    """A bounded walk over the header; every read says what it was reading when the file ends too early."""

    def __init__(self, path: Path, data: Bytes) -> None:
        self.path, self.data, self.at = path, data, 0
        self.buffer = data.data

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, size: int, what: str) -> int:
        """Claim ``size`` bytes; returns where they start."""
        if size > self.left:
            fail(self.path, f"truncated in {what}: it needs {size} bytes at offset {self.at}, {self.left} are left; fetch the file again")
        start = self.at
        self.at += size
        return start

    def scalar(self, code: str, what: str) -> Any:
        start = self.take(struct.calcsize(code), what)
        return struct.unpack_from(code, self.buffer, start)[0]

    def string(self, what: str, longest: int) -> str:
        size = self.scalar("<Q", f"the length of {what}")
        if size > longest:
            fail(self.path, f"{what} has a length of {size} bytes; expected at most {longest}")
        start = self.take(size, what)
        try:
            return bytes(self.buffer[start : start + size]).decode("utf-8")
        except UnicodeDecodeError:
            fail(self.path, f"{what} is not valid UTF-8 (offset {start})")


def read_gguf(path: Path) -> Container:
    """Parse and check the whole header of ``path``, map its tensors; `ArtifactError` names what is wrong."""
    data = map_file(path, HEADER_BYTES)
    cursor = Cursor(path, data)
    tensor_count, key_count = _read_counts(cursor)
    metadata, kinds = _read_metadata(cursor, key_count)
    if "split.count" in metadata and not (kinds["split.count"] in ("u16", "u32") and metadata["split.count"] <= 1):
        fail(path, f"key split.count: one of {show(metadata['split.count'])} shards; expected a single file, merge the shards first")
    alignment = _alignment(path, metadata, kinds)
    infos = _read_infos(cursor, tensor_count, alignment)
    base = _align(cursor.at, alignment)
    _check_layout(path, infos, base, len(data), alignment)
    tensors = {}
    for i in infos:
        start = base + i.offset
        tensors[i.name] = StoredTensor(i.name, i.stored, i.shape, data[start : start + i.size].reshape(-1, i.row_bytes), path, start)
    return Container(path, "gguf", metadata, kinds, tensors, (FileIdentity(path, len(data)),))


def _align(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def _read_counts(cursor: Cursor) -> tuple[int, int]:
    path = cursor.path
    magic = bytes(cursor.buffer[:4])
    if magic != MAGIC:
        fail(path, f"not a GGUF file: expected magic {MAGIC!r}, found {magic!r}")
    cursor.at = 4
    version = cursor.scalar("<I", "the version")
    if version not in VERSIONS:
        swapped = " (it looks big endian)" if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS else ""
        fail(path, f"GGUF version {version}{swapped}: expected 2 or 3, little endian; convert the file")
    tensors, keys = cursor.scalar("<Q", "the tensor count"), cursor.scalar("<Q", "the key count")
    for what, count, smallest in (("key", keys, SMALLEST_KEY), ("tensor", tensors, SMALLEST_TENSOR)):
        if count > cursor.left // smallest:
            fail(path, f"{what} count {count} cannot fit in a file of {len(cursor.data)} bytes; the header is damaged")
    return tensors, keys


def _read_metadata(cursor: Cursor, count: int) -> tuple[dict[str, Any], dict[str, str]]:
    metadata: dict[str, Any] = {}
    kinds: dict[str, str] = {}
    for number in range(count):
        key = cursor.string(f"the name of key {number}", LONGEST_KEY)
        if key in metadata:
            fail(cursor.path, f"duplicate key {show(key)}: expected each key once")
        if not key:
            fail(cursor.path, f"key {number} has an empty name")
        kinds[key], metadata[key] = _read_value(cursor, key)
    return metadata, kinds


def _read_value(cursor: Cursor, key: str) -> tuple[str, Any]:
    what = f"key {show(key)}"
    code = cursor.scalar("<I", f"the type of {what}")
    if code == STRING:
        return "string", cursor.string(what, cursor.left)
    if code == ARRAY:
        return _read_array(cursor, what)
    if code not in SCALARS:
        fail(cursor.path, f"{what} has the unknown value type {code}; expected 0 to 12")
    kind, fmt = SCALARS[code]
    value = cursor.scalar(fmt, what)
    if kind == "bool":
        if value > 1:
            fail(cursor.path, f"{what} is a bool with the value {value}; expected 0 or 1")
        value = bool(value)
    return kind, value


def _read_array(cursor: Cursor, what: str) -> tuple[str, Any]:
    code = cursor.scalar("<I", f"the element type of {what}")
    count = cursor.scalar("<Q", f"the length of {what}")
    if code == ARRAY:
        fail(cursor.path, f"{what} is an array of arrays; expected an array of scalars or strings")
    if code == STRING:
        return "array of string", _read_strings(cursor, what, count)
    if code not in SCALARS:
        fail(cursor.path, f"{what} has the unknown element type {code}; expected 0 to 12")
    kind, fmt = SCALARS[code]
    width = struct.calcsize(fmt)
    if count > cursor.left // width:
        fail(cursor.path, f"{what} declares {count} elements of {width} bytes, {cursor.left} bytes are left; the header is damaged")
    start = cursor.take(count * width, what)
    values = np.frombuffer(cursor.buffer[start : start + count * width], np.dtype(fmt))
    if kind == "bool":
        if (values > 1).any():
            fail(cursor.path, f"{what} is an array of bool with a value other than 0 and 1")
        values = values.astype(np.bool_)
    return f"array of {kind}", values


def _read_strings(cursor: Cursor, what: str, count: int) -> Sequence[str]:
    if count > cursor.left // 8:
        fail(cursor.path, f"{what} declares {count} strings, {cursor.left} bytes are left; the header is damaged")
    bounds = array("q")
    at, end, unpack, buffer = cursor.at, len(cursor.data), struct.Struct("<Q").unpack_from, cursor.buffer
    for number in range(count):
        size = unpack(buffer, at)[0] if at + 8 <= end else end
        at += 8
        if size > end - at:
            fail(cursor.path, f"truncated in {what}: string {number} of {count} runs past the end of the file")
        bounds.append(at)
        at += size
        bounds.append(at)
    cursor.at = at
    strings = Strings(cursor.data, bounds)
    return list(strings) if count <= SMALL_STRINGS else strings


def _alignment(path: Path, metadata: dict[str, Any], kinds: dict[str, str]) -> int:
    if "general.alignment" not in metadata:
        return 32
    kind, value = kinds["general.alignment"], metadata["general.alignment"]
    if kind != "u32" or not 8 <= value <= LARGEST_ALIGNMENT or value & (value - 1):
        fail(path, f"key general.alignment: expected a u32 power of two from 8 to {LARGEST_ALIGNMENT}, found {kind} {show(value)}")
    return int(value)


def _read_infos(cursor: Cursor, count: int, alignment: int) -> list[TensorInfo]:
    infos: list[TensorInfo] = []
    names: set[str] = set()
    for number in range(count):
        info = _read_info(cursor, number, alignment)
        if info.name in names:
            fail(cursor.path, f"duplicate tensor {show(info.name)}: expected each name once")
        names.add(info.name)
        infos.append(info)
    return infos


def _read_info(cursor: Cursor, number: int, alignment: int) -> TensorInfo:
    path = cursor.path
    name = cursor.string(f"the name of tensor {number}", LONGEST_TENSOR_NAME)
    what = f"tensor {show(name)}"
    if not name:
        fail(path, f"tensor {number} has an empty name")
    ndim = cursor.scalar("<I", f"the dimensions of {what}")
    if not 1 <= ndim <= 4:
        fail(path, f"{what} has {ndim} dimensions; expected 1 to 4")
    dims = [cursor.scalar("<Q", f"the dimensions of {what}") for _ in range(ndim)]
    if 0 in dims:
        fail(path, f"{what} has the shape {dims}; expected positive dimensions")
    code = cursor.scalar("<I", f"the type of {what}")
    offset = cursor.scalar("<Q", f"the offset of {what}")
    if code not in GGML_TYPES:
        fail(path, f"{what} has the unknown ggml type {code}; known: {', '.join(map(str, GGML_TYPES))}")
    stored, values, size = GGML_TYPES[code]
    if dims[0] % values:
        fail(path, f"{what} has rows of {dims[0]} values; {stored} needs a multiple of {values}")
    if offset % alignment:
        fail(path, f"{what} starts at offset {offset}; expected a multiple of the alignment {alignment}")
    row = dims[0] // values * size
    total = row * math.prod(dims[1:])
    if total > len(cursor.data):
        fail(path, f"{what} of shape {dims} needs {total} bytes as {stored}; the file has {len(cursor.data)}")
    return TensorInfo(name, stored, tuple(reversed(dims)), offset, row, total)


def _check_layout(path: Path, infos: list[TensorInfo], base: int, size: int, alignment: int) -> None:
    """Tensors lie inside the file, packed: each starts where the one before ends, padded to the alignment."""
    end, before = 0, "the header"
    for info in sorted(infos, key=lambda i: (i.offset, i.name)):
        what = f"tensor {show(info.name)}"
        if info.offset < end:
            fail(path, f"{what} at offset {info.offset} overlaps {before}, which ends at {end}")
        if info.offset != _align(end, alignment):
            fail(path, f"{what} starts at offset {info.offset}; expected {_align(end, alignment)}, right after {before}")
        end, before = info.offset + info.size, what
        if base + end > size:
            fail(path, f"{what} ends at byte {base + end}; the file has {size}, it is truncated; fetch it again")
    if infos and size > base + _align(end, alignment):
        fail(path, f"{size - base - end} unexplained bytes after the last tensor {show(before)}; expected the file to end there")
