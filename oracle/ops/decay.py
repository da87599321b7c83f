"""decay: the natural logarithm of a head's decay, ``g = -exp(A_log) softplus(a + dt_bias)``, at most 0.

Source: `specs/qwen38-flash-next.md` 1.6 step 6. Noise: `specs/noise-rules.md` 5.9 (stable softplus), with the rounding of
the biased input and of the factor.
"""

from __future__ import annotations

import numpy as np

from oracle.arithmetic import Arithmetic
from oracle.floats import F32
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Operation, Tensor, Variance, Weight, Where, axes_of_first, shape_of_first
from oracle.ops.swiglu import sigmoid


def formula(F: Kit, a: Values, a_log: Weight, dt_bias: Weight) -> Values:
    """a [row, head], a_log and dt_bias [head] -> [row, head]."""
    z = F.cast(a) + F.vector(dt_bias)
    return np.asarray(-np.exp(F.vector(a_log)) * (np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z)))))


def noise(A: Arithmetic, y: Array, a: Tensor, a_log: Weight, dt_bias: Weight) -> Variance:
    z = a.data + dt_bias.array()
    slope = np.square(np.exp(a_log.array()) * sigmoid(z))
    return Variance(slope * a.total, A.w3 * (9 * np.square(y) + slope * np.square(z)))


def bound(A: Arithmetic, y: Array, where: Where, a: Tensor, a_log: Weight, dt_bias: Weight) -> Array:
    z = (a.data + dt_bias.array())[where]
    slope = np.broadcast_to(np.exp(a_log.array()), a.data.shape)[where] * sigmoid(z)
    return np.asarray(F32.u * (12 * np.abs(y[where]) + 1.01 * slope * np.abs(z)) + 2.0**-148)


decay = Operation("decay", "elementwise", axes_of_first, shape_of_first, formula, noise, bound)
