"""What the CPU library does for the process that candidates run in (``cpu/watch.cpp``): fatal accesses told by buffer, the FPU's mode."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from cffi import FFI
from numpy.typing import NDArray

from native import sources
from native.errors import NativeError

SLOTS = 16384
WATCHED = np.dtype([("begin", "<u8"), ("start", "<u8"), ("stop", "<u8"), ("end", "<u8"), ("name", "S64")])

_CDEF = """
int32_t dlab_watch(int32_t fd, const void* table, int64_t length);
uint64_t dlab_fp_mode(void);
void dlab_set_fp_mode(uint64_t mode);
"""


@cache
def _functions() -> tuple[FFI, Any]:
    ffi = FFI()
    ffi.cdef(_CDEF)
    return ffi, ffi.dlopen(str(sources.library_path("cpu")))


TABLE: NDArray[Any] = np.zeros(SLOTS, WATCHED)
"""The buffers a fatal access is looked up in; a row of zeros is none."""


def watch(fd: int) -> None:
    """From now on a fatal signal writes one JSON line to ``fd`` before it ends the process: ``fatal`` (the signal), ``address``,
    ``access``, and ``buffer, side, bytes`` of an entry of `TABLE`, or ``stack``; ``exhausted`` when memory ran out."""
    ffi, functions = _functions()
    if functions.dlab_watch(fd, ffi.cast("void*", TABLE.ctypes.data), SLOTS):
        raise NativeError("STATE", "the signal handlers of the worker cannot be installed")


def fp_mode() -> int:
    """The calling thread's floating-point controls, without its sticky exception flags."""
    return int(_functions()[1].dlab_fp_mode())


def set_fp_mode(mode: int) -> None:
    """Sets them back."""
    _functions()[1].dlab_set_fp_mode(mode)
