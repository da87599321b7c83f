"""attention: softmax(scale q·k over the visible cells) v, query head h reading kv head ``h // (heads / kv_heads)``.

A row that sees no cell gives zeros. Noise and bound: `specs/noise-rules.md` 5.7 (keys centred, equal cells grouped).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle import summation
from oracle.arithmetic import Arithmetic
from oracle.floats import FORMATS, FloatFormat
from oracle.kit import EXACT, Kit, Values
from oracle.ops.base import Array, Operation, Tensor, Variance, Where, axes_of_first, gamma, is_zero, shape_of_first
from oracle.ops.open_choices import UNKNOWN
from oracle.recipes import Visible, undecided_rows

EXP_ULPS = 1.0
_VANISHING, _TINY = 2.0**-125, 2.0**-149  # below the first a float32 probability may be flushed; the second is the spacing there
QUERIES = "-queries"
_FLIP_REACH = 8.0  # standard deviations from a rounding midpoint within which a stored probability may fall on either side


def group(q: NDArray[Any], k: NDArray[Any]) -> int:
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"attention: {q.shape[1]} query heads are not a multiple of {k.shape[1]} kv heads")
    return int(q.shape[1] // k.shape[1])


def scored(F: Kit, q: Values, k: Values, scale: float, store: str) -> Values:
    """Scores of one head, q [row, dim] and k [cell, dim] -> [row, cell]; ``store``: what they are rounded to before and after the scale,
    or (``-queries``) what the scale, the scaled queries and the scores are."""
    if store == "f32":
        return np.asarray(F.dot(q, k) * F.dtype.type(scale))
    held = rounded_scores(store).round
    if store.endswith(QUERIES):
        return F.cast(held(F.dot(_scaled_queries(F, q, scale, store), k)))
    return F.cast(held(F.cast(held(F.dot(q, k))) * F.dtype.type(scale)))


def rounded_scores(store: str) -> FloatFormat:
    """The format that scores are rounded to."""
    return FORMATS[store.removesuffix(QUERIES)]


def _scaled_queries(F: Kit, q: Values, scale: float, store: str) -> Values:
    held = rounded_scores(store).round
    return F.cast(held(F.cast(q) * F.dtype.type(held(np.asarray(scale)))))


def formula(
    F: Kit, q: Values, k: Values, v: Values, *, visible: Visible, scale: float, probabilities: str = "f32", scores: str = "f32"
) -> Values:
    """q [row, head, dim], k and v [cell, kv head, dim] -> [row, head, dim].

    ``probabilities``: bf16 or f16 where the normalised probabilities are rounded to it before they meet the values; ``scores``: where
    the scores are, before and after their scale, with ``-queries`` the scaled queries and the scores.
    """
    out = np.zeros(q.shape, F.dtype)
    seen, g = visible.matrix(), group(q, k)
    rows = seen.any(1)
    for h in range(q.shape[1]):
        s = np.where(seen[rows], scored(F, q[rows, h], k[:, h // g], scale, scores), F.dtype.type(-np.inf))
        e = np.exp(s - s.max(-1, keepdims=True))
        out[rows, h] = averaged(F, e, F.sum(e)[:, None], v[:, h // g], probabilities)
    return out


def averaged(F: Kit, e: Values, total: Values, v: Values, probabilities: str) -> Values:
    """Exponentials e [row, cell] over their sum ``total [row, 1]``, rounded where they are stored, times v [cell, dim]: [row, dim]."""
    if probabilities == "f32":
        return np.asarray(F.dot(e, v.T) / total)
    return F.dot(F.cast(FORMATS[probabilities].round(e / total)), v.T)


@dataclass(frozen=True)
class Head:
    """One query head's exact softmax: scores s, probabilities p [row, cell], output o [row, dim].

    ``more [row, 1]``: variance of the sum of exponentials by a sink's exponential and its addition, in units of u²/3.
    """

    q: Array
    k: Array
    v: Array
    s: Array
    shifted: Array
    p: Array
    o: Array
    more: Array


def vanishing(p: Array, v: Array) -> Array:
    """Σ p|v| over probabilities p [row, cell] so small that float32 may hold them coarsely or not at all, and the spacing of such results.

    v [cell, dim] -> [row, dim]. Nothing beside any other cell, and all there is where the values of the others are exact zeros.
    A row that sees no cell is exact.
    """
    small, seen = np.where(p < _VANISHING, p, 0.0), (p > 0).any(-1, keepdims=True)
    return np.asarray((small @ np.abs(v) if small.any() else 0.0) + _TINY * np.sqrt(p.shape[-1] + 2.0) * seen)


def heads_of(
    y: Array, q: Tensor, k: Tensor, v: Tensor, visible: Visible, scale: float, sinks: Array | None = None, scores: str = "f32"
) -> list[Head]:
    """Every query head's softmax; with ``sinks [head]`` each sum has one more term, the exponential of the head's own score."""
    seen, g = visible.matrix(), group(q.data, k.data)
    heads = []
    for h in range(q.data.shape[1]):
        qh, kh, vh = q.data[:, h], k.data[:, h // g], v.data[:, h // g]
        raw = scored(EXACT, qh, kh, scale, scores)
        masked = np.where(seen, raw, -np.inf)
        top = np.max(masked, -1, keepdims=True, initial=-np.inf if sinks is None else sinks[h])
        shifted = np.where(seen, raw - np.where(np.isfinite(top), top, 0), 0.0)
        e = np.where(seen, np.exp(shifted), 0.0)
        total, more = e.sum(-1, keepdims=True), np.zeros((len(e), 1))
        if sinks is not None:
            below = sinks[h] - top
            total = total + np.exp(below)
            more = np.square(np.exp(below) / total) * (np.square(below) + 4 * EXP_ULPS**2) + 1
        p = e / np.maximum(total, np.finfo(float).tiny)
        heads.append(Head(qh, kh, vh, np.where(seen, raw, 0.0), shifted, p, y[:, h], more))
    return heads


def _equal_cells(k: Tensor, v: Tensor) -> NDArray[np.intp] | None:
    """Group number of each cell where some cells are equal to the bit, else None: equal inputs make equal errors."""
    flat = np.ascontiguousarray(np.concatenate([k.data.reshape(len(k.data), -1), v.data.reshape(len(v.data), -1)], 1))
    _, index = np.unique(flat.view([("", flat.dtype)] * flat.shape[1]).ravel(), return_inverse=True)
    return index if len(np.unique(index)) < len(flat) else None


def _grouped_square(p: Array, groups: NDArray[np.intp] | None) -> Array:
    """p_j (Σ of p over j's group): p² where no cells are equal."""
    if groups is None:
        return p * p
    sums = np.zeros((int(groups.max()) + 1, len(p)))
    np.add.at(sums, groups, p.T)
    return np.asarray(p * sums[groups].T)


def noise(
    A: Arithmetic,
    y: Array,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    visible: Visible,
    scale: float,
    probabilities: str = "f32",
    scores: str = "f32",
) -> Variance:
    heads = heads_of(y, q, k, v, visible, scale, scores=scores)
    return noise_of(A, y, heads, q, k, v, visible=visible, scale=scale, probabilities=probabilities, scores=scores)


def noise_of(
    A: Arithmetic,
    y: Array,
    heads: list[Head],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    visible: Visible,
    scale: float,
    probabilities: str = "f32",
    scores: str = "f32",
) -> Variance:
    """The rule, given every head's softmax."""
    n = visible.matrix().sum(1)[:, None].astype(float)
    a_d, b_d = A.energy(q.data.shape[2], "attention")
    a_c, b_c = A.energy(k.data.shape[0], "attention")
    power_of_two = np.frexp(scale)[0] == 0.5
    noisy_q, noisy_k, noisy_v = (not is_zero(t.total) for t in (q, k, v))
    groups = _equal_cells(k, v) if noisy_k or noisy_v else None
    inherited, own, common = np.zeros(y.shape), np.empty(y.shape), np.empty(y.shape)
    g = group(q.data, k.data)
    for h, head in enumerate(heads):
        score_own = A.w3 * (a_d * head.s**2 + b_d * scale**2 * (head.q**2 @ (head.k**2).T) + (0 if power_of_two else head.s**2))
        score_own = score_own + A.w3 * (head.shifted**2 + 4 * EXP_ULPS**2)
        moved = _held_scores(A, head, scale, scores, noisy_q or noisy_k)
        if probabilities == "f32":
            own[:, h] = _through_softmax(head.p**2 * score_own, head)
        else:
            relative = score_own + A.w3 * (n / 3 + 4 + head.more) + _relative_move(head.p, moved)
            own[:, h] = _flip_variance(FORMATS[probabilities], head.p, relative) @ np.square(head.v)
        if scores != "f32":
            own[:, h] += _through_softmax(head.p**2 * moved, head)
        weighted = np.square(head.p) @ np.square(head.v)
        own[:, h] += A.w3 * (a_c * head.o**2 + b_c * weighted + head.o**2)
        common[:, h] = head.o**2 * A.w3 * (n / 3 + 2 + head.more) if probabilities == "f32" else 0.0
        own[:, h] += common[:, h] + np.square(vanishing(head.p, head.v))
        if noisy_q:
            inherited[:, h] += _through_softmax(head.p**2 * _query_scores(q.variance()[:, h], head, scale), head)
        if noisy_k:
            keys = scale**2 * (head.q**2 @ k.variance()[:, h // g].T)
            inherited[:, h] += _through_softmax(_grouped_square(head.p, groups) * keys, head)
        if noisy_v:
            inherited[:, h] += _grouped_square(head.p, groups) @ v.variance()[:, h // g]
        if probabilities != "f32" and (noisy_q or noisy_k):
            inherited[:, h] += np.where(head.p > 0, np.square(FORMATS[probabilities].ulp(head.p)), 0.0) @ np.square(head.v) / 6
    undecided = undecided_rows(visible)
    if undecided is not None:
        inherited[undecided] = UNKNOWN
    return Variance(inherited if noisy_q or noisy_k or noisy_v or undecided is not None else 0.0, own, common)


def _held_scores(A: Arithmetic, head: Head, scale: float, store: str, noisy: bool) -> Array | float:
    """Variance of the scores [row, cell] by their own rounding to ``store``, before and after the scale: the flips that float32 leaves
    open (of a scaled query none: float32 holds it); where queries or keys carry errors, two roundings of different values each."""
    if store == "f32":
        return 0.0
    held, first = rounded_scores(store), store.endswith(QUERIES)
    q = _scaled_queries(EXACT, head.q, scale, store) if first else head.q
    products = q @ head.k.T
    if noisy and first:
        return np.asarray((np.square(held.ulp(q)) @ np.square(head.k.T) + np.square(held.ulp(products))) / 6)
    if noisy:
        return np.asarray((np.square(scale * held.ulp(products)) + np.square(held.ulp(products * scale))) / 6)
    a, b = A.energy(head.q.shape[1], "attention")
    relative = A.w3 * (a + b * (q**2 @ (head.k**2).T) / np.maximum(np.square(products), 2.0**-200))
    if first:
        return _flip_variance(held, np.abs(products), relative)
    scaled = held.round(products) * scale
    return scale**2 * _flip_variance(held, np.abs(products), relative) + _flip_variance(held, np.abs(scaled), np.full_like(scaled, A.w3))


def _relative_move(p: Array, moved: Array | float) -> Array | float:
    """Variance of probabilities p [..., cell], relative to them, by scores of variance ``moved``."""
    return 0.0 if is_zero(moved) else np.asarray(moved * np.maximum(1 - 2 * p, 0) + (np.square(p) * moved).sum(-1, keepdims=True))


def _flip_variance(store: FloatFormat, p: Array, relative: Array) -> Array:
    """What rounding probabilities leaves of their own error, of variance ``relative`` (to p): nothing, but where one lies so near a
    midpoint that it may round to either side. Such a flip is one step of the store, twice the deviation allowed for it."""
    step = store.ulp(p)
    from_midpoint = np.abs(p / step - np.floor(p / step) - 0.5) * step
    near = (p > 0) & (from_midpoint <= _FLIP_REACH * p * np.sqrt(relative))
    return np.where(near, np.square(step / 2), 0.0)


def _query_scores(vq: Array, head: Head, scale: float) -> Array:
    """Score variance from the query, keys centred on ``k̄ = Σ p k``: a part common to all keys moves no probability."""
    mean = head.p @ head.k
    spread = vq @ (head.k**2).T - 2 * (vq * mean) @ head.k.T + (vq * mean**2).sum(-1, keepdims=True)
    return np.asarray(scale**2 * np.maximum(spread, 0))


def _through_softmax(w: Array, head: Head) -> Array:
    """Σ_j w_j (v_j - o)²."""
    return np.asarray(np.maximum((w @ head.v**2) - 2 * (w @ head.v) * head.o + w.sum(-1, keepdims=True) * head.o**2, 0))


def bound(
    A: Arithmetic,
    y: Array,
    where: Where,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    visible: Visible,
    scale: float,
    probabilities: str = "f32",
    scores: str = "f32",
) -> Array:
    """T_det of 5.7.9 at the suspects, for any order and either softmax (two-pass or online); a stored score or probability may be one
    step off."""
    return bound_of(where, heads_of(y, q, k, v, visible, scale, scores=scores), visible, scale, probabilities, scores)


def bound_of(
    where: Where, heads: list[Head], visible: Visible, scale: float, probabilities: str = "f32", scores: str = "f32"
) -> Array:
    """The bound, given every head's softmax."""
    u, seen = 2.0**-24, visible.matrix()
    out = np.empty(len(where[0]))
    for i, (row, h, d) in enumerate(zip(*where, strict=True)):
        head, see = heads[h], seen[row]
        n = int(see.sum())
        dim, passes = head.q.shape[1], np.log(max(n, 1)) + 1
        error = scale * gamma(dim + 1) * (np.abs(head.k[see]) @ np.abs(head.q[row])) + u * np.abs(head.s[row, see])
        error = error + 2 * u * np.abs(head.shifted[row, see]) + 6 * u
        if scores != "f32":
            error = error + 2 * rounded_scores(scores).ulp(head.s[row, see])
        with np.errstate(over="ignore"):
            e = np.expm1(error)
        reach = e.max(initial=0.0)
        if reach >= 1:
            out[i] = np.inf
            continue
        p, o = head.p[row, see], head.o[row, d]
        values = head.v[see, d]
        chain = gamma(n + 2 * passes + 2)
        by_scores = (p * e * np.abs(values - o)).sum() / (1 - reach)
        out[i] = by_scores + (chain * (p * np.abs(values)).sum() + (chain + 2 * u) * abs(o)) * (1 + reach)
        if probabilities != "f32":
            out[i] += FORMATS[probabilities].ulp(p) @ np.abs(values)
        out[i] += np.where(p < _VANISHING, p, 0.0) @ np.abs(values) + _TINY * (n + 2)
    return out


def rejudge(
    A: Arithmetic,
    order: str,
    y: Array,
    where: Where,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    visible: Visible,
    scale: float,
    probabilities: str = "f32",
    scores: str = "f32",
) -> Array:
    """Own variance at the suspects from the exact partial sums of the scores, the normaliser and the weighted sum."""
    heads = heads_of(y, q, k, v, visible, scale, scores=scores)
    moved = {h: _held_scores(A, heads[h], scale, scores, False) for h in set(where[1].tolist())}
    return rejudge_of(A, order, where, heads, visible, scale, probabilities, moved)


def rejudge_of(
    A: Arithmetic,
    order: str,
    where: Where,
    heads: list[Head],
    visible: Visible,
    scale: float,
    probabilities: str = "f32",
    moved: dict[int, Array | float] | None = None,
) -> Array:
    """The own variance, given every head's softmax; ``moved``: variance of each head's scores by their storage."""
    seen = visible.matrix()
    out = np.empty(len(where[0]))
    product = 0.0 if A.fma or summation.parse(order)[0] == "f64" else 1.0
    for i, (row, h, d) in enumerate(zip(*where, strict=True)):
        head, see = heads[h], seen[row]
        products = head.k[see] * head.q[row] * scale
        score = np.square(summation.partial_sums(products, order)).sum(-1) + product * np.square(products).sum(-1)
        score = score + head.s[row, see] ** 2 + head.shifted[row, see] ** 2 + 4 * EXP_ULPS**2
        p, o, values = head.p[row, see], head.o[row, d], head.v[see, d]
        stored = np.broadcast_to((moved or {}).get(h, 0.0), head.p.shape)[row, see]
        normaliser = np.square(summation.partial_sums(p[None], order)).sum() + 3 + head.more[row, 0]
        total = np.square(summation.partial_sums((p * values)[None], order)).sum() + product * np.square(p * values).sum()
        if probabilities == "f32":
            out[i] = A.w3 * (total + np.square(p * (values - o)) @ score + o**2 * normaliser)
        else:
            relative = A.w3 * (score + normaliser) + _relative_move(p, stored)
            out[i] = A.w3 * total + _flip_variance(FORMATS[probabilities], p, relative) @ np.square(values)
        out[i] += (p**2 * stored) @ np.square(values - o)
        out[i] += vanishing(p[None], values[:, None]).item() ** 2
    return out


attention = Operation("attention", "attention", axes_of_first, shape_of_first, formula, noise, bound, rejudge)
