"""Stored weight formats: the bytes of a row, their value, and simple encoders.

Source: `specs/native-backends.md` section 2. The value of a weight is the f32 that the format defines, held in
float64: every product of a scale and a multiple is exact in f32 and only the last subtraction (or addition) of
Q4_K, Q5_K and Q4_1 rounds, once (section 2.3), so decoding is float32 arithmetic, then a widening. f64 is kept whole.
"""

from __future__ import annotations

import numpy as np

from oracle.artifacts import package_blocks
from oracle.artifacts.decoders import CHUNK_VALUES, DECODERS, Array, Bytes, decode_plain
from oracle.artifacts.encoders import ENCODERS, encode_plain, put_f16
from oracle.artifacts.formats import DECODABLE, FORMATS, PLAIN, READ_ONLY, Format, format_of, readable, row_bytes

__all__ = ["DECODABLE", "FORMATS", "PLAIN", "READ_ONLY", "Format", "decode", "encode", "format_of", "random_blocks"]
__all__ += ["readable", "row_bytes"]



def decode(raw: Bytes, stored: str, width: int, out: Array | None = None) -> Array:
    """Values of ``raw`` uint8 [rows, bytes] as float64 [rows, width], in ``out`` (C order) where it is given; any of `DECODABLE`.

    ValueError when the bytes do not fit the width.
    """
    need = row_bytes(stored, width)
    if raw.ndim != 2 or raw.shape[1] != need:
        raise ValueError(f"rows of {width} {stored} values need uint8 [rows, {need}], found {list(raw.shape)}")
    f = DECODABLE[stored]
    blocks = np.ascontiguousarray(raw).reshape(-1, f.bytes) if f.values > 1 else np.ascontiguousarray(raw).reshape(-1)
    if out is None:
        out = np.empty((raw.shape[0], width), np.float64)
    flat = out.reshape(-1, f.values) if f.values > 1 else out.reshape(-1)
    step = CHUNK_VALUES // f.values
    # A non-finite scale is data: it makes NaN or Inf weights, which the verdicts report.
    with np.errstate(invalid="ignore", over="ignore"):
        if stored in PLAIN:
            decode_plain(blocks, stored, flat)
            return out
        for start in range(0, len(blocks), step):
            part = blocks[start : start + step]
            if stored in READ_ONLY:
                flat[start : start + step] = package_blocks.decode(part, stored)
            else:
                DECODERS[stored](part, flat[start : start + step])
    return out


def encode(values: Array, stored: str) -> Bytes:
    """Store ``values`` float64 [rows, width] as uint8 [rows, bytes] (section 2.5: deterministic, no search).

    Plain formats round to nearest, ties to even, in one rounding, and keep NaN and Inf. ValueError when the width
    does not fit the block, a finite value or a block's scale overflows, or a block format meets a non-finite value.
    """
    x = np.ascontiguousarray(values, np.float64)
    if x.ndim != 2:
        raise ValueError(f"encode needs [rows, width], found shape {list(x.shape)}")
    rows, width = x.shape
    need = row_bytes(stored, width)
    if stored in READ_ONLY:
        raise ValueError(f"{stored} is read only; expected one of {', '.join(FORMATS)} to store values")
    if stored in PLAIN:
        raw = encode_plain(x, stored).view(np.uint8)
    else:
        if not np.isfinite(x).all():
            raise ValueError(f"{stored} cannot store non-finite values")
        raw = ENCODERS[stored](x.reshape(-1, FORMATS[stored].values))
    return np.ascontiguousarray(raw).reshape(rows, need)


def random_blocks(rng: np.random.Generator, stored: str, rows: int, width: int, std: float) -> Bytes:
    """Valid seeded blocks uint8 [rows, bytes] whose values have a standard deviation of about ``std`` (section 2.4).

    Payload bits are uniform and scales finite and uneven, so no two rows, columns or signs are interchangeable.
    """
    need = row_bytes(stored, width)
    if stored in PLAIN:
        return encode(rng.standard_normal((rows, width)) * (std * rng.uniform(0.5, 1.5, (rows, 1))), stored)
    f = FORMATS[stored]
    n = rows * width // f.values
    raw = np.frombuffer(rng.bytes(n * f.bytes), np.uint8).reshape(n, f.bytes).copy()
    top = {"q8_0": 255, "q4_0": 15, "q4_1": 15, "q5_0": 31, "q4_k": 15, "q5_k": 31, "q6_k": 63}[stored]
    step = std / (0.29 * top)
    spread = rng.uniform(0.5, 1.5, n)
    sign = rng.choice([-1.0, 1.0], n)
    if stored in ("q4_k", "q5_k"):
        # Halved: the two random six-bit fields double the deviation of the payload alone.
        put_f16(raw, 0, step / 63 * spread)
        put_f16(raw, 2, step / 63 * top / 2 * rng.uniform(0.5, 1.5, n))
    elif stored == "q6_k":
        put_f16(raw, 208, step / 64 * spread * sign)
    elif stored == "q4_1":
        put_f16(raw, 0, step * spread)
        put_f16(raw, 2, -step * top / 2 * rng.uniform(0.5, 1.5, n))
    else:
        put_f16(raw, 0, step * spread * (1.0 if stored == "q8_0" else sign))
    return raw.reshape(rows, need)
