"""Encoders of the weight formats: deterministic, no search (`specs/native-backends.md` 2.5); `blocks.encode` is the door."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from oracle.artifacts.decoders import Array, Bytes, f16
from oracle.artifacts.formats import FORMATS


def put_f16(raw: Bytes, at: int, values: Array) -> None:
    with np.errstate(over="ignore"):
        half = values.astype("<f2")
    if not np.isfinite(half).all():
        raise ValueError(f"a block scale of {np.abs(values).max():.6g} overflows f16 (largest 65504)")
    raw[:, at : at + 2] = half.reshape(-1, 1).view(np.uint8)


def encode_plain(x: Array, stored: str) -> NDArray[np.generic]:
    out: NDArray[np.generic]
    with np.errstate(over="ignore", invalid="ignore"):
        if stored == "bf16":
            out = _bf16_bits(x)
            infinite = (out & 0x7FFF) == 0x7F80
        else:
            out = x.astype({"f32": "<f4", "f16": "<f2", "f64": "<f8"}[stored])
            infinite = np.isinf(out)
    bad = infinite & np.isfinite(x)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise ValueError(f"value {x[row, column]:.6g} at row {row}, column {column} overflows {stored}")
    return out


def _bf16_bits(x: Array) -> NDArray[np.uint16]:
    """bf16 bits of float64 values, nearest-even in one rounding: first to f32 by rounding to odd, then to 16 bits."""
    single = x.astype("<f4")
    bits = single.view("<u4").copy()
    finite = np.isfinite(x)
    inexact = finite & (single != x)
    bits[inexact & (np.abs(single) > np.abs(x))] -= 1
    bits[inexact] |= 1
    # A NaN keeps its top half (the conversion to f32 has set its quiet bit); rounding could carry it into the sign.
    rounded = (bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(x), bits >> 16, rounded).astype("<u2")


def _divide(x: Array, by: Array) -> Array:
    """``x / by``, zero where ``by`` is zero."""
    return np.divide(x, by, out=np.zeros(np.broadcast_shapes(x.shape, by.shape)), where=by != 0)


def _peak(x: Array) -> Array:
    """The element of largest magnitude along the last axis, with its sign (the first on ties)."""
    return np.take_along_axis(x, np.abs(x).argmax(-1)[..., None], -1)


def _quantise(x: Array, low: int, high: int) -> NDArray[np.int64]:
    return np.clip(np.rint(x), low, high).astype(np.int64)


def _pack_nibbles(q: NDArray[np.int64]) -> Bytes:
    return ((q[:, :16] & 15) | ((q[:, 16:] & 15) << 4)).astype(np.uint8)


def _encode_q8_0(x: Array) -> Bytes:
    raw = np.empty((len(x), 34), np.uint8)
    put_f16(raw, 0, np.abs(x).max(1) / 127)
    raw[:, 2:] = _quantise(_divide(x, f16(raw, 0).astype(np.float64)), -127, 127).astype(np.int8).view(np.uint8)
    return raw


def _encode_signed(x: Array, half: int, size: int) -> tuple[Bytes, NDArray[np.int64]]:
    """Q4_0 and Q5_0: the scale maps the largest element to ``-half``; returns blocks with d set, and the codes."""
    raw = np.zeros((len(x), size), np.uint8)
    put_f16(raw, 0, _peak(x)[:, 0] / -half)
    return raw, np.clip(_quantise(_divide(x, f16(raw, 0).astype(np.float64)), -half, half) + half, 0, 2 * half - 1)


def _encode_q4_0(x: Array) -> Bytes:
    raw, q = _encode_signed(x, 8, 18)
    raw[:, 2:] = _pack_nibbles(q)
    return raw


def _encode_q5_0(x: Array) -> Bytes:
    raw, q = _encode_signed(x, 16, 22)
    raw[:, 2:6] = np.packbits((q >> 4).astype(np.uint8), axis=1, bitorder="little")
    raw[:, 6:] = _pack_nibbles(q)
    return raw


def _encode_q4_1(x: Array) -> Bytes:
    raw = np.empty((len(x), 20), np.uint8)
    put_f16(raw, 0, (x.max(1) - x.min(1)) / 15)
    put_f16(raw, 2, x.min(1))
    shifted = x - f16(raw, 2).astype(np.float64)
    raw[:, 4:] = _pack_nibbles(_quantise(_divide(shifted, f16(raw, 0).astype(np.float64)), 0, 15))
    return raw


def _encode_k(x: Array, stored: str) -> Bytes:
    """Q4_K and Q5_K: per sub-block of 32 a six-bit scale and a six-bit min (the min is never positive)."""
    top = 15 if stored == "q4_k" else 31
    sub = x.reshape(-1, 8, 32)
    low = np.minimum(sub.min(2), 0.0)
    scale = (np.maximum(sub.max(2), low) - low) / top
    raw = np.zeros((len(x), FORMATS[stored].bytes), np.uint8)
    put_f16(raw, 0, scale.max(1) / 63)
    put_f16(raw, 2, (-low).max(1) / 63)
    d, dmin = (f16(raw, at).astype(np.float64) for at in (0, 2))
    sc, mn = _quantise(_divide(scale, d), 0, 63), _quantise(_divide(-low, dmin), 0, 63)
    raw[:, 4:8] = sc[:, :4] | ((sc[:, 4:] >> 4) << 6)
    raw[:, 8:12] = mn[:, :4] | ((mn[:, 4:] >> 4) << 6)
    raw[:, 12:16] = (sc[:, 4:] & 15) | ((mn[:, 4:] & 15) << 4)
    q = _quantise(_divide(sub + (dmin * mn)[:, :, None], (d * sc)[:, :, None]), 0, top)
    if stored == "q5_k":
        raw[:, 16:48] = ((q >> 4) << np.arange(8)[None, :, None]).sum(1)
    raw[:, -128:] = ((q[:, 0::2] & 15) | ((q[:, 1::2] & 15) << 4)).reshape(-1, 128)
    return raw


def _encode_q6_k(x: Array) -> Bytes:
    raw = np.zeros((len(x), 210), np.uint8)
    sub = x.reshape(-1, 16, 16)
    scale = _peak(sub)[:, :, 0] / -32
    put_f16(raw, 208, _peak(scale)[:, 0] / -128)
    d = f16(raw, 208).astype(np.float64)
    sc = _quantise(_divide(scale, d), -128, 127)
    q = (_quantise(_divide(sub, (d * sc)[:, :, None]), -32, 31) + 32).reshape(-1, 2, 4, 32)
    low, high = q & 15, q >> 4
    raw[:, :128] = (low[:, :, :2] | (low[:, :, 2:] << 4)).reshape(-1, 128)
    raw[:, 128:192] = (high << np.array([0, 2, 4, 6])[:, None]).sum(2).reshape(-1, 64)
    raw[:, 192:208] = sc.astype(np.int8).view(np.uint8)
    return raw


ENCODERS: dict[str, Callable[[Array], Bytes]] = {
    "q8_0": _encode_q8_0,
    "q4_0": _encode_q4_0,
    "q4_1": _encode_q4_1,
    "q5_0": _encode_q5_0,
    "q4_k": lambda x: _encode_k(x, "q4_k"),
    "q5_k": lambda x: _encode_k(x, "q5_k"),
    "q6_k": _encode_q6_k,
}
