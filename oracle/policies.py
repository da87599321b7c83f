"""Activation policies: what an engine rounds the input of a product to, as exact functions of the value.

Source: `specs/native-backends.md` 2.2 (Q8_K, Q8_0, Q8_1 as activations) and 3.6. Applied to the value, so only the *flips* such a
rounding can suffer are noise (`specs/noise-rules.md` section 4, last rule, and 5.2). A ``-simd`` policy is what ggml's x86 kernels
compute (``arch/x86/quants.c`` and ``repack.cpp``: one division 127/max, halves to even) where the plain one is its scalar reference
(``ggml-quants.c``: the inverse of max/127, halves away from zero); they differ in one bit of a few of a million values.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oracle.floats import BF16, F16, F32
from oracle.tensor import Array

#: The format ggml's CPU kernels round activations to, by the weight's own (``vec_dot_type`` in ``ggml-cpu.c``). The tiled, the
#: repacked and the ``llamafile_sgemm`` kernels read the same formats, so the table holds for every shape and number of rows.
_GGML = {
    "f64": "f32",
    "f32": "f32",
    "f16": "f16",
    "bf16": "bf16",
    **dict.fromkeys(("q4_0", "q5_0", "q8_0", "iq4_nl", "mxfp4", "nvfp4"), "q8_0"),
    **dict.fromkeys(("q4_1", "q5_1"), "q8_1"),
    **dict.fromkeys(("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "tq1_0", "tq2_0"), "q8_k"),
    **dict.fromkeys(("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs"), "q8_k"),
}
_WEIGHT16 = {stored: stored if stored in ("f16", "bf16") else "f32" for stored in _GGML}
_SIMD = {"q8_0": "q8_0-simd", "q8_1": "q8_1-simd"}
#: Policies that follow the weight: policy -> stored format of the weight -> policy.
#: ``weight16``: matrix units meet a 16-bit weight with activations in its own format, other weights are decoded.
BY_WEIGHT = {"ggml": {stored: _SIMD.get(policy, policy) for stored, policy in _GGML.items()}, "ggml-scalar": _GGML, "weight16": _WEIGHT16}
PLAIN = ("f32", "bf16", "f16", "q8_0", "q8_0-simd", "q8_1", "q8_1-simd", "q8_k")
POLICIES = (*PLAIN, *BY_WEIGHT)
_REACH = 6.0  # standard deviations from a midpoint within which a value may fall on either side
FLIP = 0.6  # steps of the grid that such a value's deviation is at least


def resolved(policy: str, stored: str) -> str:
    """The plain policy of ``policy`` for a weight stored as ``stored``: itself unless it follows the weight."""
    return BY_WEIGHT[policy][stored] if policy in BY_WEIGHT else policy


def block(policy: str) -> int:
    """Values that share one scale: 256 for Q8_K, 32 for the other quantised policies, 1 for the float ones."""
    return 256 if policy == "q8_k" else 32 if policy.startswith("q8") else 1


def apply(policy: str, x: Array) -> Array:
    """``x [..., k]`` as the policy's consumer sees it, float64."""
    if policy == "f32":
        return x
    if policy in ("bf16", "f16"):
        return (BF16 if policy == "bf16" else F16).round(x)
    if policy not in PLAIN:
        raise ValueError(f"activation policy {policy!r} is unknown")
    d, q = _codes(policy, x)
    return np.asarray((d * q).reshape(x.shape))


def block_sums(policy: str, x: Array) -> Array:
    """The second number of a Q8_1 block, which meets the minimum of the weight's block: ``f16(d Σq)`` [..., blocks], d not yet rounded."""
    with np.errstate(over="ignore"):
        d, q = _q8(policy, x)
        return F16.round((d[..., 0] * q.sum(-1).astype(np.float32)).astype(np.float64))


def step(policy: str, x: Array) -> Array:
    """Spacing of the policy's grid at each element of ``x``."""
    if policy == "f32":
        return np.zeros_like(x)
    if policy in ("bf16", "f16"):
        return (BF16 if policy == "bf16" else F16).ulp(x)
    peak = np.abs(_blocks(x, block(policy))).max(-1, keepdims=True) / 127
    return np.asarray(np.broadcast_to(peak, _blocks(x, block(policy)).shape).reshape(x.shape))


