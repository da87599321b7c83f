"""delta_state: the gated delta rule's state after every row.

``S ← e^g S``, ``d = β (v - Sᵀk)``, ``S ← S + k dᵀ`` per value head, one row after the other; value head h uses key head
``h // (value heads / key heads)``. Source: `specs/qwen38-flash-next.md` 1.6 step 7 (the recurrence; a chunked candidate is
another arithmetic). Noise: `specs/noise-rules.md` 5.11. Steps share the state they start from, so there is no re-judging.
``rows``: dtype that the state is rounded to from one row to the next, after it was read; what is recorded is the state before that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle import policies
from oracle.arithmetic import Arithmetic
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Axes, Operation, Tensor, Variance, Where, gamma, is_zero

_SUBNORMAL = (2.0**-149) ** 2 / 12


def axes(start: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, *, rows: str | None = None) -> Axes:
    return ("row", *start.axes)


def shape(start: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, *, rows: str | None = None) -> tuple[int, ...]:
    return (k.data.shape[0], *start.data.shape)


def widened(x: NDArray[Any], heads: int) -> NDArray[Any]:
    """Key-side values [row, key head, dim] for every value head: [row, head, dim]."""
    if heads % x.shape[1]:
        raise ValueError(f"delta rule: {heads} value heads are not a multiple of {x.shape[1]} key heads")
    return np.repeat(x, heads // x.shape[1], 1)


def formula(F: Kit, start: Values, k: Values, v: Values, decay: Values, beta: Values, *, rows: str | None = None) -> Values:
    """start [head, key, dim], k [row, key head, key], v [row, head, dim], decay and beta [row, head] -> [row, head, key, dim]."""
    state, keys = F.cast(start), widened(F.cast(k), start.shape[0])
    out = np.empty((len(k), *state.shape), F.dtype)
    e = np.exp(F.cast(decay))
    for t in range(len(k)):
        state = state * e[t, :, None, None]
        memory = F.inner(state.swapaxes(-1, -2), keys[t, :, None, :])
        d = (F.cast(v[t]) - memory) * F.cast(beta[t])[:, None]
        state = state + keys[t, :, :, None] * d[:, None, :]
        out[t] = state
        state = state if rows is None else F.cast(policies.apply(rows, state))
    return out


def noise(
    A: Arithmetic, y: Array, start: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, *, rows: str | None = None
) -> Variance:
    """Two recursions over the rows, both linear in the variance: the own roundings, and what comes with the inputs.

    A third one, ``pull``, is how the state answers to the relative error that equal decays have in common. A chunked rule forms a decay
    over several rows from the difference of two sums of logarithms since the chunk's beginning, each rounded once.
    """
    noisy = not all(is_zero(t.total) for t in (start, k, v, decay, beta))
    own, inherited = np.zeros(start.data.shape), np.array(start.variance())
    owns, inherits = np.empty(y.shape), np.empty(y.shape) if noisy else 0.0
    a, b = A.energy(start.data.shape[1])
    heads = start.data.shape[0]
    keys, key_noise = widened(k.data, heads), widened(k.variance(), heads)
    before, same = start.data, repeated(decay.data)
    pull = np.zeros(start.data.shape) if same.any() else None
    logs = np.zeros((heads, 1, 1))
    for t in range(len(y)):
        g, rate, key = decay.data[t, :, None, None], beta.data[t, :, None], keys[t]
        logs = (logs if A.chunk and t % A.chunk else 0.0) + g
        faded, k2 = before * np.exp(g), np.square(key)
        memory = np.einsum("hkd,hk->hd", faded, key)
        gap = v.data[t] - memory
        d = rate * gap
        alone = 2 + np.square(g) if pull is None else 1 + (1 + np.square(g)) * ~same[t, :, None, None]
        if A.chunk:
            alone = alone + 2 * np.square(logs)
        own = np.exp(2 * g) * own + A.w3 * np.square(faded) * alone
        sums = A.w3 * (a * np.square(memory) + b * np.einsum("hkd,hk->hd", np.square(faded), k2))
        step = np.square(rate) * (sums + A.w3 * np.square(gap)) + A.w3 * np.square(d)
        own = _moved(own, k2, rate) + k2[..., None] * step[:, None] + A.w3 * np.square(y[t]) + _SUBNORMAL
        owns[t] = own
        if pull is not None:
            pull = pull * np.exp(g) + faded * same[t, :, None, None]
            pull = pull - rate[..., None] * key[..., None] * np.einsum("hkd,hk->hd", pull, key)[:, None]
            owns[t] = own + A.w3 * (1 + np.square(g)) * np.square(pull)
        if noisy:
            kn = key_noise[t]
            inherited = np.exp(2 * g) * inherited + np.square(faded) * decay.variance()[t, :, None, None]
            step = np.square(rate) * (v.variance()[t] + np.einsum("hkd,hk->hd", np.square(faded), kn))
            step = step + np.square(gap) * beta.variance()[t, :, None]
            inherited = _moved(inherited, k2, rate) + k2[..., None] * step[:, None] + kn[..., None] * np.square(d)[:, None]
            inherits[t] = inherited  # type: ignore[index]
        before = y[t]
        if rows is not None:
            before, pull = policies.apply(rows, y[t]), None if pull is None else np.zeros(pull.shape)
            own, inherited = policies.flips(rows, y[t], owns[t] + inherited), np.zeros(own.shape)
    return Variance(inherits, owns)


def repeated(decay: Array) -> NDArray[np.bool_]:
    """[row, head]: rows of each head's most frequent decay, where it occurs more than once.

    Equal decays have an exponential of one and the same error, which adds up over the rows instead of averaging out. That of 0 is exact.
    """
    same = np.zeros(decay.shape, bool)
    for head, values in enumerate(decay.T):
        found, counts = np.unique(values[values != 0], return_counts=True)
        if len(counts) and counts.max() > 1:
            same[:, head] = values == found[counts.argmax()]
    return same


def _moved(variance: Array, k2: Array, rate: Array) -> Array:
    """Independent errors of the state under the map ``I - β k kᵀ``: [head, key, dim]."""
    weighted = np.einsum("hkd,hk->hd", variance, k2)
    beta_k2 = rate[..., None] * k2[..., None]
    crossed = np.square(rate)[..., None] * k2[..., None] * (weighted[:, None] - k2[..., None] * variance)
    return np.asarray(variance * np.square(1 - beta_k2) + np.maximum(crossed, 0))


def bound(
    A: Arithmetic, y: Array, where: Where, start: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, *, rows: str | None = None
) -> Array:
    """The running error bound of the recurrence for any order of its sums: every term with its absolute value, and a step of the dtype
    that ``rows`` names."""
    u, chain = 2.0**-24, gamma(start.data.shape[1] + 1)
    keys, reach, before = np.abs(widened(k.data, len(start.data))), np.zeros(start.data.shape), start.data
    bounds = np.empty(y.shape)
    for t in range(len(y)):
        e = np.exp(decay.data[t])[:, None, None]
        faded = np.abs(before * e)
        reach = reach * e + u * (4 + np.abs(decay.data[t])[:, None, None]) * faded
        memory = np.einsum("hkd,hk->hd", before * e, widened(k.data[t : t + 1], len(start.data))[0])
        gap, rate = np.abs(v.data[t] - memory), np.abs(beta.data[t])[:, None]
        error = rate * (np.einsum("hkd,hk->hd", reach + chain * faded, keys[t]) + u * gap) + u * rate * gap
        written = keys[t][..., None] * (error + u * rate * gap)[:, None]
        reach = (reach + written + u * np.abs(y[t]) + 2.0**-149) * (1 + 4 * u)
        bounds[t], before = reach, y[t]
        if rows is not None:
            before, reach = policies.apply(rows, y[t]), reach + policies.step(rows, y[t])
    return np.asarray(1.001 * bounds[where])


delta_state = Operation("delta_state", "linear", axes, shape, formula, noise, bound, carried=True)
