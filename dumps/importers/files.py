"""Named tensors in one file: ``.npz`` and SafeTensors, as NumPy, PyTorch, MLX and others save them. Nothing is ever unpickled."""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..dtypes import NPY_DESCR, SAFETENSORS, STORED, Stored
from ..errors import DumpError, shown
from ..npy import MAX_HEADER, header_text, parse_header
from ..packed import check_tensors, read_header

MAX_TENSORS = 1 << 17
MAX_TENSOR_BYTES = 1 << 36
MAX_NDIM = 8

#: dtypes of NumPy that hold 16-bit words of another library's bfloat16
_WORDS = ("<u2", "|V2")
#: dtype words of SafeTensors that no stage has, and their bytes an element
_OTHERS = {"BOOL": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "U32": 4, "U64": 8}


@dataclass(frozen=True, eq=False)
class Foreign:
    """A tensor as a file holds it. ``dtype``: the dump's name for it (``bf16``: 16-bit words that may be), None where it has none.

    ``read`` gives the elements [*shape] in their stored dtype, bf16 as uint16 bit patterns. Raises `DumpError`.
    """

    name: str
    dtype: str | None
    shape: tuple[int, ...]
    read: Callable[[], Stored]
    where: str


def read_npz(path: Path) -> list[Foreign]:
    """The arrays of an ``.npz`` file in the file's order; only headers are read. Raises `DumpError`."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if len(members) > MAX_TENSORS:
                raise DumpError(f"{path}: expected at most {MAX_TENSORS} arrays, found {len(members)}")
            found = [_npz_member(path, archive, m) for m in members]
    except OSError as error:
        raise DumpError(f"{path}: cannot be read: {error.strerror or error}") from None
    except DumpError:
        raise
    except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError, ValueError) as error:
        raise DumpError(f"{path}: expected an .npz file (a zip of .npy), found {error}") from None
    return _unique(path, found)


def _npz_member(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Foreign:
    where = f"{path}: {shown(member.filename)}"
    if not member.filename.endswith(".npy"):
        raise DumpError(f"{where}: expected only .npy members in an .npz file")
    with archive.open(member) as file:
        text, offset = header_text(io.BytesIO(file.read(MAX_HEADER + 12)), where)
    descr, fortran, shape = parse_header(text, where)
    dtype = "bf16" if descr in _WORDS else next((name for name, known in NPY_DESCR.items() if descr in known), None)
    nbytes = _bytes(where, shape, STORED[dtype].itemsize if dtype else 1)
    if dtype is not None and member.file_size != offset + nbytes:
        raise DumpError(f"{where}: expected {offset + nbytes} bytes ({offset} of header, {nbytes} of elements), found {member.file_size}")

    def read() -> Stored:
        assert dtype is not None
        try:
            with zipfile.ZipFile(path) as again, again.open(member.filename) as file:
                raw = file.read(offset + nbytes)[offset:]
        except (OSError, zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, ValueError, KeyError) as error:
            raise DumpError(f"{where}: cannot be read: {error}") from None
        if len(raw) != nbytes:
            raise DumpError(f"{where}: expected {nbytes} bytes of elements, found {len(raw)}")
        return np.frombuffer(raw, STORED[dtype]).reshape(shape, order="F" if fortran else "C")

    return Foreign(member.filename.removesuffix(".npy"), dtype, shape, read, where)


def read_safetensors(path: Path) -> list[Foreign]:
    """The tensors of a SafeTensors file in the file's order; only the header is read. Raises `DumpError`."""
    try:
        header, offset, available = read_header(path, "a SafeTensors file")
    except OSError as error:
        raise DumpError(f"{path}: cannot be read: {error.strerror}") from None
    header.pop("__metadata__", None)
    if len(header) > MAX_TENSORS:
        raise DumpError(f"{path}: expected at most {MAX_TENSORS} tensors, found {len(header)}")
    names = {word: name for name, word in SAFETENSORS.items()} | {"BOOL": "u8", "U16": "bf16"}
    places = check_tensors(header, available, path, _OTHERS)
    return [_tensor(path, name, names.get(word), shape, offset + start) for name, (word, shape, start) in places.items()]


def _tensor(path: Path, name: str, dtype: str | None, shape: tuple[int, ...], offset: int) -> Foreign:
    where = f"{path}: {shown(name)}"
    nbytes = _bytes(where, shape, STORED[dtype].itemsize if dtype else 1)

    def read() -> Stored:
        assert dtype is not None
        if nbytes == 0:
            return np.zeros(shape, STORED[dtype])
        try:
            return np.memmap(path, STORED[dtype], "r", offset, shape).view(np.ndarray)
        except (OSError, ValueError) as error:
            raise DumpError(f"{where}: cannot be read: {error}") from None

    return Foreign(name, dtype, shape, read, where)


def _bytes(where: str, shape: tuple[int, ...], itemsize: int) -> int:
    if len(shape) > MAX_NDIM:
        raise DumpError(f"{where}: expected at most {MAX_NDIM} axes, found {len(shape)}")
    nbytes = math.prod(shape) * itemsize
    if nbytes > MAX_TENSOR_BYTES:
        raise DumpError(f"{where}: expected at most {MAX_TENSOR_BYTES} bytes, found shape {shown(list(shape))}")
    return nbytes


def _unique(path: Path, found: list[Foreign]) -> list[Foreign]:
    seen: set[str] = set()
    for tensor in found:
        if tensor.name in seen:
            raise DumpError(f"{path}: the name {shown(tensor.name)} is there twice")
        seen.add(tensor.name)
    return found
