"""What an explanation is: an edited call of the diverging operation under which the candidate's values are within noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.readings import Stage
from oracle.tensor import Array, Tensor


@dataclass(frozen=True, eq=False)
class Suspect:
    """One diverging stage: the call on the candidate's own inputs, the oracle's value, the candidate's, and where they part.

    ``where``: bool like the values, the diverging elements; ``rows`` and ``heads``: their extent (heads None without that axis).
    """

    stage: Stage
    y: Tensor
    c: Array
    where: NDArray[np.bool_]

    @property
    def rows(self) -> NDArray[np.intp]:
        return np.flatnonzero(self.where.reshape(len(self.where), -1).any(1))

    @property
    def heads(self) -> NDArray[np.intp] | None:
        if "head" not in self.y.axes:
            return None
        at = self.y.axes.index("head")
        return np.flatnonzero(self.where.any(tuple(i for i in range(self.where.ndim) if i != at)))

    @property
    def region(self) -> NDArray[np.bool_]:
        """The diverging rows, and of them the diverging heads: what an explanation must bring back within noise."""
        region = np.zeros(self.where.shape, bool)
        region[self.rows] = True
        if self.heads is not None:
            mask = np.zeros(self.where.shape[self.y.axes.index("head")], bool)
            mask[self.heads] = True
            region &= mask.reshape([-1 if a == "head" else 1 for a in self.y.axes])
        return region


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """A mistake that could have made the values: ``kind`` of the fault catalogue, ``text`` with its parameters, the edited call.

    ``after``: what is done to the edited call's result (a permutation, a scale), where the mistake is not in the call itself.
    ``fallback``: a parameter as fitted, tried only when no rounder value of the same kind explains.
    """

    kind: str
    text: str
    stage: Stage
    after: Callable[[Tensor], Tensor] | None = None
    fallback: bool = False


Source = Callable[[Suspect], Iterator[Hypothesis]]


def with_args(stage: Stage, *args: Any) -> Stage:
    return replace(stage, args=args)


def with_params(stage: Stage, **params: Any) -> Stage:
    return replace(stage, params=stage.params | params)


def mapped(change: Callable[[Array], Array]) -> Callable[[Tensor], Tensor]:
    """The same change applied to values and errors (a move of elements)."""

    def apply(t: Tensor) -> Tensor:
        parts = (change(np.broadcast_to(np.asarray(p, np.float64), t.data.shape)) if np.ndim(p) else p for p in (t.var, t.acc, t.half))
        return Tensor(change(t.data), t.axes, *parts)

    return apply


def scaled(factor: Any) -> Callable[[Tensor], Tensor]:
    """Values times a factor, variances times its square."""

    def apply(t: Tensor) -> Tensor:
        return Tensor(
            t.data * factor, t.axes, np.asarray(t.var) * factor**2, np.asarray(t.acc) * factor**2, np.asarray(t.half) * np.abs(factor)
        )

    return apply


def rounder(value: float) -> list[tuple[float, bool]]:
    """(value, is it as fitted): the value to 2, 3, 4 and 6 digits, then as it is."""
    short = dict.fromkeys(float(f"{value:.{digits}g}") for digits in (2, 3, 4, 6))
    return [*((v, False) for v in short), (value, True)]


def spans(numbers: Any) -> str:
    from parity.render import spans as text

    return text(int(n) for n in numbers)
