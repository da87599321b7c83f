"""Random weights in every stored format, and their decoded values from the gguf package."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from native import DTYPES, Stored

WEIGHT_TYPES = tuple(DTYPES)
SCALES_AT = {"q8_0": (0,), "q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,)}


def random_weight(dtype: str, rows: int, width: int, seed: int = 0) -> Stored:
    """Uniform payload bits with scales that keep the values near one; floats are normal."""
    rng = np.random.default_rng(seed)
    kind = DTYPES[dtype]
    if dtype not in SCALES_AT:
        values = rng.standard_normal((rows, width)).astype(np.float32)
        return Stored.of(to_bf16(values) if dtype == "bf16" else values, dtype)
    blocks = rng.integers(0, 256, (rows * width // kind.block, kind.bytes), dtype=np.uint8)
    for at in SCALES_AT[dtype]:
        scale = rng.uniform(0.5, 1.5, len(blocks)) / (600.0 if kind.block == 256 else 16.0)
        blocks[:, at : at + 2] = scale.astype(np.float16).reshape(-1, 1).view(np.uint8)
    return Stored(blocks.reshape(rows, -1), dtype, (rows, width))


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def decoded(w: Stored) -> NDArray[np.float32]:
    """The f32 values that the gguf package gives."""
    values = gguf.quants.dequantize(w.raw, gguf.GGMLQuantizationType(DTYPES[w.dtype].id))
    return np.asarray(values, np.float32).reshape(w.shape)


def encoded_vector(values: NDArray[Any], dtype: str) -> Stored:
    array = np.asarray(values, np.float32)
    return Stored.of(to_bf16(array) if dtype == "bf16" else array, dtype)
