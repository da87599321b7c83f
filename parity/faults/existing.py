"""Which kinds can be planted in a family: asked of a small case of it, not listed by hand."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from oracle.readings import Exact, Reading, Stage
from oracle.tensor import Tensor
from parity.case import Case
from parity.faults import KINDS, FaultError, parse, type_of
from parity.models import open_case_model, run
from parity.scoring_calls import calls_of, places
from parity.sight import wrong_values


def kinds_of(family: str, role: str | None = None) -> set[str]:
    """Names of the kinds that can be planted in some case of the score of this family and role (default: all its roles)."""
    from parity.scoring_cases import CASES, score_case

    found: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="parity-") as root:
        for name, (its, its_role, *_) in CASES.items():
            if its == family and role in (None, its_role):
                found |= kinds_in(score_case(name, 0, Path(root)), Path(root))
    return found


def kinds_in(case: Case, scratch: Path) -> set[str]:
    """Names of the kinds that can be planted in the case: some variant, at some place, changes what the oracle makes."""
    return _calls(case) | {k.name for k in KINDS.values() if type_of(k) != "call" and _can(case, k.name, scratch)}


def _calls(case: Case) -> set[str]:
    found: set[str] = set()
    plans = places(calls_of(case), 0)

    def tape(stage: Stage, y: Tensor, reading: Reading) -> Tensor:
        for plan in plans:
            for path, (fault, _) in plan.faults.items():
                if path == stage.path and plan.kind not in found:
                    wrong = wrong_values(Exact(), stage, fault, y)
                    if wrong is not None and not np.array_equal(wrong, y.data):
                        found.add(plan.kind)
                if fault.see is not None:
                    fault.see(stage, y)
        return y

    run(case, Exact(), tape)
    return found


def _can(case: Case, name: str, scratch: Path) -> bool:
    """Whether any variant of a step, artifact or dump kind can be made; a dump fault always can where its stage is."""
    from fnmatch import fnmatchcase

    from parity.faults.artifacts import ArtifactFault
    from parity.faults.base import StepFault, StepKind

    kind = KINDS[name]
    if isinstance(kind, StepKind) and kind.role != case.role:
        return False
    for number, text in enumerate(kind.variants):
        fault = parse(f"{name}:{text}")
        try:
            if isinstance(fault, StepFault):
                fault.case(case, open_case_model(case))
            elif isinstance(fault, ArtifactFault):
                fault.plant(case.model, scratch / f"{name}-{number}")
            elif not any(fnmatchcase(path, kind.stage) for _, path, *_ in calls_of(case)):
                continue
        except FaultError:
            continue
        return True
    return False
