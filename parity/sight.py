"""What a comparison could see: a mistake's largest |difference| / tolerance at a stage, on the oracle alone (DESIGN section 6).

One measure for the sensitivity ledger of a case and for the information limit of a planted fault.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from oracle.arithmetic import Arithmetic
from oracle.faults import FaultError
from oracle.floats import F32
from oracle.readings import Fault, Noise, Reading, Stage
from oracle.tensor import Array, Tensor
from parity import limits
from parity.block_choices import block_choices
from parity.judge import Judge
from parity.memberships import memberships
from parity.report import Margin

CERTIFIED = 1.5


@dataclass
class Sight:
    """Tolerances as local mode has them: ``arithmetic`` declared, ``count`` elements compared in all.

    A tape shows it every stage with its error (`see`), so that a choice is measured by the scores it was made on.
    """

    arithmetic: Arithmetic
    count: int
    scores: Tensor | None = None
    blocks: Tensor | None = None
    judge: Judge = field(init=False)

    def __post_init__(self) -> None:
        self.judge = Judge(self.arithmetic, self.count)

    def see(self, stage: Stage, y: Tensor) -> None:
        """Remember what later choices are made on."""
        if stage.op.kind == "choice":
            return
        if y.axes[-1] in ("expert", "vocab", "candidate"):
            self.scores = y
        elif y.axes[-1] == "block":
            self.blocks = y

    def tolerance(self, stage: Stage, y: Tensor) -> Array:
        """What a healthy element may differ by, like ``y``; nothing for a stage that must agree to the bit."""
        var, acc, half = (np.broadcast_to(np.asarray(p, np.float64), y.data.shape) for p in (y.var, y.acc, y.half))
        lam, lame = limits.gaussian(self.count), limits.exponential(self.count)
        store = self.arithmetic.stored(stage.path)
        # A moved value is equal to the bit, but for the store's own rounding of it.
        moved = np.where(half > 0, 0.0, 0.5 * store.ulp(y.data)) if stage.op.kind == "structural" and store.p < F32.p else 0.0
        return np.asarray(half + moved + np.sqrt(lam**2 * np.maximum(var - acc, 0) + lame**2 * acc))

    def factors(self, stage: Stage, y: Tensor, wrong: Array) -> Array:
        """|difference| / tolerance of every element of ``wrong``, infinite where the values are no numbers or another shape."""
        if wrong.shape != y.data.shape:
            return np.full(y.data.shape, np.inf)
        if stage.op.kind == "choice":
            return self._choices(stage, y, wrong)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            difference, tolerance = np.abs(wrong - y.data), self.tolerance(stage, y)
            ratio = np.where(difference == 0, 0.0, np.where(tolerance > 0, difference / tolerance, np.inf))
        return np.where(np.isfinite(difference), ratio, np.inf)

    def _choices(self, stage: Stage, y: Tensor, wrong: Array) -> Array:
        """The gap that another choice passes over, in units of what noise could turn."""
        out = np.zeros(y.data.shape)
        different = (wrong != y.data).reshape(len(y.data), -1).any(1)
        picks = stage.op.name in ("argmax", "choose")
        gaps = self._picks(y, wrong) if picks else {m.row: m for m in self._margins(stage, y, wrong)}
        for row in np.flatnonzero(different):
            m = gaps.get(int(row))
            if m is not None and m.candidate == m.choice and stage.op.name == "select":
                continue
            reach = 0.0 if m is None else limits.gaussian(self.count) * m.noise
            out[row] = np.inf if reach == 0 or m is None else m.gap / reach
        return out

    def _margins(self, stage: Stage, y: Tensor, wrong: Array) -> list[Margin]:
        if stage.op.name == "select" and self.scores is not None:
            return memberships(self.judge, stage, self.scores, wrong.astype(np.int64))
        if stage.op.name == "select_cells" and self.blocks is not None:
            return block_choices(self.judge, stage, self.blocks, y.data, wrong)
        return []

    def _picks(self, y: Tensor, wrong: Array) -> dict[int, Margin]:
        """Gap and noise of every row's pick against another, from the logits before it (a bound: their noises are counted apart)."""
        found: dict[int, Margin] = {}
        if self.scores is None or len(self.scores.data) != len(y.data):
            return found
        logits, variance = self.scores.data, self.scores.variance()
        for row in range(len(y.data)):
            best, other = int(logits[row].argmax()), np.argsort(-logits[row], kind="stable")[1]
            noise = float(np.sqrt(variance[row, best] + variance[row, other]))
            gap = float(logits[row, best] - logits[row, other])
            found[row] = Margin(0, "", row, best, int(other), gap, noise, 0.0, int(wrong[row]), 0.0, 0.0, "")
        return found


def wrong_values(reading: Reading, stage: Stage, fault: Fault, good: Tensor) -> Array | None:
    """What the stage would hold with the mistake made, in the reading; None where it cannot be made on this call."""
    if not fault.acts_on(stage):
        return None
    try:
        with np.errstate(all="ignore"):
            return np.asarray(fault.planted(reading, stage, good).data, np.float64)
    except FaultError:
        return None


__all__ = ["CERTIFIED", "Noise", "Sight", "wrong_values"]
