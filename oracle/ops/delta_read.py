"""delta_read: what a query reads from the delta rule's state after its own row has been written, ``o = Sᵀ q`` per value head.

Source: `specs/qwen38-flash-next.md` 1.6 step 7. Noise: `specs/noise-rules.md` 5.11, last formula.
"""

from __future__ import annotations

import numpy as np

from oracle import summation
from oracle.arithmetic import Arithmetic
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Axes, Operation, Tensor, Variance, Where, gamma, is_zero
from oracle.ops.delta_state import widened
from oracle.ops.linear import narrowing


def axes(state: Tensor, q: Tensor) -> Axes:
    return ("row", "head", "dim")


def shape(state: Tensor, q: Tensor) -> tuple[int, ...]:
    rows, heads, _, dim = state.data.shape
    return (rows, heads, dim)


def formula(F: Kit, state: Values, q: Values) -> Values:
    """state [row, head, key, dim], q [row, key head, key] -> [row, head, dim]."""
    return F.inner(F.cast(state).swapaxes(-1, -2), widened(F.cast(q), state.shape[1])[:, :, None, :])


def noise(A: Arithmetic, y: Array, state: Tensor, q: Tensor) -> Variance:
    heads = state.data.shape[1]
    a, b = A.energy(state.data.shape[2])
    s2, q2 = np.square(state.data), np.square(widened(q.data, heads))

    def weighted(states: Array, queries: Array) -> Array:
        return np.asarray(np.einsum("rhkd,rhk->rhd", states, queries))

    inherited: Array | float = 0.0
    if not (is_zero(state.total) and is_zero(q.total)):
        inherited = weighted(state.variance(), q2) + weighted(s2, widened(q.variance(), heads))
    return Variance(inherited, A.w3 * (a * np.square(y) + b * weighted(s2, q2)) + narrowing(A.order, y) + (2.0**-149) ** 2)


def _products(where: Where, state: Tensor, q: Tensor) -> Array:
    """Products [suspect, key] at the suspects."""
    row, head, dim = where
    return np.asarray(state.data[row, head, :, dim] * widened(q.data, state.data.shape[1])[row, head])


def bound(A: Arithmetic, y: Array, where: Where, state: Tensor, q: Tensor) -> Array:
    return np.asarray(gamma(state.data.shape[2] + 1) * np.abs(_products(where, state, q)).sum(-1) + 2.0**-148)


def rejudge(A: Arithmetic, order: str, y: Array, where: Where, state: Tensor, q: Tensor) -> Array:
    """u²/3 (Σ s_m² + Σ p²) of the suspects' own partial sums."""
    products = _products(where, state, q)
    energy = np.square(summation.partial_sums(products, order)).sum(-1)
    if not A.fma and summation.parse(order)[0] != "f64":
        energy = energy + np.square(products).sum(-1)
    return np.asarray(A.w3 * energy + narrowing(order, products.sum(-1)) + (2.0**-149) ** 2)


delta_read = Operation("delta_read", "linear", axes, shape, formula, noise, bound, rejudge)
