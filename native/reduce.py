"""One compiled pass over two recordings: which rows differ, how many elements, how far (``cpu/reduce.cpp``)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from cffi import FFI
from numpy.typing import NDArray

from native import sources
from native.errors import NativeError

KINDS = ("f64", "f32", "f16", "bf16", "i64", "i32", "u8")

_CDEF = """
int32_t dlab_difference(int32_t kind_a, const void* a, int32_t kind_b, const void* b, int64_t rows, int64_t width, int32_t p, int32_t emin,
                        uint8_t* differs, int64_t* elements, double* max_abs, double* ulps);
uint64_t dlab_read_words(const uint64_t* words, int64_t n);
"""


@dataclass(frozen=True)
class Reduced:
    """``differs`` bool [rows]; ``elements`` that differ; the largest finite distance, absolute and in spacings of the given format."""

    differs: NDArray[np.bool_]
    elements: int
    max_abs: float
    ulps: float


@cache
def _functions() -> tuple[FFI, Any]:
    ffi = FFI()
    ffi.cdef(_CDEF)
    return ffi, ffi.dlopen(str(sources.library_path("cpu")))


def difference(a: NDArray[Any], kind_a: str, b: NDArray[Any], kind_b: str, p: int, emin: int) -> Reduced:
    """``a`` against ``b``, both C-contiguous [rows, ...] of the stored dtypes ``kind`` (`KINDS`; bf16 as its bits). Values differ that
    are neither equal nor both NaN. ``p`` and ``emin``: the format whose spacings are counted. Runs without the interpreter's lock."""
    ffi, functions = _functions()
    if a.shape != b.shape or not (a.flags.c_contiguous and b.flags.c_contiguous):
        raise ValueError(f"shapes {a.shape} and {b.shape}: expected two C-contiguous arrays of one shape")
    rows = len(a)
    differs = np.empty(rows, np.uint8)
    elements, apart, ulps = ffi.new("int64_t*"), ffi.new("double*"), ffi.new("double*")
    pointers = [ffi.cast("void*", x.ctypes.data) for x in (a, b)]
    status = functions.dlab_difference(
        *(KINDS.index(kind_a), pointers[0], KINDS.index(kind_b), pointers[1], rows, a.size // max(rows, 1), p, emin),
        *(ffi.cast("uint8_t*", differs.ctypes.data), elements, apart, ulps),
    )
    if status:
        raise NativeError("DTYPE", f"dlab_difference: {kind_a} against {kind_b} is refused")
    return Reduced(differs.view(np.bool_), int(elements[0]), float(apart[0]), float(ulps[0]))


def read(a: NDArray[Any]) -> int:
    """The sum of the 8-byte words of a C-contiguous array: what reading it costs at least."""
    ffi, functions = _functions()
    return int(functions.dlab_read_words(ffi.cast("uint64_t*", a.ctypes.data), a.nbytes // 8))
