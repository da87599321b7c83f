"""Margins of discrete choices: is a different argmax a tie within noise, or a flip (`specs/noise-rules.md` section 6)."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from oracle.floats import F32
from oracle.ops.argmax import first_argmax
from oracle.ops.base import is_zero
from oracle.readings import Stage
from oracle.tensor import Array, Tensor
from parity import limits
from parity.judge import Judge
from parity.report import Margin


def choices(judge: Judge, origin: Stage, choice: Stage, logits: Tensor, theirs: Array | None, picked: NDArray[np.int64]) -> list[Margin]:
    """One margin per row: the oracle's logits [row, vocab] (``origin`` made them), the candidate's (or None) and its choice [row].

    A walk without a bias (a confidence head alone) chooses row by row from the block's own logits: ``row3.pick`` speaks of row 3.
    """
    named = re.search(r"\.row(\d+)\.", choice.path)
    if named and len(picked) == 1 < len(logits.data):
        return [replace(_one(judge, origin, choice, logits, theirs, int(named[1]), int(picked[0])), row=0)]
    return [_one(judge, origin, choice, logits, theirs, row, int(picked[row])) for row in range(len(logits.data))]


def among(judge: Judge, origin: Stage, choice: Stage, scores: Tensor, theirs: Array | None, picked: NDArray[np.int64]) -> list[Margin]:
    """The same for a choice of one of a row's candidates: ``scores`` [row, candidate], ``picked`` and the margins' ids are token ids."""
    ids = choice.args[1].data.astype(np.int64)
    where = np.array([next(iter(np.flatnonzero(row == p)), -1) for row, p in zip(ids, picked, strict=True)], np.int64)
    made = choices(judge, origin, choice, scores, theirs, where)
    return [_as_ids(m, ids[m.row], int(p)) for m, p in zip(made, picked, strict=True)]


def _as_ids(m: Margin, ids: NDArray[np.int64], picked: int) -> Margin:
    """A margin over candidate numbers as one over token ids."""
    rule = m.rule and "it takes another candidate than its own scores put first"
    return replace(m, choice=int(ids[m.choice]), runner_up=int(ids[m.runner_up]), candidate=picked, rule=rule)


def _one(judge: Judge, origin: Stage, choice: Stage, logits: Tensor, theirs: Array | None, row: int, picked: int) -> Margin:
    y = logits.data[row]
    best = int(first_argmax(y))
    second = int(first_argmax(np.where(np.arange(len(y)) == best, -np.inf, y)))
    rival = picked if picked != best and 0 <= picked < len(y) else second
    noise = math.sqrt(gap_variance(origin, logits, row, best, rival))
    gap = float(y[best] - y[rival])
    store = judge.arithmetic.stored(origin.path)
    ulps = float(gap / (store if store.p < F32.p else F32).ulp(y[best]))
    mine = theirs[row] if theirs is not None else y
    verdict, rule = _verdict(judge, gap, noise, best, picked, theirs[row] if theirs is not None else None)
    candidate_gap = float(mine[best] - mine[rival])
    probability = 0.5 * math.erfc(gap / noise / math.sqrt(2)) if noise > 0 else float(gap <= 0) / 2
    return Margin(choice.step, choice.path, row, best, rival, gap, noise, probability, picked, candidate_gap, ulps, verdict, rule)


def _verdict(judge: Judge, gap: float, noise: float, best: int, picked: int, own: Array | None) -> tuple[str, str]:
    """The candidate's choice against its own logits first (lowest index on ties), then against the oracle's."""
    if own is not None:
        mine = int(first_argmax(own))
        if picked != mine:
            if 0 <= picked < len(own) and own[picked] == own[mine]:
                ties = np.flatnonzero(own == own[mine])
                name = "highest index" if picked == ties[-1] else "neither lowest nor highest index"
                return (
                    "tie",
                    f"its logits tie between {len(ties)} ids and it takes the {name} ({picked}); the lab's rule is the lowest ({mine})",
                )
            return "flip", f"it picks {picked}, but its own logits are largest at {mine}"
    if picked == best:
        return "agree", ""
    explained = gap <= limits.gaussian(judge.count) * noise
    return ("tie", "") if explained else ("flip", "")


def gap_variance(origin: Stage, logits: Tensor, row: int, a: int, b: int) -> float:
    """Variance of the difference of two logits: their own roundings add, a shared input enters by ``(W_a - W_b)²``."""
    at = (row, np.array([a, b]))

    def part(x: Array | float) -> Array:
        return np.asarray(np.broadcast_to(np.asarray(x, np.float64), logits.data.shape)[at])

    stores = float(np.square(part(logits.half)).sum() / 3)
    x = origin.args[0]
    if origin.op.name != "linear" or not isinstance(x, Tensor) or is_zero(x.total):
        return float(part(logits.var).sum()) + stores
    w = origin.args[1]
    difference = w.tile(a, a + 1)[0] - w.tile(b, b + 1)[0]
    shared = float(np.square(difference) @ x.variance()[row].reshape(-1))
    return shared + float(part(logits.acc).sum()) + stores
