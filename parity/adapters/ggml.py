"""The tensors of ggml as its library lays them out in memory, read through ctypes; the layout is checked against the library first."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_bool, c_char, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.errors import CandidateError

DTYPES = {"f32": "<f4", "f16": "<f2", "bf16": "<u2", "i32": "<i4", "i64": "<i8"}


class Tensor(ctypes.Structure):
    """``struct ggml_tensor`` of ``ggml.h`` (0.25): ``ne`` and ``nb`` count elements and bytes, fastest axis first."""


Pointer = POINTER(Tensor)
Tensor._fields_ = [
    ("type", c_int),
    ("buffer", c_void_p),
    ("ne", c_int64 * 4),
    ("nb", c_size_t * 4),
    ("op", c_int),
    ("op_params", c_int32 * 16),
    ("flags", c_int32),
    ("src", Pointer * 10),
    ("view_src", Pointer),
    ("view_offs", c_size_t),
    ("data", c_void_p),
    ("name", c_char * 64),
    ("extra", c_void_p),
    ("padding", c_char * 8),
]


class _InitParams(ctypes.Structure):
    _fields_ = [("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool)]


class Ggml:
    """What is asked of the ggml library: names of types and operations, and a tensor's values."""

    def __init__(self, library: Any) -> None:
        self._library = library
        for name, result, arguments in (
            ("ggml_type_name", c_char_p, [c_int]),
            ("ggml_op_desc", c_char_p, [Pointer]),
            ("ggml_init", c_void_p, [_InitParams]),
            ("ggml_free", None, [c_void_p]),
            ("ggml_new_tensor_2d", Pointer, [c_void_p, c_int, c_int64, c_int64]),
            ("ggml_mul_mat", Pointer, [c_void_p, Pointer, Pointer]),
            ("ggml_set_name", Pointer, [Pointer, c_char_p]),
        ):
            function = getattr(library, name, None)
            if function is None:
                raise CandidateError(f"the ggml library lacks {name}: not a version this adapter knows (llama-cpp-python 0.3.36)")
            function.restype, function.argtypes = result, arguments
        self._check_layout()

    def _check_layout(self) -> None:
        """A product of two tensors that the library makes, read back through our layout. `CandidateError` where a field is elsewhere."""
        arena = self._library.ggml_init(_InitParams(1 << 16, None, False))
        try:
            a, b = (self._library.ggml_new_tensor_2d(arena, 0, 3, n) for n in (5, 7))
            product = self._library.ggml_set_name(self._library.ggml_mul_mat(arena, a, b), b"probe").contents
            found = (
                list(product.ne),
                list(product.nb),
                product.name,
                self.operation(product),
                [ctypes.addressof(product.src[i].contents) for i in (0, 1)],
                bool(product.src[2]),
            )
            wanted = (
                [5, 7, 1, 1],
                [4, 20, 140, 140],
                b"probe",
                "MUL_MAT",
                [ctypes.addressof(t.contents) for t in (a, b)],
                False,
            )
        finally:
            self._library.ggml_free(arena)
        if found != wanted:
            raise CandidateError(f"the ggml library lays its tensors out otherwise ({found[:4]}, expected {wanted[:4]}): another version")

    def operation(self, tensor: Tensor) -> str:
        """The operation that makes the tensor, as ggml names it: MUL_MAT, ROPE, SWIGLU …"""
        return str(self._library.ggml_op_desc(byref(tensor)).decode())

    def type_name(self, tensor: Tensor) -> str:
        return str(self._library.ggml_type_name(tensor.type).decode())

    def values(self, tensor: Tensor) -> tuple[NDArray[Any], str]:
        """A copy of the tensor's values, all four axes, the slowest first, and the name of its type.

        ValueError for a type that holds no plain numbers, or data that is not in host memory.
        """
        kind = self.type_name(tensor)
        if kind not in DTYPES or not tensor.data:
            found = f"{kind} values" if tensor.data else "none in host memory"
            raise ValueError(f"the tensor {tensor.name.decode()}: expected values of {', '.join(DTYPES)}, found {found}")
        shape, strides = [int(n) for n in tensor.ne], [int(n) for n in tensor.nb]
        reach = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + np.dtype(DTYPES[kind]).itemsize
        memory = (ctypes.c_uint8 * reach).from_address(tensor.data)
        return np.ndarray(shape[::-1], DTYPES[kind], memoryview(memory), 0, strides[::-1]).copy(), kind
