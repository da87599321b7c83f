"""selector_scores: DFlash 2's score of every candidate of a row after the token chosen before it (`specs/dflash-generic.md` 14).

``score(c) = logit(c) + <A[prev] ⊙ h, S[c]>`` with the codebooks A, S and ``h`` the projected hidden row. One row at a time, under
``draft.row1.`` for the draft of block row 1: ``selector_scores``, then ``pick`` (`choose`). Noise: `specs/noise-rules.md` 5.1.
"""

from __future__ import annotations

import numpy as np

from oracle import summation
from oracle.arithmetic import Arithmetic
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Axes, Operation, Tensor, Variance, Weight, Where, gamma, is_zero
from oracle.ops.gather import looked_up
from oracle.ops.open_choices import chosen


def axes(logits: Tensor, candidates: Tensor, hidden: Tensor, previous: Tensor, predecessor: Weight, successor: Weight) -> Axes:
    return ("row", "candidate")


def shape(
    logits: Tensor, candidates: Tensor, hidden: Tensor, previous: Tensor, predecessor: Weight, successor: Weight
) -> tuple[int, ...]:
    return candidates.data.shape


def _picked(table: Values, candidates: Values) -> Values:
    """Entries ``candidates`` [row, candidate] of table [row, vocab]; NaN for an id outside it."""
    ids = np.nan_to_num(candidates, nan=-1, posinf=-1, neginf=-1).astype(np.int64)
    inside = (ids >= 0) & (ids < table.shape[1])
    return np.where(inside, np.take_along_axis(table, np.where(inside, ids, 0), 1), table.dtype.type(np.nan))


def _codes(candidates: Values, previous: Values, predecessor: Weight, successor: Weight) -> tuple[Array, Array]:
    """A[prev] as [row, 1, rank] and S[c] as [row, candidate, rank]."""
    following = looked_up(successor, candidates.reshape(-1)).reshape(*candidates.shape, -1)
    return looked_up(predecessor, previous)[:, None], following


def formula(
    F: Kit, logits: Values, candidates: Values, hidden: Values, previous: Values, predecessor: Weight, successor: Weight
) -> Values:
    """logits [row, vocab], candidates [row, candidate], hidden [row, rank], previous [row]; codebooks [vocab, in] -> [row, candidate]."""
    before, after = (F.cast(c) for c in _codes(candidates, previous, predecessor, successor))
    pair = F.sum(before * F.cast(hidden)[:, None] * after)
    return np.asarray(_picked(F.cast(logits), candidates) + pair)


def _products(candidates: Tensor, hidden: Tensor, previous: Tensor, predecessor: Weight, successor: Weight) -> tuple[Array, Array]:
    """Summands and their factors without the hidden row, each [row, candidate, rank]."""
    before, after = _codes(candidates.data, previous.data, predecessor, successor)
    return before * hidden.data[:, None] * after, before * after


def noise(
    A: Arithmetic, y: Array, logits: Tensor, candidates: Tensor, hidden: Tensor, previous: Tensor, predecessor: Weight, successor: Weight
) -> Variance:
    products, factors = _products(candidates, hidden, previous, predecessor, successor)
    a, b = A.energy(products.shape[-1])
    own = A.w3 * (a * np.square(products.sum(-1)) + (b + 2) * np.square(products).sum(-1) + np.square(y))
    other = chosen(candidates, y.shape) + chosen(previous, y.shape)
    if is_zero(logits.total) and is_zero(hidden.total):
        return Variance(other, own)
    through = (np.square(factors) * hidden.variance()[:, None]).sum(-1)
    return Variance(_picked(logits.variance(), candidates.data) + through + other, own)


def bound(
    A: Arithmetic,
    y: Array,
    where: Where,
    logits: Tensor,
    candidates: Tensor,
    hidden: Tensor,
    previous: Tensor,
    predecessor: Weight,
    successor: Weight,
) -> Array:
    """γ_(R+3) Σ |A h S|, and the rounding of the last addition."""
    products, _ = _products(candidates, hidden, previous, predecessor, successor)
    return np.asarray(gamma(products.shape[-1] + 3) * np.abs(products[where]).sum(-1) + 2.0**-23 * np.abs(y[where]))


def rejudge(
    A: Arithmetic,
    order: str,
    y: Array,
    where: Where,
    logits: Tensor,
    candidates: Tensor,
    hidden: Tensor,
    previous: Tensor,
    predecessor: Weight,
    successor: Weight,
) -> Array:
    """The exact energy of the suspects' sums in the order, their two products and the last addition."""
    products, _ = _products(candidates, hidden, previous, predecessor, successor)
    partial = np.square(summation.partial_sums(products[where], order)).sum(-1)
    return np.asarray(A.w3 * (partial + 2 * np.square(products[where]).sum(-1) + np.square(y[where])))


selector_scores = Operation("selector_scores", "linear", axes, shape, formula, noise, bound, rejudge)
