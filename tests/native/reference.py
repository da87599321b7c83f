"""The operations in float64, written out for the tests, with the worst-case error of a correct f32 kernel.

Bounds: `specs/native-backends.md` section 4.4; U is half an ulp of f32.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

U = 2.0**-24
TINY = 1e-37
Array = NDArray[np.float64]


def rms_norm(x: Array, w: Array | None, eps: float, offset: float, groups: int) -> Array:
    parts: Array = x.reshape(len(x), groups, x.shape[1] // groups)
    y: Array = (parts / np.sqrt(np.mean(parts**2, -1, keepdims=True) + eps)).reshape(x.shape)
    if w is None:
        return y
    y *= np.tile(w, x.shape[1] // len(w)) + offset
    return y


def rope(x: Array, pos: NDArray[np.int64], inv_freq: Array, rot: int, style: str, mscale: float) -> Array:
    angle = pos[:, None, None] * inv_freq
    rotated = x[..., :rot]
    first, second = (rotated[..., 0::2], rotated[..., 1::2]) if style == "interleaved" else np.split(rotated, 2, -1)
    z = (first + 1j * second) * np.exp(1j * angle) * mscale
    y = x.copy()
    if style == "interleaved":
        y[..., 0:rot:2], y[..., 1:rot:2] = z.real, z.imag
    else:
        y[..., :rot] = np.concatenate([z.real, z.imag], -1)
    return y


def attention(q: Array, k: Array, v: Array, visible: NDArray[np.bool_], scale: float, sinks: Array | None) -> tuple[Array, Array]:
    """Outputs, and the largest |score| of each row and head (for the bound)."""
    out = np.zeros(q.shape)
    largest = np.zeros(q.shape[:2])
    share = q.shape[1] // k.shape[1]
    for r in range(q.shape[0]):
        seen = visible[r]
        if not seen.any():
            continue
        for h in range(q.shape[1]):
            scores = scale * (k[seen, h // share] @ q[r, h])
            top = max(scores.max(), sinks[h] if sinks is not None else -np.inf)
            e = np.exp(scores - top)
            total = e.sum() + (np.exp(sinks[h] - top) if sinks is not None else 0.0)
            out[r, h] = e @ v[seen, h // share] / total
            largest[r, h] = scale * (np.abs(k[seen, h // share]) @ np.abs(q[r, h])).max()
    return out, largest


def sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, e) / (1.0 + e)


def gelu_tanh(x: Array) -> Array:
    return x * sigmoid(2.0 * np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3))


def within(got: NDArray[np.floating], want: Array, bound: Array | float) -> None:
    """Fails with the worst element unless |got - want| <= bound everywhere; NaN never passes."""
    error = np.abs(got.astype(np.float64) - want)
    limit = np.broadcast_to(np.asarray(bound, np.float64), error.shape)
    bad = ~(error <= limit)
    if bad.any():
        at = np.unravel_index(np.argmax(np.where(bad, error / np.maximum(limit, TINY), 0.0)), error.shape)
        worst = f"worst at {at}: {got[at]!r}, expected {want[at]!r} +- {limit[at]:.3g}"
        raise AssertionError(f"{bad.sum()} of {bad.size} beyond the bound, {worst}")
