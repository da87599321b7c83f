"""Engines that run an operation as several of their own, each of which stores its result: a framework in eager mode in bf16.

A formula marks the values that such an engine stores by `Kit.held`. They are rounded here as the engine rounds them, so what is left
of the error is whether one of them falls to the other side: near a midpoint of the storage format float32 decides.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from oracle.floats import FORMATS, FloatFormat
from oracle.kit import Kit, Values
from oracle.ops.base import Operation
from oracle.tensor import Array, Tensor
from oracle.weights import Weight

_REACH = 8.0  # standard deviations from a rounding midpoint within which a held value may fall to the other side


class Eager(Kit):
    """A kit whose held values are rounded to ``store``, as the operations of ``framework`` do it.

    ``torch`` takes scalars as they are. ``mlx`` rounds a scalar to the dtype of the array that it meets and adds a norm's offset in that
    dtype; of a sigmoid it holds ``e^|x|``.
    """

    def __init__(self, store: FloatFormat, inner: Kit, framework: str) -> None:
        super().__init__(inner.dtype, inner.order, inner.norm_sum)
        self.store, self.framework = store, framework
        self.stretches_input = framework == "mlx"

    def held(self, x: Values, ulps: Any = 1.0) -> Values:
        return self.cast(self.store.round(x))

    def held_sum(self, x: Values) -> Values:
        """The partial sums are written in an order of the engine's own, so their rounding cannot be followed."""
        return self.sum(x)

    def constant(self, value: float) -> Any:
        return self.dtype.type(self.store.round(np.asarray(value)) if self.framework == "mlx" else value)

    def scale(self, w: Weight, offset: float) -> Values:
        made = super().scale(w, offset)
        return self.cast(self.store.round(made)) if self.framework == "mlx" else made

    def sigmoid(self, x: Values) -> Values:
        if self.framework != "mlx":
            return super().sigmoid(x)
        one = self.dtype.type(1)
        with np.errstate(over="ignore"):
            small = one / (one + self.held(np.exp(np.abs(x)), ulps=3))
        return self.held(np.where(x < 0, small, one - small), ulps=3)

    def silu(self, x: Values) -> Values:
        return self.held(x * self.sigmoid(x), ulps=0) if self.framework == "mlx" else super().silu(x)


class _Flipped(Eager):
    """Of the held values that the formula marks, those of place ``site`` fall to the other side of their midpoint: where that is
    possible, or with ``every`` all of them."""

    def __init__(self, store: FloatFormat, inner: Kit, framework: str, site: int, every: bool) -> None:
        super().__init__(store, inner, framework)
        self.site, self.every, self.seen = site, every, 0

    def held(self, x: Values, ulps: Any = 1.0) -> Values:
        self.seen += 1
        rounded = super().held(x, ulps)
        if self.seen - 1 != self.site:
            return rounded
        step = self.store.ulp(x)
        from_midpoint = np.abs(np.abs(x / step - np.floor(x / step)) - 0.5) * step
        near = (x != 0) & (self.every | (from_midpoint <= _REACH * ulps * 2.0**-24 * np.abs(x)))
        return np.where(near, rounded + np.where(x >= rounded, step, -step), rounded)

    def held_sum(self, x: Values) -> Values:
        """Every partial sum but the first and the last errs by ``q²/12`` (`variance` divides by 4 or 6), q at most that of all addends
        of one sign. Inputs that were not recorded may lack a factor that is applied to the sum, which is written before it then."""
        self.seen += 1
        total = super().held_sum(x)
        if self.seen - 1 != self.site:
            return total
        largest = np.maximum(np.maximum(x, 0).sum(-1), np.maximum(-x, 0).sum(-1))
        count = x.shape[-1] - (1 if self.every else 2)
        return np.asarray(total + self.store.ulp(largest) * np.sqrt(max(count, 0) / (2 if self.every else 3)))


class _Call(Protocol):
    """A call of a forward (`oracle.readings.Stage`)."""

    @property
    def op(self) -> Operation: ...
    @property
    def args(self) -> tuple[Any, ...]: ...
    @property
    def params(self) -> dict[str, Any]: ...


def kit(store: str, inner: Kit, framework: str = "torch") -> Kit:
    """``inner`` with its held values in ``store``; as it is for f32."""
    return inner if store == "f32" else Eager(FORMATS[store], inner, framework)


def moves(call: _Call, y: Array, store: str, inner: Kit, framework: str = "torch", every: bool | None = None) -> list[Array]:
    """For each held value of the formula: by how much the call's values ``y`` change where it falls to the other side. Empty for f32.

    ``every``: all of them do, not only those near a midpoint; None where an input carries an error of its own.
    """
    if store == "f32":
        return []
    noisy = any(isinstance(a, Tensor) and not a.exact for a in call.args) if every is None else every
    arguments = [a.data if isinstance(a, Tensor) else a for a in call.args]
    made: list[Array] = []
    while True:
        flipped = _Flipped(FORMATS[store], inner, framework, len(made), noisy)
        values: NDArray[Any] = call.op.formula(flipped, *arguments, **call.params)
        if flipped.seen <= len(made):
            return made
        made.append(values - y)


def variance(call: _Call, y: Array, store: str, inner: Kit, framework: str = "torch") -> Array | float:
    """What the rounding of held values leaves: a quarter of the squared move (a flip or none); of inputs that carry an error, two
    roundings of different values, ``q²/12`` each."""
    parts = moves(call, y, store, inner, framework)
    if not parts:
        return 0.0
    noisy = any(isinstance(a, Tensor) and not a.exact for a in call.args)
    return np.asarray(sum(np.square(p) for p in parts) / (6 if noisy else 4), np.float64)
