"""Weight formats that are read only, through the ``gguf`` package: slow, but a model that has them opens."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Name -> ggml type id, values per block, bytes per block.
LAYOUTS: dict[str, tuple[int, int, int]] = {
    "q5_1": (7, 32, 24),
    "q2_k": (10, 256, 84),
    "q3_k": (11, 256, 110),
    "iq2_xxs": (16, 256, 66),
    "iq2_xs": (17, 256, 74),
    "iq3_xxs": (18, 256, 98),
    "iq1_s": (19, 256, 50),
    "iq4_nl": (20, 32, 18),
    "iq3_s": (21, 256, 110),
    "iq2_s": (22, 256, 82),
    "iq4_xs": (23, 256, 136),
    "iq1_m": (29, 256, 56),
    "tq1_0": (34, 256, 54),
    "tq2_0": (35, 256, 66),
    "mxfp4": (39, 32, 17),
    "nvfp4": (40, 64, 36),
}


@cache
def _package(code: int) -> tuple[Any, Any]:
    """The package's decoder and its name for the type. ValueError where this version of it has none."""
    import gguf

    try:
        kind = gguf.GGMLQuantizationType(code)
        gguf.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except (ValueError, KeyError, NotImplementedError):
        raise ValueError(f"the installed gguf package cannot decode ggml type {code}; upgrade it (pip install -U gguf)") from None
    return gguf.dequantize, kind


def available(stored: str) -> bool:
    """Whether the installed package decodes the format ``stored``."""
    try:
        return stored in LAYOUTS and _package(LAYOUTS[stored][0]) is not None
    except ValueError:
        return False


def decode(raw: NDArray[np.uint8], stored: str) -> NDArray[np.float32]:
    """Values of ``raw`` uint8 [blocks, bytes per block] as float32 [blocks, values per block]."""
    dequantize, kind = _package(LAYOUTS[stored][0])
    return np.asarray(dequantize(np.ascontiguousarray(raw), kind), np.float32)
