"""How far healthy runs of a declared arithmetic move a row of logits: the ensemble of `parity.rolled`, for single choices.

Where both arms of a comparison round, a difference spreads by sqrt(2). The oracle's own float64 has the spread of float32 times 2^-29.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oracle import arithmetic as arithmetics
from oracle.arithmetic import Arithmetic
from oracle.models import Target
from oracle.readings import Sampled, Survey
from oracle.tensor import Array
from parity import limits

F64_OF_F32 = 2.0**-29


@dataclass(frozen=True, eq=False)
class RowNoise:
    """``deviations [member, row, vocab]`` of sampled runs from the oracle's ``logits [row, vocab]``; ``scale`` of the arithmetic.

    ``arms``: how many sides of the comparison round; 1 where the other one is the oracle.
    """

    logits: Array
    deviations: NDArray[np.float32]
    scale: float
    arms: int = 2

    def row(self, row: int) -> float:
        """Standard deviation of one row's elements."""
        return self.scale * float(np.sqrt(np.mean(np.square(self.deviations[:, row], dtype=np.float64))))

    def gap(self, row: int, a: int, b: int) -> float:
        """Standard deviation of the difference of two logits of a row."""
        d = self.deviations[:, row].astype(np.float64)
        return self.scale * float(np.sqrt(np.mean(np.square(d[:, a] - d[:, b]))))

    def tolerance(self, row: int) -> float:
        """How far an element of this row may differ between healthy arms, among all compared ones."""
        return limits.exponential(self.logits.size) * math.sqrt(self.arms) * self.row(row)

    def tie(self, row: int, chosen: int, other: int) -> tuple[float, float, bool]:
        """(gap of the oracle's logits, its noise between the arms, whether the gap is within it)."""
        gap = float(self.logits[row, chosen] - self.logits[row, other])
        noise = math.sqrt(self.arms) * max(self.gap(row, chosen, other), self.scale * _floor(self.deviations, row))
        return gap, noise, abs(gap) <= limits.gaussian(len(self.logits)) * noise


def _floor(deviations: NDArray[np.float32], row: int) -> float:
    """A few members sample one difference a few times: at least half of what the row's elements show."""
    return 0.5 * float(np.sqrt(np.mean(np.square(deviations[:, row], dtype=np.float64))))


def declared(candidate: str, text: str | None) -> tuple[Arithmetic, float]:
    """(arithmetic, scale) of a candidate: ``--arithmetic``, else what is known of it."""
    from parity import candidates

    if text is not None:
        return arithmetics.named(text), 1.0
    if candidate == "f64":
        return arithmetics.named("f32"), F64_OF_F32
    return candidates.declared(candidates.parse(candidate), None), 1.0


def row_noise(
    target: Target, tokens: Sequence[int], first: int, arithmetic: Arithmetic, scale: float, members: int, seed: int = 0
) -> RowNoise:
    """The noise of the rows from ``first`` on of the window over ``tokens``, from ``members`` sampled runs."""
    survey = Survey(arithmetic)
    exact = target.window(tokens, reading=survey).logits[first:]
    moved = np.empty((members, *exact.shape), np.float32)
    for member in range(members):
        moved[member] = target.window(tokens, reading=Sampled(survey.own, seed + member)).logits[first:] - exact
    return RowNoise(exact, moved, scale)
