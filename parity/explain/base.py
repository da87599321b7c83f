"""What an explanation is: an edited call of the diverging operation under which the candidate's values are within noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.readings import Stage
from oracle.tensor import Array, Tensor
from parity.explain.world import NOWHERE, World

# Variance of a few roundings to f32, relative to the square of a value.
ULPS = 16 * 2.0**-48 / 3


@dataclass(frozen=True, eq=False)
class Suspect:
    """One diverging stage: the call on the candidate's own inputs, the oracle's value, the candidate's, and where they part.

    ``where``: bool like the values, the diverging elements; ``rows`` and ``heads``: their extent (heads None without that axis).
    ``world``: what else is known of the run. ``part``: other rows or heads may be wrong for other reasons, and are left out of account.
    """

    stage: Stage
    y: Tensor
    c: Array
    where: NDArray[np.bool_]
    world: World = NOWHERE
    part: bool = False

    @cached_property
    def rows(self) -> NDArray[np.intp]:
        return np.flatnonzero(self.where.reshape(len(self.where), -1).any(1))

    @cached_property
    def heads(self) -> NDArray[np.intp] | None:
        if "head" not in self.y.axes:
            return None
        at = self.y.axes.index("head")
        return np.flatnonzero(self.where.any(tuple(i for i in range(self.where.ndim) if i != at)))

    @cached_property
    def region(self) -> NDArray[np.bool_]:
        """The diverging rows, and of them the diverging heads: what an explanation must bring back within noise."""
        region = np.zeros(self.where.shape, bool)
        region[self.rows] = True
        if self.heads is not None:
            region &= along(self.y, "head", self.heads)
        return region

    def only(self, axis: str, indices: Any) -> Suspect:
        """The same where only these rows (heads) count as diverging."""
        return replace(self, where=self.where & along(self.y, axis, indices), part=True)


def along(y: Tensor, axis: str, indices: Any) -> NDArray[np.bool_]:
    """Bool like ``y`` but for broadcasting: True at ``indices`` of ``axis``; the leading axis stands for rows, whatever its name."""
    at = y.axes.index(axis) if axis in y.axes else 0
    mask = np.zeros(y.data.shape[at], bool)
    mask[indices] = True
    return mask.reshape([-1 if i == at else 1 for i in range(y.data.ndim)])


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """A mistake that could have made the values: ``kind`` of the fault catalogue, ``text`` with its parameters, the edited call.

    ``after``: what is done to the edited call's result (a permutation, a scale), where the mistake is not in the call itself.
    ``fallback``: tried only while nothing of the same kind explains: a parameter as fitted behind its round values, a default.
    ``general``: says less than a mistake of the operation itself (a factor on the result), so it stands behind what fits as well.
    ``parameters``: what was identified, as JSON values. ``details``: further lines for a person.
    """

    kind: str
    text: str
    stage: Stage
    after: Callable[[Tensor], Tensor] | None = None
    fallback: bool = False
    general: bool = False
    parameters: dict[str, Any] = field(default_factory=dict)
    details: tuple[str, ...] = ()


Source = Callable[[Suspect], Iterator[Hypothesis]]


def with_args(stage: Stage, *args: Any) -> Stage:
    return replace(stage, args=args)


def with_arg(stage: Stage, index: int, arg: Any) -> Stage:
    """The call with one argument replaced."""
    return replace(stage, args=(*stage.args[:index], arg, *stage.args[index + 1 :]))


def with_params(stage: Stage, **params: Any) -> Stage:
    return replace(stage, params=stage.params | params)


def like(t: Tensor, data: Any) -> Tensor:
    """An exact tensor of the same axes with other values."""
    return Tensor(np.asarray(data, np.float64), t.axes)


def become(value: Any) -> Callable[[Tensor], Tensor]:
    """Other values with the call's own errors, which grow with the values as the call's do: by its mean relative error and some ulps."""

    def apply(t: Tensor) -> Tensor:
        made = np.asarray(value, np.float64).reshape(t.data.shape)
        square, mean = np.square(made), max(float(np.mean(np.square(t.data))), 1e-300)
        var, acc = (np.asarray(part) + square * (float(np.mean(part)) / mean) for part in (t.var, t.acc))
        grown = np.clip(np.abs(made) / np.maximum(np.abs(t.data), 1e-300), 1, 1e30)
        moved = t.exact and np.isin(made, t.data).all()
        return Tensor(made, t.axes, 0.0 if moved else var + ULPS * square, acc, t.half * grown if np.ndim(t.half) else t.half)

    return apply


def mapped(change: Callable[[Array], Array]) -> Callable[[Tensor], Tensor]:
    """The same change applied to values and errors (a move of elements)."""

    def apply(t: Tensor) -> Tensor:
        var, acc, half = (
            change(np.broadcast_to(np.asarray(p, np.float64), t.data.shape)) if np.ndim(p) else p for p in (t.var, t.acc, t.half)
        )
        return Tensor(change(t.data), t.axes, var, acc, half)

    return apply


def scaled(factor: Any) -> Callable[[Tensor], Tensor]:
    """Values times a factor, variances times its square."""

    def apply(t: Tensor) -> Tensor:
        square = np.square(factor)
        return Tensor(t.data * factor, t.axes, np.asarray(t.var) * square, np.asarray(t.acc) * square, np.asarray(t.half) * np.abs(factor))

    return apply


def rounder(value: float) -> list[tuple[float, bool]]:
    """(value, is it a fallback): the value to 2, 3, 4 and 6 digits, then as it is; the roundest that explains is the one to name."""
    short = list(dict.fromkeys(float(f"{value:.{digits}g}") for digits in (2, 3, 4, 6)))
    return [(v, i > 0) for i, v in enumerate(short)] + [(value, True)]


def spans(numbers: Any) -> str:
    from parity.render import spans as text

    return text(int(n) for n in numbers)


def shortened(text: str, length: int = 160) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
