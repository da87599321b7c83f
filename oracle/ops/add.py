"""add: the residual sum ``a + b``. Noise: `specs/noise-rules.md` 5.6 (one f32 rounding; the errors of the addends are independent)."""

from __future__ import annotations

import numpy as np

from oracle.arithmetic import Arithmetic
from oracle.floats import F32
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Operation, Tensor, Variance, Where, axes_of_first, shape_of_first


def formula(F: Kit, a: Values, b: Values) -> Values:
    """a + b, same shapes."""
    return F.cast(a) + F.cast(b)


def noise(A: Arithmetic, y: Array, a: Tensor, b: Tensor) -> Variance:
    return Variance(np.asarray(a.total) + np.asarray(b.total), np.square(F32.ulp(y)) / 12)


def bound(A: Arithmetic, y: Array, where: Where, a: Tensor, b: Tensor) -> Array:
    return F32.ulp(y[where]) / 2


add = Operation("add", "elementwise", axes_of_first, shape_of_first, formula, noise, bound)
