"""The one carrier of every reading: values, their axes and what is known of their error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Axes = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Tensor:
    """A stage's value as one reading sees it.

    ``data``: float64 (`Exact`, `Noise`, `Sampled`) or float32 (`Rounded`, `Native`), one axis per name in ``axes``.
    ``var``: variance of (candidate - oracle) *before* the last storage rounding, scalar or like ``data``.
    ``acc``: the part of ``var`` that the producing operation's own accumulation contributes
    (`specs/noise-rules.md` section 1); its tail is heavier than that of the inherited part.
    ``half``: half-width of the last storage rounding (a bounded, uniform error), scalar or like ``data``.
    ``coarse``: how it came from a value with an error by rounding to a coarse grid; ``var`` is then what is left of that error.
    """

    data: NDArray[Any]
    axes: Axes
    var: Array | float = 0.0
    acc: Array | float = 0.0
    half: Array | float = 0.0
    coarse: Coarse | None = None

    def __post_init__(self) -> None:
        if self.data.ndim != len(self.axes):
            raise ValueError(f"axes {self.axes} do not name the {self.data.ndim} axes of a tensor of shape {self.data.shape}")

    @property
    def total(self) -> Array | float:
        """Variance that a consumer of this value inherits: ``var`` plus that of the storage rounding."""
        return self.var + np.square(self.half) / 3.0

    def variance(self) -> Array:
        """`total`, broadcast to the shape of ``data``."""
        return np.broadcast_to(np.asarray(self.total, np.float64), self.data.shape)

    @property
    def exact(self) -> bool:
        """True when the value carries no error at all (the candidate's own recorded value)."""
        return all(np.ndim(p) == 0 and float(p) == 0.0 for p in (self.var, self.half))

    def rows(self, start: int, stop: int | None = None) -> Tensor:
        """The slice ``start:stop`` of the leading axis."""

        def cut(part: Array | float) -> Array | float:
            return part[start:stop] if isinstance(part, np.ndarray) and part.ndim == self.data.ndim else part

        return Tensor(self.data[start:stop], self.axes, cut(self.var), cut(self.acc), cut(self.half))


@dataclass(frozen=True, eq=False)
class Coarse:
    """The activation policy (`oracle.policies`) that rounded a value, and the value ``before``: which neighbour on the grid a value near
    their midpoint becomes is a choice. ``where``: the elements that were rounded, bool like the value, or None for all; others only
    stand beside them."""

    policy: str
    before: Tensor
    where: NDArray[np.bool_] | None = None

    @property
    def whole(self) -> bool:
        return self.where is None or bool(self.where.all())


def coarsely(x: Tensor) -> Array:
    """1 where an element of ``x`` was rounded to a coarse grid, else 0; like ``x``."""
    if x.coarse is None:
        return np.zeros(x.data.shape)
    return np.ones(x.data.shape) if x.coarse.where is None else x.coarse.where.astype(np.float64)


def concatenate(parts: Sequence[Tensor], axes: Axes | None = None) -> Tensor:
    """Join ``parts`` along the leading axis, errors included; ``axes`` renames the axes of the result."""
    first = parts[0]

    def join(name: str) -> Array | float:
        values = [getattr(p, name) for p in parts]
        if all(np.ndim(v) == 0 and v == values[0] for v in values):
            return float(values[0])
        return np.concatenate([np.broadcast_to(np.asarray(v, np.float64), p.data.shape) for v, p in zip(values, parts, strict=True)])

    data = np.concatenate([p.data for p in parts])
    return Tensor(data, axes or first.axes, join("var"), join("acc"), join("half"))
