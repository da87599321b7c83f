"""expert_linear: every row through the matrices of its own selected experts, ``y_rj = W_{sel_rj} x_r`` (or ``x_rj``).

Source: `specs/laguna.md` 1.3 (14f). Each expert's matrix is a `Weight` of its own, streamed once per call for the rows that
selected it. Noise: `specs/noise-rules.md` 5.1 per expert; it holds for equal sets of experts only (section 6).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.arithmetic import Arithmetic
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Axes, Operation, Tensor, Variance, Weight, Where, is_zero
from oracle.ops.linear import linear
from oracle.ops.open_choices import chosen

Experts = tuple[Weight, ...]
Places = tuple[NDArray[np.intp], NDArray[np.intp]]


def axes(x: Tensor, selected: Tensor, experts: Experts) -> Axes:
    return (*selected.axes, "dim")


def shape(x: Tensor, selected: Tensor, experts: Experts) -> tuple[int, ...]:
    return (*selected.data.shape, experts[0].row_count)


def indices(selected: Values, count: int) -> NDArray[np.int64]:
    """Selected experts as integers; ValueError for one that does not exist."""
    ids = np.asarray(selected).astype(np.int64)
    wrong = (ids < 0) | (ids >= count)
    if wrong.any():
        row, rank = (int(i) for i in np.argwhere(wrong)[0])
        raise ValueError(f"expert {ids[row, rank]} selected by row {row} at rank {rank}: there are {count} experts")
    return ids


def by_expert(selected: Values, count: int) -> Iterator[tuple[int, Places]]:
    """(expert, (rows, ranks) that selected it), every selected expert once, in order."""
    ids = indices(selected, count)
    for expert in np.unique(ids):
        rows, ranks = np.nonzero(ids == expert)
        yield int(expert), (rows, ranks)


def inputs(x: NDArray[Any], at: Places) -> NDArray[Any]:
    """The inputs at (rows, ranks): x [row, in] is the same at every rank, x [row, rank, in] is not."""
    return x[at[0]] if x.ndim == 2 else x[at]


def formula(F: Kit, x: Values, selected: Values, experts: Experts) -> Values:
    """x [row, in] or [row, rank, in], selected [row, rank], experts: [out, in] each -> [row, rank, out]."""
    out = np.empty((*selected.shape, experts[0].row_count), F.dtype)
    for expert, at in by_expert(selected, len(experts)):
        out[at] = linear.formula(F, inputs(x, at), experts[expert])
    return out


def noise(A: Arithmetic, y: Array, x: Tensor, selected: Tensor, experts: Experts) -> Variance:
    inherited, own = np.zeros(y.shape), np.zeros(y.shape)
    noisy = not is_zero(x.total)
    for expert, at in by_expert(selected.data, len(experts)):
        rows = Tensor(inputs(x.data, at), ("row", "in"), inputs(x.variance(), at) if noisy else 0.0)
        v = linear.noise(A, y[at], rows, experts[expert])
        inherited[at], own[at] = v.inherited, v.own
    return Variance((inherited if noisy else 0.0) + chosen(selected, y.shape), own)


def _single(where: Where, x: Tensor, selected: Tensor, y: Array, experts: Experts) -> Iterator[tuple[Any, Any, Where, Tensor, Weight]]:
    """Per expert among the suspects: which of them, its results [n, out], their places in those, its inputs and its matrix."""
    rows, ranks, outs = where
    ids = indices(selected.data, len(experts))[rows, ranks]
    for expert in np.unique(ids):
        mine = np.flatnonzero(ids == expert)
        at = (rows[mine], ranks[mine])
        yield mine, y[at], (np.arange(len(mine)), outs[mine]), Tensor(inputs(x.data, at), ("row", "in")), experts[int(expert)]


def bound(A: Arithmetic, y: Array, where: Where, x: Tensor, selected: Tensor, experts: Experts) -> Array:
    """γ_K (|W||x|) of the expert, for any order."""
    out = np.empty(len(where[0]))
    for mine, results, places, rows, w in _single(where, x, selected, y, experts):
        out[mine] = linear.bound(A, results, places, rows, w)
    return out


def rejudge(A: Arithmetic, order: str, y: Array, where: Where, x: Tensor, selected: Tensor, experts: Experts) -> Array:
    """The exact energy of the suspects in the order, as for `linear`."""
    assert linear.rejudge is not None
    out = np.empty(len(where[0]))
    for mine, results, places, rows, w in _single(where, x, selected, y, experts):
        out[mine] = linear.rejudge(A, order, results, places, rows, w)
    return out


expert_linear = Operation("expert_linear", "linear", axes, shape, formula, noise, bound, rejudge)
