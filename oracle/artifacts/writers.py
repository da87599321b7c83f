"""Write GGUF files and SafeTensors folders, tensor by tensor, a chunk at a time.

A file is written under a temporary name beside its place and renamed when complete: a half file is never left.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from oracle.artifacts import blocks
from oracle.artifacts.container import fail
from oracle.artifacts.gguf_file import ARRAY, GGML_TYPES, MAGIC, SCALARS, STRING

ALIGNMENT = 32
VERSION = 3
TYPE_IDS = {kind: (code, fmt) for code, (kind, fmt) in SCALARS.items()}
DTYPE_NAMES = {"f32": "F32", "f16": "F16", "bf16": "BF16", "f64": "F64", "i32": "I32", "i64": "I64", "bool": "BOOL"}
INTEGER_BYTES = {"i32": 4, "i64": 8, "bool": 1}
INTEGER_IDS = {name: code for code, (name, _, _) in GGML_TYPES.items() if name in INTEGER_BYTES}


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor to write: ``shape`` in NumPy order; ``chunks()`` yields its bytes, uint8 [rows, bytes], in row order."""

    name: str
    shape: tuple[int, ...]
    stored: str
    chunks: Callable[[], Iterator[NDArray[np.uint8]]]

    @classmethod
    def whole(cls, name: str, shape: tuple[int, ...], stored: str, raw: NDArray[np.uint8]) -> PlannedTensor:
        """A tensor whose bytes are at hand."""
        return cls(name, shape, stored, lambda: iter([raw]))

    @property
    def size(self) -> int:
        """Bytes in the file. ValueError when the width does not fit the format."""
        width = self.shape[-1]
        row = width * INTEGER_BYTES[self.stored] if self.stored in INTEGER_BYTES else blocks.row_bytes(self.stored, width)
        return math.prod(self.shape[:-1]) * row

    @property
    def ggml_type(self) -> int:
        """The format's id in GGUF files. ValueError for one it does not have."""
        return INTEGER_IDS[self.stored] if self.stored in INTEGER_IDS else blocks.format_of(self.stored).ggml_type


@dataclass(frozen=True)
class Typed:
    """A GGUF value with its type name: ``u32``, ``f32``, ``bool``, ``string``, ``array of u32`` ..."""

    kind: str
    value: Any


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A stream whose content becomes ``path`` when the block ends without an error, and nothing otherwise."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("xb") as stream:
            yield stream
        partial.replace(path)
    except OSError as error:
        fail(path, f"cannot be written ({error.strerror or error}); check the folder and the space left")
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def write_gguf(path: Path, metadata: dict[str, Typed], tensors: Sequence[PlannedTensor]) -> None:
    """Write a GGUF version 3 file. ValueError when a tensor's chunks do not add up to its shape."""
    with replacing(path) as stream:
        stream.write(MAGIC + struct.pack("<IQQ", VERSION, len(tensors), len(metadata)))
        for key, typed in metadata.items():
            stream.write(_string(key) + _value(typed))
        offset = 0
        for t in tensors:
            dims = t.shape[::-1]
            stream.write(_string(t.name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, t.ggml_type, offset))
            offset += -(-t.size // ALIGNMENT) * ALIGNMENT
        _pad(stream)
        for t in tensors:
            _write_chunks(stream, t)
            _pad(stream)


def write_safetensors(path: Path, tensors: Sequence[PlannedTensor]) -> None:
    """Write one SafeTensors file of plain tensors. ValueError on another format."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for t in tensors:
        if t.stored not in DTYPE_NAMES:
            raise ValueError(f"tensor {t.name}: SafeTensors cannot store {t.stored}; expected one of {', '.join(DTYPE_NAMES)}")
        header[t.name] = {"dtype": DTYPE_NAMES[t.stored], "shape": list(t.shape), "data_offsets": [offset, offset + t.size]}
        offset += t.size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path) as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for t in tensors:
            _write_chunks(stream, t)


def write_folder(folder: Path, config: dict[str, Any], tensors: Sequence[PlannedTensor]) -> list[Path]:
    """Write ``model.safetensors`` and ``config.json`` into ``folder``; returns both paths, config first."""
    config_path, weights = folder / "config.json", folder / "model.safetensors"
    write_safetensors(weights, tensors)
    with replacing(config_path) as stream:
        stream.write(json.dumps(config, indent=2).encode() + b"\n")
    return [config_path, weights]


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(typed: Typed) -> bytes:
    if typed.kind == "string":
        return struct.pack("<I", STRING) + _string(typed.value)
    if typed.kind.startswith("array of "):
        element = typed.kind.removeprefix("array of ")
        items: Iterable[bytes]
        if element == "string":
            code, items = STRING, (_string(v) for v in typed.value)
        else:
            code, fmt = TYPE_IDS[element]
            items = (struct.pack(fmt, v) for v in typed.value)
        return struct.pack("<IIQ", ARRAY, code, len(typed.value)) + b"".join(items)
    code, fmt = TYPE_IDS[typed.kind]
    return struct.pack("<I", code) + struct.pack(fmt, typed.value)


def _pad(stream: BinaryIO) -> None:
    stream.write(b"\0" * (-stream.tell() % ALIGNMENT))


def _write_chunks(stream: BinaryIO, tensor: PlannedTensor) -> None:
    written = 0
    for chunk in tensor.chunks():
        stream.write(np.ascontiguousarray(chunk).data)
        written += chunk.nbytes
    if written != tensor.size:
        raise ValueError(f"tensor {tensor.name}: {written} bytes were produced, {tensor.shape} as {tensor.stored} needs {tensor.size}")
