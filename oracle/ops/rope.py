"""rope: rotary position embedding of a pair (a, b) by the angle ``t = pos * f``.

``o1 = a cos t - b sin t``, ``o2 = b cos t + a sin t``; pairs are halves (neox) or neighbours (interleaved), entries beyond
the rotary width are copied (`specs/dflash-generic.md` section 9). Noise: `specs/noise-rules.md` 5.4.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.arithmetic import Arithmetic
from oracle.floats import F32
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Operation, Tensor, Variance, Where, axes_of_first, is_zero, shape_of_first, spread
from oracle.recipes import Rope


def angles(pos: Any, recipe: Rope) -> Array:
    """Angles ``pos * f``: positions [row] or [row, head] -> float64 [row, 1 or head, pair]."""
    p = np.asarray(pos, np.float64)
    return recipe.angles(p.reshape(len(p), -1, 1))


def halves(x: NDArray[Any], recipe: Rope) -> tuple[NDArray[Any], NDArray[Any]]:
    """The two members of every pair, each [..., pair]."""
    n = recipe.dim
    return (x[..., : n // 2], x[..., n // 2 : n]) if recipe.style == "neox" else (x[..., 0:n:2], x[..., 1:n:2])


def join(first: NDArray[Any], second: NDArray[Any], rest: NDArray[Any], recipe: Rope) -> NDArray[Any]:
    """Inverse of `halves`, with the unrotated ``rest`` behind."""
    if recipe.style == "neox":
        return np.concatenate([first, second, rest], -1)
    pairs = np.stack([first, second], -1).reshape(*first.shape[:-1], recipe.dim)
    return np.concatenate([pairs, rest], -1)


def formula(F: Kit, x: Values, pos: Any, recipe: Rope) -> Values:
    """x [row, head, dim], pos int64 [row] or [row, head] -> like x. The angle is formed in double, its cosine cast to F."""
    x = F.cast(x)
    t = angles(pos, recipe)
    a, b = halves(x, recipe)
    factor = recipe.attention_factor
    if F.stretches_input and factor != 1.0:
        a, b, factor = F.held(a * F.constant(factor), ulps=0), F.held(b * F.constant(factor), ulps=0), 1.0
    c, s = np.cos(t) * factor, np.sin(t) * factor
    # A float32 angle is off by an ulp or two of itself, which a small cosine or sine has as many more of.
    c, s = (F.held(F.cast(x), ulps=2 + 2 * np.abs(t * other) / np.maximum(np.abs(x), 2.0**-60)) for x, other in ((c, s), (s, c)))
    first, second = F.held(a * c, ulps=0) - F.held(b * s, ulps=0), F.held(b * c, ulps=0) + F.held(a * s, ulps=0)
    return join(first, second, x[..., recipe.dim :], recipe)


def _sigma(A: Arithmetic, t: Array, recipe: Rope) -> Array | float:
    """Standard deviation of the angle under the declared way of forming it."""
    u, i = F32.u, np.arange(recipe.dim // 2)
    factor: Any = {
        "exact": 0.0,
        "f32-pow": np.sqrt(1 / 3 + 4 / 3),
        "f32-exp2": np.sqrt(1 / 3 + np.square(2 + np.log(recipe.theta) * 2 * i / recipe.dim) / 3),
        "f32-product": np.sqrt((i * i + i + 1) / 3),
    }[A.angles]
    return np.asarray(np.abs(t) * u * factor)


def noise(A: Arithmetic, y: Array, x: Tensor, pos: Any, recipe: Rope) -> Variance:
    t = angles(pos, recipe)
    c, s = np.cos(t) * recipe.attention_factor, np.sin(t) * recipe.attention_factor
    a, b = halves(x.data, recipe)
    o1, o2 = halves(y, recipe)
    table_c, table_s = np.square(F32.ulp(c)) / 12, np.square(F32.ulp(s)) / 12
    sigma2 = np.square(_sigma(A, t, recipe))
    factor = 0.0 if recipe.attention_factor == 1.0 else 1.0

    def own(p: Array, q: Array, out: Array, other: Array) -> Array:
        """p meets the cosine, q the sine."""
        products = np.square(p * c) + np.square(q * s)
        table = np.square(p) * table_c + np.square(q) * table_s + factor * A.w3 * products
        return np.asarray(other**2 * sigma2 + 0.75 * out**2 * sigma2**2 + table + A.w3 * (products + out**2))

    rest = np.zeros_like(x.data[..., recipe.dim :])
    variance = join(own(a, b, o1, o2), own(b, a, o2, o1), rest, recipe)
    if is_zero(x.total):
        return Variance(0.0, variance)
    vx = x.variance()
    va, vb = halves(vx, recipe)
    inherited = join(c * c * va + s * s * vb, c * c * vb + s * s * va, vx[..., recipe.dim :], recipe)
    return Variance(inherited, variance)


_ANGLE_ULPS = {"exact": 0.0, "f32-pow": 3.0, "f32-exp2": 17.0}


def bound(A: Arithmetic, y: Array, where: Where, x: Tensor, pos: Any, recipe: Rope) -> Array:
    """``|o2|Δt + |o1|Δt²/2 + 2.01u(|a cos| + |b sin|) + 1.01u|o|``, Δt = κ t u by the way the angle is formed."""
    u = F32.u
    t = angles(pos, recipe)
    c, s = np.abs(np.cos(t)) * recipe.attention_factor, np.abs(np.sin(t)) * recipe.attention_factor
    a, b = (np.abs(h) for h in halves(x.data, recipe))
    o1, o2 = (np.abs(h) for h in halves(y, recipe))
    kappa = _ANGLE_ULPS.get(A.angles, 1.5 * np.arange(recipe.dim // 2) + 2)
    dt = kappa * np.abs(t) * u
    first = o2 * dt + o1 * dt**2 / 2 + 2.01 * u * (a * c + b * s) + 1.01 * u * o1
    second = o1 * dt + o2 * dt**2 / 2 + 2.01 * u * (b * c + a * s) + 1.01 * u * o2
    rest = spread(0.0, x.data[..., recipe.dim :].shape)
    return np.asarray(join(first, second, rest, recipe)[where]) + 2.0**-148


rope = Operation("rope", "elementwise", axes_of_first, shape_of_first, formula, noise, bound)
