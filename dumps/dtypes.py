"""The dtypes of recorded values: their stored form, exact conversion on writing and exact widening on reading."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import DumpError

Stored = NDArray[Any]

#: name -> NumPy dtype of the stored elements (little-endian; bf16 as its bit pattern, bool as u8)
STORED: dict[str, np.dtype[Any]] = {
    "f64": np.dtype("<f8"),
    "f32": np.dtype("<f4"),
    "f16": np.dtype("<f2"),
    "bf16": np.dtype("<u2"),
    "i64": np.dtype("<i8"),
    "i32": np.dtype("<i4"),
    "u8": np.dtype("u1"),
}

#: name -> the `descr` values a .npy header may carry for it
NPY_DESCR: dict[str, tuple[str, ...]] = {
    **{name: (dtype.str,) for name, dtype in STORED.items()},
    "u8": ("|u1", "|b1"),
}

#: name -> the dtype word of a .safetensors header
SAFETENSORS: dict[str, str] = {"f64": "F64", "f32": "F32", "f16": "F16", "bf16": "BF16", "i64": "I64", "i32": "I32", "u8": "U8"}

_INFERRED = {"f8": "f64", "f4": "f32", "f2": "f16", "i8": "i64", "i4": "i32", "u1": "u8", "b1": "u8"}


def name_of(dtype: np.dtype[Any]) -> str | None:
    """The dump's name for a NumPy dtype of any byte order; None when it has none. `ml_dtypes.bfloat16` is known by its name."""
    return "bf16" if dtype.name == "bfloat16" else _INFERRED.get(dtype.kind + str(dtype.itemsize))


def bf16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Bit patterns of float32 ``values`` whose low 16 bits are dropped; a NaN stays a NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    high = (bits >> 16).astype(np.uint16)
    return np.where(np.isnan(values), high | np.uint16(0x0040), high).astype(np.uint16)


def widen(stored: Stored, dtype: str) -> NDArray[np.float64]:
    """``stored`` elements of the dump dtype ``dtype`` as float64, exactly.

    Raises `OverflowError` when an i64 value has no exact float64.
    """
    if dtype == "bf16":
        stored = (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    result = _quiet_cast(stored, np.dtype(np.float64))
    if dtype == "i64" and not _same(_quiet_cast(result, np.dtype(np.int64)), stored):
        raise OverflowError("an i64 value has no exact float64")
    return result


def encode(array: ArrayLike, dtype: str | None, where: str) -> tuple[str, Stored]:
    """The dump dtype and the stored form (C order, little-endian) of ``array``.

    ``dtype`` None takes the array's own; any other conversion must be exact (NaN for NaN). ``uint16`` elements are bit
    patterns and need ``dtype="bf16"``. Raises `DumpError`, starting with ``where``.
    """
    source = np.asarray(array)
    own = name_of(source.dtype)
    if dtype is not None and dtype not in STORED:
        raise DumpError(f"{where}: unknown dtype {dtype!r}; known: {', '.join(STORED)}")
    if source.dtype.kind not in "fiub" and own != "bf16":
        raise DumpError(f"{where}: expected numbers, found an array of dtype {source.dtype}")
    if source.ndim == 0:
        raise DumpError(f"{where}: expected rows as the leading axis, found a scalar; reshape it to [1]")
    if dtype is None and own is None:
        hint = "pass dtype='bf16' if these are bf16 bit patterns" if source.dtype.kind == "u" else "convert it first"
        raise DumpError(f"{where}: dtype {source.dtype} is not one of {', '.join(STORED)}; {hint}")
    if dtype == "bf16" and (source.dtype.kind, source.dtype.itemsize) == ("u", 2):
        return dtype, np.ascontiguousarray(source, STORED["bf16"])
    if own == "bf16":
        bits = np.ascontiguousarray(source).view(np.uint16).reshape(source.shape)
        source = bits if dtype in (None, "bf16") else widen(bits, "bf16")
        if dtype in (None, "bf16"):
            return "bf16", np.ascontiguousarray(source, STORED["bf16"])
    name = dtype or own
    assert name is not None
    return name, _convert(source, name, where)


def _convert(source: Stored, name: str, where: str) -> Stored:
    if name == "bf16":
        single = _quiet_cast(source, np.dtype(np.float32))
        bits = bf16_bits(single)
        exact = _same(_quiet_cast(widen(bits, "bf16"), source.dtype), source)
        result: Stored = bits
    else:
        result = _quiet_cast(source, STORED[name])
        back = _quiet_cast(result, source.dtype)
        # The sign is compared too: uint64 to int64 and back wraps round to the same bits.
        exact = name == name_of(source.dtype) or (_same(back, source) and _same(result < 0, source < 0))
    if not exact:
        raise DumpError(f"{where}: {source.dtype} values do not all fit {name} exactly; round them to it first, or record them as they are")
    return np.ascontiguousarray(result, STORED[name])


def _quiet_cast(values: Stored, dtype: np.dtype[Any]) -> Stored:
    with np.errstate(all="ignore"):
        return values.astype(dtype)


def _same(a: Stored, b: Stored) -> bool:
    return bool(np.array_equal(a, b, equal_nan=b.dtype.kind == "f"))