def flips(policy: str, x: Array, variance: Array) -> Array:
    """Variance left after following the policy, of values x [..., k] with errors of ``variance`` (q = the grid's step, σ its root).

    ``0.8 q σ`` below 0.4 q and ``σ² + q²/6`` above, on average over values. Where flips are rare the average is none of them: most values
    lie too far from a midpoint, and one that flips errs by all of q, with it every product it enters. So below 0.1 q the deviation is
    `FLIP` steps within reach of a midpoint (the average, and up to six times its energy), and nothing elsewhere. All values of a block
    err by the same part of them as its scale does.
    """
    q, sigma = step(policy, x), np.sqrt(variance)
    with np.errstate(divide="ignore", invalid="ignore"):
        near = np.abs(np.mod(x / q, 1.0) - 0.5) * q <= _REACH * sigma
    average = np.where(sigma < 0.4 * q, 0.8 * q * sigma, variance + q**2 / 6)
    moved = np.where(sigma < 0.1 * q, np.where(near, np.square(FLIP * q), 0.0), average)
    return np.asarray(moved if block(policy) == 1 else moved + _scaled(policy, x, variance))


def _scaled(policy: str, x: Array, variance: Array) -> Array:
    """Variance that the values x [..., k] of a block have by its scale, which follows their largest: in Q8_K in float32, else rounded to
    float16, so that it moves by a step of that or not at all."""
    sizes, spread = _blocks(np.abs(x), block(policy)), _blocks(variance, block(policy))
    at = sizes.argmax(-1)[..., None]
    peak, error = (np.take_along_axis(part, at, -1) for part in (sizes, spread))
    scale, error = peak / 127, error / 127**2
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.where(scale > 0, (error if policy == "q8_k" else flips("f16", scale, error)) / np.square(scale), 0.0)
    return np.asarray((np.square(sizes) * part).reshape(x.shape))


def interval(policy: str, x: Array, reach: Array) -> tuple[Array, Array]:
    """Least and largest value that the policy makes of anything within ``reach`` of x [..., k].

    A block's values and its largest magnitude, which sets their scale, reach their ends apart.
    """
    if block(policy) == 1:
        return apply(policy, x - reach), apply(policy, x + reach)
    sizes, reaches = _blocks(np.abs(x), block(policy)), _blocks(reach, block(policy))
    peaks = [np.maximum((sizes + side * reaches).max(-1, keepdims=True), 0.0) for side in (-1, 1)]
    ends = [_codes(policy, x + side * reach, peak) for side in (-1, 1) for peak in peaks]
    reached = [(d * np.clip(q, -127, 127)).reshape(x.shape) for d, _ in ends for _, q in ends]
    return np.min(reached, 0), np.max(reached, 0)


def _blocks(x: Array, width: int) -> Array:
    if x.shape[-1] % width:
        raise ValueError(f"an activation row of {x.shape[-1]} is not a multiple of its block of {width}")
    return x.reshape(*x.shape[:-1], -1, width)


def _finite(inverse: NDArray[np.float32]) -> NDArray[np.float32]:
    """A block so small that the inverse of its scale overflows f32 counts as zero: what engines then compute is undefined."""
    return np.where(np.isfinite(inverse), inverse, np.float32(0))


def _codes(policy: str, x: Array, peak: Array | None = None) -> tuple[Array, Array]:
    """The scale of every block as it is stored [..., blocks, 1], and the whole numbers it multiplies [..., blocks, block].

    ``peak [..., blocks, 1]``: a largest magnitude other than the block's own.
    """
    with np.errstate(over="ignore"):
        if policy == "q8_k":
            return _q8_k(x, peak)
        d, q = _q8(policy, x, peak)
        return F16.round(d), q


def _q8(policy: str, x: Array, peak: Array | None = None) -> tuple[NDArray[np.float32], Array]:
    """(d [..., blocks, 1] before its own rounding to f16, q [..., blocks, 32]): d = max|x|/127, q from the unrounded d."""
    b = F32.round(_blocks(x, 32)).astype(np.float32)
    largest = np.abs(b).max(-1, keepdims=True) if peak is None else peak.astype(np.float32)
    d = largest / np.float32(127)
    simd = policy.endswith("-simd")
    over, by = (np.float32(127), largest) if simd else (np.float32(1), d)
    inverse = _finite(np.divide(over, by, out=np.zeros_like(d), where=by > 0))
    scaled = (b * inverse).astype(np.float64)
    return d, np.rint(scaled) if simd else np.copysign(np.floor(np.abs(scaled) + 0.5), scaled)


def _q8_k(x: Array, peak: Array | None = None) -> tuple[Array, Array]:
    """iscale = -127/x* (x* the element of largest magnitude, signed), q = RNE(iscale x) capped at 127, d = 1/iscale."""
    b = F32.round(_blocks(x, 256)).astype(np.float32)
    largest = np.take_along_axis(b, np.abs(b).argmax(-1)[..., None], -1) if peak is None else peak.astype(np.float32)
    inverse = _finite(np.divide(np.float32(-127), largest, out=np.zeros_like(largest), where=largest != 0))
    q = np.minimum(np.rint((inverse * b).astype(np.float64)), 127)
    d = np.divide(np.float32(1), inverse, out=np.zeros_like(inverse), where=inverse != 0)
    return d.astype(np.float64), q
