"""sigmoid: ``y = 1 / (1 + e^-x)``, a router's score of every expert. Noise: `specs/noise-rules.md` 5.9, without the product of a gate."""

from __future__ import annotations

import numpy as np

from oracle.arithmetic import Arithmetic
from oracle.floats import F32
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Operation, Tensor, Variance, Where, axes_of_first, shape_of_first
from oracle.ops.swiglu import sigmoid as logistic


def formula(F: Kit, x: Values) -> Values:
    """x of any shape -> 1 / (1 + e^-x), like x."""
    one = F.dtype.type(1)
    with np.errstate(over="ignore"):
        return np.asarray(one / (one + np.exp(-F.cast(x))))


def noise(A: Arithmetic, y: Array, x: Tensor) -> Variance:
    slope = y * logistic(-x.data)
    flush = np.where(x.data < -87.3, 2.0**-252, 0.0)
    return Variance(np.square(slope) * x.total, np.square(y) * A.w3 * (2 + 4 * np.square(1 - y)) + flush)


def bound(A: Arithmetic, y: Array, where: Where, x: Tensor) -> Array:
    flush = np.where(x.data[where] < -87.3, 2.0**-125, 0.0)
    return np.asarray(y[where] * 8 * F32.u + flush + 2.0**-148)


sigmoid = Operation("sigmoid", "elementwise", axes_of_first, shape_of_first, formula, noise, bound)
