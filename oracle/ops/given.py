"""given: a value the case hands in (features, states), moved and not changed: bit-equal unless its inputs carry errors."""

from __future__ import annotations

from oracle.arithmetic import Arithmetic
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Operation, Tensor, Variance, axes_of_first, shape_of_first


def formula(F: Kit, x: Values) -> Values:
    """The input itself: features, ids or states that the case hands in."""
    return F.cast(x)


def noise(A: Arithmetic, y: Array, x: Tensor) -> Variance:
    return Variance(x.total, 0.0)


given = Operation("given", "structural", axes_of_first, shape_of_first, formula, noise)
