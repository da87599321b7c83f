"""What a healthy run could have chosen as well: the next in line where its score is within reach, the other side of a rounding's midpoint.

For choices and rounded values that were not recorded. Behind another choice than the oracle's no spread of healthy runs means anything,
unless some of them made that choice too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from oracle import policies
from oracle.ops.index_scores import complete
from oracle.ops.select import largest
from oracle.readings import Stage
from oracle.tensor import Array, Tensor

Other = Callable[[Stage, Array, Array, Array], Array]


def other_choice(stage: Stage, scores: Array, mine: Array, reach: Array) -> Array:
    """``mine`` with the next in line in its place, in rows where their scores [row, n] differ by less than ``reach`` [row]."""
    return OTHERS[stage.op.name](stage, scores, mine.copy(), reach)


def _second(stage: Stage, scores: Array, mine: Array, reach: Array) -> Array:
    """Of argmax and choose: the runner-up, by its number or its id."""
    if scores.shape[-1] < 2:
        return mine
    first, second = largest(scores, 2).T
    rows = np.arange(len(scores))
    near = scores[rows, first] - scores[rows, second] < reach
    ids = stage.args[1].data[rows, second] if stage.op.name == "choose" else second
    return np.where(near, ids, mine)


def _ranks(stage: Stage, scores: Array, mine: Array, reach: Array) -> Array:
    """Of select: neighbours in rank change places, from the last one down, each with one other at most."""
    k = mine.shape[1]
    order = largest(scores, min(k + 1, scores.shape[-1]))
    for r, row in enumerate(order):
        i = len(row) - 1
        while i > 0:
            near = scores[r, row[i - 1]] - scores[r, row[i]] < reach[r]
            if near:
                row[i - 1], row[i] = row[i], row[i - 1]
            i -= 2 if near else 1
        mine[r] = row[:k]
    return mine


def _cells(stage: Stage, scores: Array, mine: Array, reach: Array) -> Array:
    """Of select_cells: the last block taken gives way to the first that was not."""
    ratio, budget = int(stage.params["ratio"]), int(stage.params["budget"])
    open_blocks, keep = complete(stage.args[1], scores.shape[1], ratio), budget // ratio
    for r in np.flatnonzero(open_blocks.sum(1) > keep):
        order = largest(np.where(open_blocks[r], scores[r], -np.inf), keep + 1)
        last, first = order[keep - 1], order[keep]
        if scores[r, last] - scores[r, first] < reach[r]:
            cells = mine[r, : scores.shape[1] * ratio].reshape(-1, ratio)
            cells[last], cells[first] = 0, 1
    return mine


OTHERS: dict[str, Other] = {"argmax": _second, "choose": _second, "select": _ranks, "select_cells": _cells}


def mirrored(policy: str, x: Tensor, exact: Array, times: float) -> Tensor:
    """A run's values [row, …], those that lie near a midpoint of the policy's grid as far on its other side.

    Near: within ``times`` the rms deviation of the row from ``exact``, and an eighth of a step.
    """
    flat = x.data.reshape(len(x.data), -1)
    deviation = np.sqrt(np.square(flat - exact.reshape(flat.shape)).mean(-1, keepdims=True)) * times
    moved = _over(flat, policies.step(policy, flat), deviation)
    if (size := policies.block(policy)) == 32:
        # The scale of these blocks, a 127th of their largest value, is rounded to float16.
        blocks = moved.reshape(len(moved), -1, size)
        at = np.abs(blocks).argmax(-1)[..., None]
        scale = np.take_along_axis(blocks, at, -1)[..., 0] / 127
        over = _over(scale, policies.step("f16", scale), deviation / 127)
        np.put_along_axis(blocks, at, 127 * over[..., None], -1)
    return replace(x, data=moved.reshape(x.data.shape))


def _over(x: Array, step: Array, reach: Array) -> Array:
    """Values no further than ``reach``, and an eighth of a step, from the middle between two steps: as far on its other side."""
    with np.errstate(divide="ignore", invalid="ignore"):
        past = (np.mod(x / step, 1.0) - 0.5) * step
    return np.asarray(np.where((step > 0) & (np.abs(past) < np.minimum(reach, step / 8)), x - 2 * past, x))
