"""What a case or step fault is, and how it is declared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from oracle.faults import Options
from oracle.readings import Fault, Stage
from oracle.tensor import Tensor
from parity.case import Case
from parity.models import CaseModel, Run


@dataclass(frozen=True)
class StepFault:
    """``case``: the case as it is really run. ``after``: what becomes of context or state after a step.

    ``call``: an edit of a call that goes with it. ``tape``: sees every stage, for a mistake that keeps something of them.
    """

    kind: str
    case: Callable[[Case, CaseModel], Case] = lambda case, model: case
    after: Callable[[Run, int], None] = lambda run, index: None
    call: Fault | None = None
    tape: Callable[[Stage, Tensor], None] = lambda stage, y: None


@dataclass(frozen=True)
class StepKind:
    """One kind of case or step fault; the fields are those of `oracle.faults.Kind`. ``role``: drafter or target."""

    name: str
    role: str
    stage: str
    defaults: dict[str, str]
    make: Callable[[Options], StepFault]
    about: str
    reports: tuple[str, ...]
    dial: str = ""
    variants: tuple[str, ...] = ("",)
    knobs: dict[str, str] = field(default_factory=dict)
    alike: tuple[str, ...] = ()
