"""Margins of a selection: is another set of experts, or of candidate tokens, a tie or a flip (`specs/noise-rules.md` 5.10 and 6).

The last selected is compared with the first that is not, rank k against k + 1. Order within the set decides nothing.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from oracle.floats import F32
from oracle.kit import EXACT
from oracle.ops.select import biased, largest
from oracle.readings import Reading, Stage
from oracle.tensor import Array, Tensor
from parity import limits
from parity.judge import Judge
from parity.report import Margin

# A candidate adds the selection bias in float32: its own scores decide up to that rounding.
OWN_ULPS = 2.0


class OwnScores:
    """The oracle's own router values: each recomputed from its own predecessor, where the tape goes on with the candidate's."""

    def __init__(self) -> None:
        self.latest: Tensor | None = None

    def see(self, stage: Stage, y: Tensor, reading: Reading) -> None:
        """A stage [row, expert] with the value the reading gave it from the candidate's inputs."""
        if y.axes[-1] != "expert" or not stage.args:
            return
        first = stage.args[0]
        follows = isinstance(first, Tensor) and first.axes == y.axes and self.latest is not None
        self.latest = reading.apply(replace(stage, args=(self.latest, *stage.args[1:]))) if follows else y


def memberships(judge: Judge, choice: Stage, own: Tensor, picked: NDArray[np.int64]) -> list[Margin]:
    """One margin per row: ``own`` the oracle's scores [row, expert] (or [row, vocab]), ``picked`` the candidate's choice [row, rank].

    The stage's first argument holds the scores that the candidate recorded, exact, or the oracle's with their noise, where it recorded
    none: then it has no scores of its own to be held against.
    Without a router input of the candidate's the noise is an upper bound: what two scores share of it is counted twice.
    """
    bias = choice.args[1] if len(choice.args) > 1 else None
    keys, theirs = biased(EXACT, own.data, bias), biased(EXACT, choice.args[0].data, bias)
    variance = own.variance() + (0.0 if bias is None else judge.arithmetic.w3 * np.square(keys))
    rows = range(len(keys))
    if picked.shape[1] == keys.shape[1]:
        rows = range(0)
    return [_one(judge, choice, keys[r], theirs[r], variance[r], r, picked[r]) for r in rows]


def broken(picked: NDArray[np.int64], scores: Tensor) -> str:
    """What is wrong with a selection [row, rank] among ``scores [row, expert]`` or ``[row, vocab]`` as such, or nothing: one line."""
    count, thing = scores.data.shape[-1], thing_of(scores)
    for row, chosen in enumerate(picked):
        outside = chosen[(chosen < 0) | (chosen >= count)]
        if len(outside):
            return f"row {row} selects {thing} {outside[0]} of {count}"
        if len(np.unique(chosen)) < len(chosen):
            return f"row {row} selects the same {thing} twice: {chosen.tolist()}"
    return ""


def thing_of(scores: Tensor) -> str:
    """What a report calls one of the things that are scored."""
    return "token" if scores.axes[-1] == "vocab" else scores.axes[-1]


def _one(judge: Judge, choice: Stage, keys: Array, theirs: Array, variance: Array, row: int, picked: NDArray[np.int64]) -> Margin:
    k = len(picked)
    order = largest(keys, k + 1)
    missing = [int(e) for e in order[:k] if e not in picked]
    extra = sorted((int(e) for e in picked if e not in order[:k]), key=lambda e: -keys[e])
    pairs = list(zip(missing, extra, strict=True)) or [(int(order[k - 1]), int(order[k]))]
    sigma = [math.sqrt(variance[a] + variance[b]) for a, b in pairs]
    worst = int(np.argmax([(keys[a] - keys[b]) / s if s else math.inf for (a, b), s in zip(pairs, sigma, strict=True)]))
    (best, rival), noise = pairs[worst], sigma[worst]
    gap = float(keys[best] - keys[rival])
    probability = 0.5 * math.erfc(gap / noise / math.sqrt(2)) if noise > 0 else float(gap <= 0) / 2
    verdict, rule = _verdict(judge, gap, noise, bool(missing), theirs, choice.args[0].exact, picked, thing_of(choice.args[0]))
    ulps, chosen = float(gap / F32.ulp(keys[best])), rival if missing else best
    candidate_gap = float(theirs[best] - theirs[rival])
    return Margin(choice.step, choice.path, row, best, rival, gap, noise, probability, chosen, candidate_gap, ulps, verdict, rule)


def _verdict(
    judge: Judge, gap: float, noise: float, differs: bool, own: Array, recorded: bool, picked: NDArray[np.int64], thing: str
) -> tuple[str, str]:
    """The candidate's set against its own scores first, then against the oracle's."""
    if not recorded:
        return _within_noise(judge, gap, noise, differs), ""
    left = np.ones(len(own), bool)
    left[picked] = False
    weakest, strongest = int(picked[own[picked].argmin()]), int(np.flatnonzero(left)[own[left].argmax()])
    if own[strongest] - own[weakest] > OWN_ULPS * F32.ulp(own[strongest]):
        return "flip", f"it selects {thing} {weakest}, but by its own scores {strongest} comes before"
    return _within_noise(judge, gap, noise, differs), ""


def _within_noise(judge: Judge, gap: float, noise: float, differs: bool) -> str:
    if not differs:
        return "agree"
    return "tie" if gap <= limits.gaussian(judge.count) * noise else "flip"
