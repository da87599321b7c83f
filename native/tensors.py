"""The cffi view of ``dlab.h``, stored weights, and NumPy arrays as `dlab_tensor`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from cffi import FFI
from numpy.typing import NDArray

from native.sources import HEADER

Floats = NDArray[np.float32]


def _cdef() -> str:
    text = HEADER.read_text()
    body = text.split("/*@cdef-begin*/")[1].split("/*@cdef-end*/")[0]
    return re.sub(r"\bDLAB_API\b", "", body)


ffi: Any = FFI()
ffi.cdef(_cdef())


@dataclass(frozen=True)
class Dtype:
    """A stored format: its number in the ABI (the GGUF type id), values per block and bytes per block."""

    id: int
    block: int
    bytes: int


DTYPES: dict[str, Dtype] = {
    "f32": Dtype(0, 1, 4),
    "f16": Dtype(1, 1, 2),
    "bf16": Dtype(30, 1, 2),
    "q8_0": Dtype(8, 32, 34),
    "q4_0": Dtype(2, 32, 18),
    "q4_1": Dtype(3, 32, 20),
    "q5_0": Dtype(6, 32, 22),
    "q4_k": Dtype(12, 256, 144),
    "q5_k": Dtype(13, 256, 176),
    "q6_k": Dtype(14, 256, 210),
}
"""Formats a weight can have."""

_INTEGERS = {"i32": Dtype(26, 1, 4), "i64": Dtype(27, 1, 8)}
_ARRAYS: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16, "i32": np.int32, "i64": np.int64, "f64": np.float64}
_IDS = {d.id: name for name, d in DTYPES.items()} | {26: "i32", 27: "i64", 28: "f64"}


@dataclass(frozen=True, eq=False)
class Stored:
    """A weight in its stored form.

    ``raw``: uint8 [rows, bytes per row], C order (often a memory map). ``dtype``: a name of `DTYPES`. ``shape``: the logical shape,
    output axes first, input axis last; rows = the product of all but the last, bytes per row = the last in that format.
    Raises ValueError when they do not fit together.
    """

    raw: NDArray[np.uint8]
    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype {self.dtype!r}: expected one of {', '.join(DTYPES)}")
        kind = DTYPES[self.dtype]
        if not self.shape or self.shape[-1] % kind.block:
            raise ValueError(f"shape {self.shape}: the last axis of {self.dtype} must be a multiple of {kind.block}")
        want = (math.prod(self.shape[:-1]), self.shape[-1] // kind.block * kind.bytes)
        if self.raw.dtype != np.uint8 or self.raw.shape != want or not self.raw.flags.c_contiguous:
            raise ValueError(f"{self.dtype} of shape {self.shape} needs C-contiguous uint8 {want}, found {self.raw.dtype} {self.raw.shape}")

    @classmethod
    def of(cls, values: Any, dtype: str = "f32") -> Stored:
        """``values`` stored as ``f32`` or ``f16``; ``bf16`` takes the uint16 bits."""
        if dtype not in ("f32", "f16", "bf16"):
            raise ValueError(f"dtype {dtype!r}: expected f32, f16 or bf16; block formats come from their stored bytes")
        array = np.ascontiguousarray(values, _ARRAYS[dtype])
        return cls(array.view(np.uint8).reshape(math.prod(array.shape[:-1]), -1), dtype, array.shape)

    def matrix(self) -> Any:
        """As a `dlab_tensor` [rows, values]."""
        return tensor(self.raw, self.dtype, (self.raw.shape[0], self.shape[-1]))

    def vector(self) -> Any:
        """As a `dlab_tensor` [values], all axes flattened."""
        return tensor(self.raw, self.dtype, (self.raw.shape[0] * self.shape[-1],))

    def operand(self) -> Any:
        """As an operand of `Context.apply`: [values] for one logical axis, else [rows, values]."""
        return self.vector() if len(self.shape) == 1 else self.matrix()


def tensor(array: NDArray[Any], dtype: str, shape: tuple[int, ...]) -> Any:
    """A `dlab_tensor` over the memory of ``array`` (dense, not copied). The caller keeps the array alive."""
    t = ffi.new("dlab_tensor*")
    kind = _INTEGERS.get(dtype) or DTYPES[dtype]
    t.data = ffi.cast("void*", array.ctypes.data)
    t.dtype, t.ndim = kind.id, len(shape)
    stride = shape[-1] // kind.block * kind.bytes
    for axis in reversed(range(len(shape))):
        t.shape[axis] = shape[axis]
        t.stride_bytes[axis] = kind.bytes if axis == len(shape) - 1 else stride
        if axis < len(shape) - 1:
            stride *= shape[axis]
    return t


def view(array: NDArray[Any], dtype: str = "f32") -> Any:
    """A `dlab_tensor` over a C-contiguous array of that dtype."""
    return tensor(array, dtype, array.shape)


def read_tensor(t: Any) -> tuple[NDArray[Any], str]:
    """A copy of a dense host `dlab_tensor` and its dtype name; bf16 as uint16 bits, block formats as uint8 [rows, bytes per row]."""
    name = _IDS[t.dtype]
    shape = tuple(t.shape[i] for i in range(t.ndim))
    if name in _ARRAYS:
        kind = np.dtype(_ARRAYS[name])
        row = math.prod(shape[1:]) * kind.itemsize if t.ndim > 1 else kind.itemsize
    else:
        kind = np.dtype(np.uint8)
        row = shape[-1] // DTYPES[name].block * DTYPES[name].bytes
        shape = (shape[0], row)
    rows = shape[0]
    stride = t.stride_bytes[0] if t.ndim > 1 and rows > 1 else row
    if not math.prod(shape):
        return np.empty(shape, kind), name
    raw = np.frombuffer(ffi.buffer(t.data, (rows - 1) * stride + row), np.uint8)
    lines = np.lib.stride_tricks.as_strided(raw, (rows, row), (stride, 1))
    return np.ascontiguousarray(lines).view(kind).reshape(shape).copy(), name
