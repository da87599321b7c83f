"""Decoders of the weight formats, in float32 on whole blocks (`specs/native-backends.md` 2.1 to 2.3); `blocks.decode` is the door."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Array = NDArray[np.float64]
Single = NDArray[np.float32]

# A tile of 32 wide rows: smaller chunks pay NumPy's cost per call, larger ones leave the cache.
CHUNK_VALUES = 1 << 17


def decode_plain(raw: Bytes, stored: str, out: Array) -> None:
    if stored == "bf16":
        words = raw.view("<u2")
        step = CHUNK_VALUES
        for start in range(0, len(words), step):
            wide = words[start : start + step].astype(np.uint32)
            np.left_shift(wide, 16, out=wide)
            out[start : start + step] = wide.view(np.float32)
    else:
        out[:] = raw.view({"f32": "<f4", "f16": "<f2", "f64": "<f8"}[stored])


def f16(raw: Bytes, at: int) -> Single:
    """The f16 field at byte ``at`` of every block, as float32 [blocks, 1]."""
    return np.ascontiguousarray(raw[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(q: Bytes) -> NDArray[np.uint8]:
    """uint8 [blocks, 16] -> [blocks, 32]: low nibbles are elements 0..15, high nibbles 16..31."""
    out = np.empty((len(q), 2, 16), np.uint8)
    np.bitwise_and(q, 15, out=out[:, 0])
    np.right_shift(q, 4, out=out[:, 1])
    return out.reshape(-1, 32)


def _decode_q8_0(raw: Bytes, out: Array) -> None:
    out[:] = raw[:, 2:].view(np.int8) * f16(raw, 0)


def _decode_q4_0(raw: Bytes, out: Array) -> None:
    q = _nibbles(raw[:, 2:]).view(np.int8)
    q -= 8
    out[:] = q * f16(raw, 0)


def _decode_q4_1(raw: Bytes, out: Array) -> None:
    product = _nibbles(raw[:, 4:]) * f16(raw, 0)
    product += f16(raw, 2)
    out[:] = product


def _decode_q5_0(raw: Bytes, out: Array) -> None:
    q = _nibbles(raw[:, 6:])
    q |= np.unpackbits(raw[:, 2:6], axis=1, bitorder="little") << 4
    signed = q.view(np.int8)
    signed -= 16
    out[:] = signed * f16(raw, 0)


def _six_bit(s: Bytes) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The 12 packed bytes [blocks, 12] -> eight scales and eight mins, uint8 [8, blocks] each (blocks last: long inner loops)."""
    low, middle, high = np.ascontiguousarray(s.T).reshape(3, 4, -1)
    scales = np.concatenate([low & 63, (high & 15) | ((low >> 6) << 4)])
    mins = np.concatenate([middle & 63, (high >> 4) | ((middle >> 6) << 4)])
    return scales, mins


def _decode_k(raw: Bytes, q: NDArray[np.uint8], out: Array) -> None:
    """The common end of Q4_K and Q5_K: ``(d*sc_j)*q - (dmin*mn_j)`` with ``q`` uint8 [blocks, 8, 32]."""
    scales, mins = _six_bit(raw[:, 4:16])
    product = q.astype(np.float32)
    product *= np.ascontiguousarray((scales * f16(raw, 0).T).T)[:, :, None]
    product -= np.ascontiguousarray((mins * f16(raw, 2).T).T)[:, :, None]
    out[:] = product.reshape(-1, 256)


def _k_nibbles(q: Bytes) -> NDArray[np.uint8]:
    """uint8 [blocks, 128] -> [blocks, 8, 32]: of every 32 bytes, the low nibbles are one sub-block, the high the next."""
    packed = np.ascontiguousarray(q).reshape(-1, 4, 32)
    out = np.empty((len(q), 4, 2, 32), np.uint8)
    np.bitwise_and(packed, 15, out=out[:, :, 0])
    np.right_shift(packed, 4, out=out[:, :, 1])
    return out.reshape(-1, 8, 32)


def _decode_q4_k(raw: Bytes, out: Array) -> None:
    _decode_k(raw, _k_nibbles(raw[:, 16:]), out)


def _decode_q5_k(raw: Bytes, out: Array) -> None:
    q = _k_nibbles(raw[:, 48:])
    high = raw[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]
    high &= 1
    high <<= 4
    q |= high
    _decode_k(raw, q, out)


def _decode_q6_k(raw: Bytes, out: Array) -> None:
    low = raw[:, :128].reshape(-1, 2, 2, 32)
    high = raw[:, 128:192].reshape(-1, 2, 32)
    q = np.empty((len(raw), 2, 4, 32), np.uint8)
    np.bitwise_and(low, 15, out=q[:, :, :2])
    np.right_shift(low, 4, out=q[:, :, 2:])
    q[:, :, 0] |= (high << 4) & 0x30
    q[:, :, 1] |= (high << 2) & 0x30
    q[:, :, 2] |= high & 0x30
    q[:, :, 3] |= (high >> 2) & 0x30
    signed = q.view(np.int8)
    signed -= 32
    scale = np.ascontiguousarray(raw[:, 192:208]).view(np.int8) * f16(raw, 208)
    out[:] = (signed.reshape(-1, 16, 16) * scale[:, :, None]).reshape(-1, 256)


DECODERS: dict[str, Callable[[Bytes, Array], None]] = {
    "q8_0": _decode_q8_0,
    "q4_0": _decode_q4_0,
    "q4_1": _decode_q4_1,
    "q5_0": _decode_q5_0,
    "q4_k": _decode_q4_k,
    "q5_k": _decode_q5_k,
    "q6_k": _decode_q6_k,
}
