"""part: the entries ``start … stop - 1`` of every head, where one projection holds two things side by side; moved, not changed."""

from __future__ import annotations

from oracle.arithmetic import Arithmetic
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Axes, Operation, Tensor, Variance, is_zero


def axes(x: Tensor, *, start: int, stop: int) -> Axes:
    return x.axes


def shape(x: Tensor, *, start: int, stop: int) -> tuple[int, ...]:
    return (*x.data.shape[:-1], stop - start)


def formula(F: Kit, x: Values, *, start: int, stop: int) -> Values:
    """x [..., dim] -> [..., stop - start]."""
    return F.cast(x)[..., start:stop]


def noise(A: Arithmetic, y: Array, x: Tensor, *, start: int, stop: int) -> Variance:
    return Variance(0.0 if is_zero(x.total) else x.variance()[..., start:stop], 0.0)


part = Operation("part", "structural", axes, shape, formula, noise)
