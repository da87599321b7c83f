"""The sensitivity ledger: what a case could have seen. A green run proves nothing about a convention that its fixture cannot tell.

For each convention the mistake is made in the oracle alone, at every stage where it can be, from the oracle's own inputs (as local mode
would judge it): the factor is the largest |difference| / tolerance. At least 1.5 is *certified* (DESIGN section 6).
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from oracle import faults
from oracle.arithmetic import Arithmetic
from oracle.faults import FaultError
from oracle.kit import EXACT
from oracle.readings import Fault, Noise, Reading, Stage, consumed, values
from oracle.tensor import Array, Tensor
from parity import limits
from parity.case import Case
from parity.models import run

CERTIFIED, BEYOND_DOUBT = 1.5, 100.0

# Convention -> the mistake that stands for it, as a fault of the catalogue.
KNOBS = {
    "window-1": "attention.window:delta=-1",
    "window+1": "attention.window:delta=1",
    "causality": "attention.causal",
    "attention scale": "attention.scale:factor=1.001",
    "eps": "norm.eps:factor=10",
    "norm weight (w or 1+w)": "norm.offset",
    "rope theta": "rope.theta:factor=1.01",
    "rope style": "rope.style",
    "rope position": "rope.position:stage=*_rope,offset=1",
}


@dataclass
class Sensitivity:
    """One convention: ``factor``, the largest |difference| / tolerance of the stages tried, and where: ``row`` shows it first."""

    knob: str
    factor: float
    step: int
    stage: str
    row: int

    @property
    def certified(self) -> bool:
        return self.factor >= CERTIFIED


def ledger(case: Case, arithmetic: Arithmetic, count: int) -> list[Sensitivity]:
    """Every convention of `KNOBS` on the case; one that no stage has (a window, where none slides) is left out."""
    made = _Ledger(arithmetic, count)
    run(case, Noise(arithmetic), made)
    return list(made.found.values())


class _Ledger:
    """The tape: hands on the oracle's exact values and tries each mistake at each stage it can be made at."""

    def __init__(self, arithmetic: Arithmetic, count: int) -> None:
        self.arithmetic, self.count = arithmetic, count
        self.faults = {knob: faults.parse(spec) for knob, spec in KNOBS.items()}
        self.found: dict[str, Sensitivity] = {}

    def __call__(self, stage: Stage, y: Tensor, reading: Reading) -> Tensor:
        if stage.op.name in ("attention", "rms_norm", "rope"):
            tolerance = self._tolerance(y)
            for knob, fault in self.faults.items():
                if fnmatchcase(stage.path, fault.stage) and not self._settled(knob):
                    self._try(knob, fault, stage, y, tolerance)
        return Tensor(y.data, y.axes)

    def _settled(self, knob: str) -> bool:
        """Seen so clearly that later stages need not be tried."""
        return knob in self.found and self.found[knob].factor >= BEYOND_DOUBT

    def _tolerance(self, y: Tensor) -> Array:
        var, acc, half = (np.broadcast_to(np.asarray(p, np.float64), y.data.shape) for p in (y.var, y.acc, y.half))
        lam, lame = limits.gaussian(self.count), limits.exponential(self.count)
        return np.asarray(half + np.sqrt(lam**2 * np.maximum(var - acc, 0) + lame**2 * acc))

    def _try(self, knob: str, fault: Fault, stage: Stage, y: Tensor, tolerance: Array) -> None:
        try:
            edited = fault.edit(stage)
        except (FaultError, ValueError, KeyError, TypeError, AttributeError):
            return
        if knob.startswith("window") and (stage.params["visible"].window is None or stage.params["visible"].rule in ("none", "SINK_RING")):
            return
        edited = consumed(self.arithmetic, edited)
        wrong = stage.op.formula(EXACT, *values(edited.args), **edited.params)
        difference = np.abs(wrong - y.data)
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = np.where(difference == 0, 0.0, np.where(tolerance > 0, difference / tolerance, np.inf)).reshape(len(y.data), -1)
        rows = factor.max(1, initial=0.0)
        worst = float(rows.max(initial=0.0))
        if knob not in self.found or worst > self.found[knob].factor:
            seen = np.flatnonzero(rows >= CERTIFIED)
            self.found[knob] = Sensitivity(knob, worst, stage.step, stage.path, int(seen[0]) if len(seen) else -1)
