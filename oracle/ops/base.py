"""What an operation declares, once, for every reading, the native binding, the tests and the benchmark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oracle.tensor import Array, Axes, Tensor
from oracle.weights import Weight

Kind = Literal["linear", "attention", "norm", "elementwise", "structural", "choice"]
Where = tuple[NDArray[np.intp], ...]


class Variance(NamedTuple):
    """Error variance of one operation's result, before storage, like the result or scalar.

    ``inherited``: through its inputs. ``own``: its own roundings. ``common``: the part of ``own`` that is one relative
    error for a whole row (a norm's factor r, a softmax's normaliser); it is included in ``own``.
    """

    inherited: Array | float
    own: Array | float
    common: Array | float = 0.0


def exact(*_: Any, **__: Any) -> Variance:
    """Noise rule of an operation that only moves values."""
    return Variance(0.0, 0.0)


def no_bound(arithmetic: Any, y: Array, where: Where, *_: Any, **__: Any) -> Array:
    """Deterministic bound of an operation that only moves values: zero."""
    return np.zeros(len(where[0]) if where else 1)


def no_factor(*_: Any) -> None:
    """Of an operation whose elements err by themselves, or whose ``kind`` says that they do not."""


@dataclass(frozen=True)
class Operation:
    """One operation of the oracle.

    ``axes(*args, **params)``: axes of the result. ``shape(...)``: its shape, from tensors and weights alone.
    ``formula(F, *args, **params)``: the mathematics in the float kit F; tensors arrive as arrays, weights as `Weight`,
    recipes as they are. ``noise(A, y, *args, **params) -> Variance``: the rule of `specs/noise-rules.md` section 5.
    ``bound(A, y, where, *args, **params)``: the any-order bound T_det at the elements ``where``.
    ``rejudge(A, order, y, where, ...)``: exact own variance at ``where`` from the partial sums of ``order``, or None.
    ``kind`` selects the row limits (section 2.2) and how a result is judged. ``carried``: a row goes on from the row before and
    errs with it, each head by one factor, so that neither rows nor elements err by themselves. ``kinked``: values are clipped inside, so
    that small errors of the inputs may leave a row as it is, or not. ``factor(*args)``: the values [row, ...] that each multiply many
    elements of a row, whose error those share, or None.
    """

    name: str
    kind: Kind
    axes: Callable[..., Axes]
    shape: Callable[..., tuple[int, ...]]
    formula: Callable[..., NDArray[Any]]
    noise: Callable[..., Variance] = exact
    bound: Callable[..., Array] = no_bound
    rejudge: Callable[..., Array] | None = None
    carried: bool = False
    kinked: bool = False
    factor: Callable[..., Array | None] = no_factor

    def __repr__(self) -> str:
        return f"<operation {self.name}>"


def axes_of_first(x: Tensor, *_: Any, **__: Any) -> Axes:
    return x.axes


def shape_of_first(x: Tensor, *_: Any, **__: Any) -> tuple[int, ...]:
    return x.data.shape


def gamma(n: float, u: float = 2.0**-24) -> float:
    """γ_n = nu/(1-nu), the standard bound on n roundings; infinite where nu reaches 1."""
    return n * u / (1 - n * u) if n * u < 1 else float("inf")


def spread(x: Array | float, shape: tuple[int, ...]) -> Array:
    """A scalar or array as a float64 array of ``shape``."""
    return np.broadcast_to(np.asarray(x, np.float64), shape)


def is_zero(x: Any) -> bool:
    """True for the scalar 0 that stands for "no error"; an array never is."""
    return np.ndim(x) == 0 and float(x) == 0.0


__all__ = [
    "Array",
    "Axes",
    "Kind",
    "Operation",
    "Tensor",
    "Variance",
    "Weight",
    "Where",
    "axes_of_first",
    "exact",
    "gamma",
    "is_zero",
    "no_bound",
    "shape_of_first",
    "spread",
]
