"""Attention solved for what it saw: the scores of one row and head, and what the output would be with other cells."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oracle.readings import Stage
from oracle.tensor import Array
from parity.explain.base import Suspect

MAX_PAIRS = 48


@dataclass(frozen=True, eq=False)
class One:
    """One row and query head: weights ``e^(s - top)`` of every cell and of the sink, the values of its kv head, what it may see, the
    outputs."""

    row: int
    head: int
    weights: Array
    values: Array
    seen: NDArray[np.bool_]
    oracle: Array
    candidate: Array
    sink: float = 0.0

    def output(self, seen: NDArray[np.bool_]) -> Array:
        w = np.where(seen, self.weights, 0.0)
        total = w.sum() + self.sink
        return np.asarray(w @ self.values / total if total > 0 else np.zeros(self.values.shape[1]))

    def cost(self, seen: NDArray[np.bool_]) -> float:
        return float(np.square(self.output(seen) - self.candidate).sum())


def sinks_of(stage: Stage) -> Array:
    """A score per query head that joins the sum without a value, float64 [head]; -inf where there is none."""
    return stage.args[3].array() if len(stage.args) > 3 else np.full(stage.args[0].data.shape[1], -np.inf)


def pairs(s: Suspect, rows: NDArray[np.intp] | None = None) -> Iterator[One]:
    """Diverging rows and heads, spread evenly where there are many."""
    q, k, values = (a.data for a in s.stage.args[:3])
    sinks = sinks_of(s.stage)
    seen, scale = s.stage.params["visible"].matrix(), s.stage.params["scale"]
    group = q.shape[1] // k.shape[1]
    heads = s.heads if s.heads is not None else np.arange(q.shape[1])
    chosen = [(int(r), int(h)) for r in (s.rows if rows is None else rows) for h in heads]
    for row, head in chosen[:: max(len(chosen) // MAX_PAIRS, 1)]:
        kv = head // group
        scores = k[:, kv] @ q[row, head] * scale
        top = scores[seen[row]].max(initial=sinks[head])
        with np.errstate(over="ignore"):
            top = top if np.isfinite(top) else scores.max(initial=0.0)
            weights = np.exp(np.clip(scores - top, -700, 300))
        sink = float(np.exp(sinks[head] - top))
        yield One(row, head, weights, values[:, kv], seen[row], s.y.data[row, head], s.c[row, head], sink)


def suffix_start(one: One, low: int, high: int) -> int | None:
    """The first cell seen, if the row saw a suffix of the context cells ``low … high`` and its other cells as declared; else None.

    The output for every start is a ratio of sums from the end, so all are tried at once.
    """
    fixed = one.seen.copy()
    fixed[low:high] = False
    w = np.where(fixed, one.weights, 0.0)
    rest = w.sum() + one.sink
    weights = one.weights[low:high]
    weighted = (weights[:, None] * one.values[low:high])[::-1].cumsum(0)[::-1] + w @ one.values
    total = weights[::-1].cumsum()[::-1] + rest
    with np.errstate(divide="ignore", invalid="ignore"):
        cost = np.square(weighted / total[:, None] - one.candidate).sum(1)
        none = w @ one.values / rest if rest > 0 else np.zeros(one.values.shape[1])
    cost = np.append(cost, np.square(none - one.candidate).sum())
    if not np.isfinite(cost).any():
        return None
    best = int(np.nanargmin(cost))
    before = float(np.square(one.oracle - one.candidate).sum())
    return low + best if cost[best] <= 0.05 * before else None


def flipped_cells(ones: list[One], count: int) -> list[int]:
    """Up to ``count`` cells whose visibility, one after the other, brings the outputs of all rows and heads nearest when it is turned.

    Without cell j the output is ``(o - p_j v_j) / (1 - p_j)``, with an unseen one ``(o + e_j v_j) / (1 + e_j)``.
    """
    if not ones:
        return []
    states = [o.seen.copy() for o in ones]
    flips: list[int] = []
    now = sum(o.cost(seen) for o, seen in zip(ones, states, strict=True))
    for _ in range(count):
        cost = sum(_costs(o, seen) for o, seen in zip(ones, states, strict=True))
        cost = np.where(np.isfinite(cost), cost, np.inf)
        cell = int(np.argmin(cost))
        if cell in flips or cost[cell] >= 0.9 * now:
            break
        flips.append(cell)
        now = float(cost[cell])
        for seen in states:
            seen[cell] = not seen[cell]
    return flips


def _costs(one: One, seen: NDArray[np.bool_]) -> Array:
    """Squared distance from the candidate with each cell's visibility turned, float64 [cell]."""
    w = np.where(seen, one.weights, 0.0)
    total = w.sum() + one.sink
    o = w @ one.values / total if total > 0 else np.zeros(one.values.shape[1])
    sign = np.where(seen, -1.0, 1.0)
    share = one.weights / total if total > 0 else np.full(len(w), np.inf)
    with np.errstate(all="ignore"):
        changed = (o + (sign * share)[:, None] * one.values) / (1 + sign * share)[:, None]
        return np.asarray(np.square(changed - one.candidate).sum(1))
