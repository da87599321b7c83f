"""The sensitivity ledger: what a case could have seen. A green run proves nothing about a convention that its fixture cannot tell.

For each convention the mistake that breaks it (a knob of the fault catalogue) is made in the oracle alone, at every stage where it can be,
from the oracle's own inputs (as local mode would judge it): the factor is the largest |difference| / tolerance. At least 1.5 is
*certified* (DESIGN section 6).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oracle import faults as calls
from oracle.arithmetic import Arithmetic
from oracle.faults import FaultError
from oracle.readings import Exact, Fault, Noise, Reading, Stage
from oracle.tensor import Tensor
from parity.case import Case
from parity.faults import KINDS as FAULTS
from parity.faults import parse
from parity.faults.base import StepFault, StepKind
from parity.faults.steps import walk
from parity.models import declared_stages, open_case_model, run
from parity.sight import CERTIFIED, Sight, wrong_values

BEYOND_DOUBT = 100.0
# The oracle walks the steps once more for a mistake in them: only where that is cheap.
MAX_WALKED = 1 << 24

# Convention -> the mistake that breaks it, as a fault of the catalogue; at every stage it can be made at.
CALL_KNOBS = {c: f"{k.name}:{','.join(filter(None, (text, 'stage=*')))}" for k in calls.KINDS.values() for c, text in k.knobs.items()}
STEP_KNOBS = {c: f"{k.name}:{text}" for k in FAULTS.values() if isinstance(k, StepKind) for c, text in k.knobs.items()}
KNOBS = CALL_KNOBS | STEP_KNOBS


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
    """Every convention of `KNOBS` on the case; one that the case has nothing of (a window, where none slides) is left out."""
    made = _Ledger(arithmetic, count)
    run(case, Noise(arithmetic), made)
    found = made.found | _walked(case)
    return [found[knob] for knob in KNOBS if knob in found]


class _Ledger:
    """The tape: hands on the oracle's exact values and tries each mistake at each stage it can be made at."""

    def __init__(self, arithmetic: Arithmetic, count: int) -> None:
        self.sight = Sight(arithmetic, count)
        self.faults = {knob: calls.parse(spec) for knob, spec in CALL_KNOBS.items()}
        self.found: dict[str, Sensitivity] = {}

    def __call__(self, stage: Stage, y: Tensor, reading: Reading) -> Tensor:
        exact = Tensor(y.data, y.axes)
        for knob, fault in self.faults.items():
            if not self._settled(knob):
                self._try(knob, fault, stage, y, exact)
            if fault.see is not None:
                fault.see(stage, exact)
        self.sight.see(stage, y)
        return exact

    def _settled(self, knob: str) -> bool:
        """Seen so clearly that later stages need not be tried."""
        return knob in self.found and self.found[knob].factor >= BEYOND_DOUBT

    def _try(self, knob: str, fault: Fault, stage: Stage, y: Tensor, exact: Tensor) -> None:
        wrong = wrong_values(Exact(), stage, fault, exact)
        if wrong is None:
            return
        rows = self.sight.factors(stage, y, wrong).reshape(len(y.data), -1).max(1, initial=0.0)
        worst = float(rows.max(initial=0.0))
        if knob not in self.found or worst > self.found[knob].factor:
            seen = np.flatnonzero(rows >= CERTIFIED)
            self.found[knob] = Sensitivity(knob, worst, stage.step, stage.path, int(seen[0]) if len(seen) else -1)


class _First(Exception):
    """The first difference was found: the rest of the walk says no more."""


def _walked(case: Case) -> dict[str, Sensitivity]:
    """Mistakes between the calls. What is fed and what is kept agrees to the bit, so any difference is certain."""
    kinds = {c: s for c, s in STEP_KNOBS.items() if getattr(FAULTS[s.partition(":")[0]], "role", "") == case.role}
    if not kinds or sum(int(np.prod(shape)) for _, _, shape in declared_stages(case)) > MAX_WALKED:
        return {}
    healthy: dict[tuple[int, str], Tensor] = {}

    def keep(stage: Stage, y: Tensor, reading: Reading) -> Tensor:
        healthy[stage.key] = y
        return y

    run(case, Exact(), keep)
    found: dict[str, Sensitivity] = {}
    for knob, spec in kinds.items():
        fault = parse(spec)
        assert isinstance(fault, StepFault)
        try:
            found[knob] = _difference(case, knob, fault, healthy)
        except FaultError:
            continue
    return found


def _difference(case: Case, knob: str, fault: StepFault, healthy: dict[tuple[int, str], Tensor]) -> Sensitivity:
    """The first stage that differs; a factor of 0 where none does."""
    first: list[Sensitivity] = []

    def tape(stage: Stage, y: Tensor, reading: Reading) -> Tensor:
        mine = healthy[stage.key].data
        same = mine.shape == y.data.shape and np.array_equal(mine, y.data)
        if not same:
            row = int(np.flatnonzero((mine != y.data).reshape(len(mine), -1).any(1))[0]) if mine.shape == y.data.shape else 0
            first.append(Sensitivity(knob, float("inf"), stage.step, stage.path, row))
            raise _First
        return y

    reading: Reading = Exact()
    if fault.call is not None:
        from oracle.readings import Faulty

        reading = Faulty(reading, fault.call)
    try:
        walk(fault, case, open_case_model(case), reading, tape)
    except _First:
        return first[0]
    return Sensitivity(knob, 0.0, 0, "", -1)
