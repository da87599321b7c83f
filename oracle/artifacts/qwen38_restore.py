"""What llama.cpp's layout of a Qwen3.8-Flash-Next target changes, undone: shifted norms, ``-exp(A_log)``, tiled value heads.

Source: `specs/qwen38-flash-next.md` 1.2. Matrices stay mapped and are put in order as they are read.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oracle.artifacts import blocks
from oracle.artifacts.reordered import Reordered, tiled_heads
from oracle.targets.qwen38_weights import Qwen38Geometry
from oracle.weights import Weight

# Norms whose weight is stored as 1 + w.
SHIFTED = ("hc_norm", "q_norm", "k_norm", "index_q_norm", "index_k_norm", "key_norm", "query_norm", "conv_norm")


def restored(found: dict[str, Weight], g: Qwen38Geometry) -> dict[str, Weight]:
    """The weights as a folder has them: norms as w of 1 + w, A_log itself, value heads grouped; all but vectors stay mapped."""
    made = dict(found)
    for key, w in found.items():
        part = key.rsplit(".", 1)[-1]
        if part in SHIFTED:
            made[key] = shifted(w, -1.0)
        elif key.endswith("delta.a_bias"):
            made[key] = _by_head(logarithm(w), g)
        elif ".delta." in key and part != "norm":
            made[key] = _grouped(w, part, g)
    return made


def shifted(w: Weight, by: float) -> Weight:
    """The vector plus ``by``, in f32 where that holds it exactly, else in f64 (exact for any f32 above 2^-29)."""
    values = w.array() + by
    stored = "f32" if np.array_equal(values, values.astype(np.float32)) else "f64"
    return Weight.of(values, w.axes, stored, w.name)


def logarithm(w: Weight) -> Weight:
    """A_log of a stored ``-exp(A_log)``: the shortest plain format whose exponential is the stored value, else the f64 logarithm.

    `ValueError` where a value is not below zero.
    """
    values = w.array()
    if not (values < 0).all():
        raise ValueError(f"{w.name}: expected numbers below 0, which -exp(A_log) is, found {values.max():g}")
    exact = np.log(-values)
    for stored in ("bf16", "f16", "f32"):
        rounded = blocks.decode(blocks.encode(exact[None], stored), stored, len(exact))[0]
        if _is_exponential(-values, rounded, w.stored):
            return Weight.of(rounded, w.axes, stored, w.name)
    return Weight.of(exact, w.axes, "f64", w.name)


def _is_exponential(values: NDArray[np.float64], logs: NDArray[np.float64], stored: str) -> bool:
    """Whether ``values`` are the exponentials of ``logs``, rounded to ``stored``; in f64 within two ulps, which libraries differ by."""
    made = np.exp(logs)
    if stored == "f64":
        return bool((np.abs(made - values) <= 2 * np.spacing(values)).all())
    return np.array_equal(blocks.decode(blocks.encode(made[None], stored), stored, len(values))[0], values)


def _by_head(w: Weight, g: Qwen38Geometry) -> Weight:
    """A vector [head] with its heads grouped."""
    return Reordered(w, w.axes, w.shape, columns=tiled_heads(g.key_heads, g.value_heads, 1))


def _grouped(w: Weight, part: str, g: Qwen38Geometry) -> Weight:
    if g.key_heads == g.value_heads:
        return w
    if part == "dt_bias":
        return _by_head(w, g)
    if part in ("beta", "decay"):
        return Reordered(w, w.axes, w.shape, rows=tiled_heads(g.key_heads, g.value_heads, 1))
    heads = tiled_heads(g.key_heads, g.value_heads, g.value_dim)
    if part == "z":
        return Reordered(w, w.axes, w.shape, rows=heads)
    if part == "o":
        return Reordered(w, w.axes, w.shape, columns=heads)
    first = 2 * g.key_heads * g.key_dim
    return Reordered(w, w.axes, w.shape, rows=np.concatenate([np.arange(first), first + heads]))
