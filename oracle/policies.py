"""Activation policies: what an engine rounds the input of a product to, as exact functions of the value.

Source: `specs/native-backends.md` 2.2 (Q8_K, Q8_0 as activations) and 3.6. Applied to the value, so only the *flips* such a
rounding can suffer are noise (`specs/noise-rules.md` section 4, last rule, and 5.2).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oracle.floats import BF16, F16, F32
from oracle.tensor import Array


def apply(policy: str, x: Array) -> Array:
    """``x [..., k]`` as the policy's consumer sees it, float64."""
    if policy == "f32":
        return x
    if policy in ("bf16", "f16"):
        return (BF16 if policy == "bf16" else F16).round(x)
    if policy in ("q8_0", "q8_k"):
        with np.errstate(over="ignore"):
            return _q8_0(x) if policy == "q8_0" else _q8_k(x)
    raise ValueError(f"activation policy {policy!r} is unknown")


def step(policy: str, x: Array) -> Array:
    """Spacing of the policy's grid at each element of ``x``."""
    if policy == "f32":
        return np.zeros_like(x)
    if policy in ("bf16", "f16"):
        return (BF16 if policy == "bf16" else F16).ulp(x)
    width = 32 if policy == "q8_0" else 256
    peak = np.abs(_blocks(x, width)).max(-1, keepdims=True) / 127
    return np.asarray(np.broadcast_to(peak, _blocks(x, width).shape).reshape(x.shape))


def flips(policy: str, x: Array, variance: Array) -> Array:
    """Variance left after following the policy: ``0.8 q σ`` for σ < 0.4 q, ``σ² + q²/6`` above (q = the grid's step)."""
    q, sigma = step(policy, x), np.sqrt(variance)
    return np.asarray(np.where(sigma < 0.4 * q, 0.8 * q * sigma, variance + q**2 / 6))


def _blocks(x: Array, width: int) -> Array:
    if x.shape[-1] % width:
        raise ValueError(f"an activation row of {x.shape[-1]} is not a multiple of its block of {width}")
    return x.reshape(*x.shape[:-1], -1, width)


def _finite(inverse: NDArray[np.float32]) -> NDArray[np.float32]:
    """A block so small that the inverse of its scale overflows f32 counts as zero: what engines then compute is undefined."""
    return np.where(np.isfinite(inverse), inverse, np.float32(0))


def _q8_0(x: Array) -> Array:
    """d = max|x|/127 stored as f16 after q was formed from the unrounded d; q half away from zero."""
    b = F32.round(_blocks(x, 32)).astype(np.float32)
    peak = np.abs(b).max(-1, keepdims=True)
    d = peak / np.float32(127)
    inverse = _finite(np.divide(np.float32(1), d, out=np.zeros_like(d), where=d > 0))
    scaled = (b * inverse).astype(np.float64)
    q = np.copysign(np.floor(np.abs(scaled) + 0.5), scaled)
    return np.asarray((F16.round(d) * q).reshape(x.shape))


def _q8_k(x: Array) -> Array:
    """iscale = -127/x* (x* the element of largest magnitude, signed), q = RNE(iscale x) capped at 127, d = 1/iscale."""
    b = F32.round(_blocks(x, 256)).astype(np.float32)
    peak = np.take_along_axis(b, np.abs(b).argmax(-1)[..., None], -1)
    inverse = _finite(np.divide(np.float32(-127), peak, out=np.zeros_like(peak), where=peak != 0))
    q = np.minimum(np.rint((inverse * b).astype(np.float64)), 127)
    d = np.divide(np.float32(1), inverse, out=np.zeros_like(inverse), where=inverse != 0)
    return np.asarray((d.astype(np.float64) * q).reshape(x.shape))
