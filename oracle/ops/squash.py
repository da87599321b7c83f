"""squash: ``y = gain σ(scale x)``, the write strength of a hyper-connection or the learning rate of a delta rule.

Noise: `specs/noise-rules.md` 5.9; a sigmoid that underflows is flushed, an absolute error.
"""

from __future__ import annotations

import numpy as np

from oracle.arithmetic import Arithmetic
from oracle.floats import F32
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Operation, Tensor, Variance, Where, axes_of_first, shape_of_first
from oracle.ops.swiglu import sigmoid


def formula(F: Kit, x: Values, *, scale: float = 1.0, gain: float = 1.0) -> Values:
    """x of any shape -> like x, between 0 and ``gain``."""
    one = F.dtype.type(1)
    with np.errstate(over="ignore"):
        return np.asarray(F.dtype.type(gain) * (one / (one + np.exp(-F.cast(x) * F.dtype.type(scale)))))


def noise(A: Arithmetic, y: Array, x: Tensor, *, scale: float = 1.0, gain: float = 1.0) -> Variance:
    z = x.data * scale
    s = sigmoid(z)
    scaled = 0.0 if np.frexp(scale)[0] == 0.5 else np.square(z * (1 - s))
    flush = np.where(z < -87.3, np.square(2.0**-126 * gain), 0.0)
    return Variance(np.square(scale * y * (1 - s)) * x.total, A.w3 * np.square(y) * (2 + 4 * np.square(1 - s) + scaled) + flush)


def bound(A: Arithmetic, y: Array, where: Where, x: Tensor, *, scale: float = 1.0, gain: float = 1.0) -> Array:
    z = x.data[where] * scale
    flush = np.where(z < -87.3, 2.0**-125 * abs(gain), 0.0)
    return np.asarray(np.abs(y[where]) * (8 + 2 * np.abs(z)) * F32.u + flush + 2.0**-148)


squash = Operation("squash", "elementwise", axes_of_first, shape_of_first, formula, noise, bound)
