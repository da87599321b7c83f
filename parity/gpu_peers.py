"""cuBLAS in the same process: a product of bf16, on a device that the CUDA driver tells of.

Both libraries are loaded by name through cffi, when they are here; pointers are those of `native.device.OnDevice`.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

from cffi import FFI

from native.device import OnDevice

_ffi: Any = FFI()
_ffi.cdef(
    """
    int cuInit(unsigned flags);
    int cuDriverGetVersion(int* version);
    int cuDeviceGet(int* device, int ordinal);
    int cuDeviceGetName(char* name, int bytes, int device);
    int cuDevicePrimaryCtxRetain(void** context, int device);
    int cuCtxSetCurrent(void* context);
    int cuCtxSynchronize(void);
    int cublasCreate_v2(void** handle);
    int cublasDestroy_v2(void* handle);
    int cublasGemmEx(void* handle, int transa, int transb, int m, int n, int k, const void* alpha, const void* a, int a_type, int lda,
                     const void* b, int b_type, int ldb, const void* beta, void* c, int c_type, int ldc, int compute, int algorithm);
    """
)
DRIVER = ("libcuda.so.1",)
CUBLAS = ("libcublas.so.13", "libcublas.so.12", "libcublas.so")
# cublas_api.h, library_types.h
_TRANSPOSED, _AS_IT_IS, _F32, _BF16, _COMPUTE_F32, _DEFAULT_ALGORITHM = 1, 0, 0, 14, 68, -1


class PeerError(Exception):
    """A library that is not here, or a call of it that failed: which, and its status."""


def _load(names: tuple[str, ...]) -> Any:
    """The first of the libraries that the loader knows, or that a wheel of NVIDIA brought."""
    folders = [Path(sysconfig.get_path("purelib")) / "nvidia"]
    wheels = [str(path) for name in names for folder in folders for path in sorted(folder.glob(f"*/lib/{name}"))]
    for name in (*names, *wheels):
        try:
            return _ffi.dlopen(name)
        except OSError:
            continue
    raise PeerError(f"{names[0]} is not here")


def _check(status: int, what: str) -> None:
    if status:
        raise PeerError(f"{what} failed with status {status}")


class Driver:
    """The CUDA driver, in the context that the library under test uses too."""

    def __init__(self) -> None:
        self._lib = _load(DRIVER)
        device, context = _ffi.new("int*"), _ffi.new("void**")
        _check(self._lib.cuInit(0), "cuInit")
        _check(self._lib.cuDeviceGet(device, 0), "cuDeviceGet")
        _check(self._lib.cuDevicePrimaryCtxRetain(context, device[0]), "cuDevicePrimaryCtxRetain")
        _check(self._lib.cuCtxSetCurrent(context[0]), "cuCtxSetCurrent")
        self._device = device[0]

    def about(self) -> str:
        """The card and what the driver is for."""
        name, version = _ffi.new("char[256]"), _ffi.new("int*")
        _check(self._lib.cuDeviceGetName(name, 256, self._device), "cuDeviceGetName")
        _check(self._lib.cuDriverGetVersion(version), "cuDriverGetVersion")
        return f"{_ffi.string(name).decode()}, driver for CUDA {version[0] // 1000}.{version[0] % 100 // 10}"

    def wait(self) -> None:
        """Until everything issued has run."""
        _check(self._lib.cuCtxSynchronize(), "cuCtxSynchronize")


class CuBLAS:
    """cuBLAS: ``y = x w^T`` with x [M, K] and w [N, K] in bf16, sums and y [M, N] in float32."""

    def __init__(self, driver: Driver) -> None:
        self._lib = _load(CUBLAS)
        self.wait = driver.wait
        handle = _ffi.new("void**")
        _check(self._lib.cublasCreate_v2(handle), "cublasCreate")
        self._handle = handle[0]
        self._one, self._zero = _ffi.new("float*", 1.0), _ffi.new("float*", 0.0)

    def linear(self, x: OnDevice, w: OnDevice, y: OnDevice) -> None:
        """Issue the product. cuBLAS counts columns first, so the rows given are its columns: y^T [N, M] = w x^T."""
        (m, k), n = x.shape, w.shape[0]
        a, b, c = (_ffi.cast("void*", int(_ffi.cast("uintptr_t", t.tensor.data))) for t in (w, x, y))
        _check(
            self._lib.cublasGemmEx(
                *(self._handle, _TRANSPOSED, _AS_IT_IS, n, m, k, self._one, a, _BF16, k, b, _BF16, k),
                *(self._zero, c, _F32, n, _COMPUTE_F32, _DEFAULT_ALGORITHM),
            ),
            "cublasGemmEx",
        )

    def close(self) -> None:
        self._lib.cublasDestroy_v2(self._handle)
