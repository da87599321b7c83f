"""Running a candidate with a fault of any type planted: the dump says that it is of the healthy case."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from oracle.arithmetic import Arithmetic
from oracle.readings import Fault, Faulty, Reading
from parity.case import Case
from parity.errors import UsageError
from parity.faults import AnyFault, ArtifactFault, FaultError, parse
from parity.faults.base import StepFault
from parity.faults.steps import walk
from parity.memory import MemoryDump
from parity.models import Run, open_case_model
from parity.recording import Announcing, Recorder, Sink, record


def record_planted(case: Case, reading: Reading, spec: str, sink: Sink, arithmetic: Arithmetic | None, scratch: Path) -> None:
    """All steps of the case in the reading with the mistake made, every stage put in ``sink``.

    ``scratch``: where the artifact of an artifact fault is written (and left). `FaultError` where the mistake cannot be made in this case;
    `UsageError` where no call matches.
    """
    fault = parse(spec)
    model = open_case_model(case)
    if isinstance(fault, Fault):
        faulty = Faulty(reading, fault)
        record(case, faulty, sink, arithmetic)
        if not faulty.hits:
            raise UsageError(f"fault {fault.kind}: no stage of this case that matches {fault.stage!r} can hold it (see parity stages)")
    elif isinstance(fault, StepFault):
        inner = reading if fault.call is None else Faulty(reading, fault.call)
        walk(fault, case, model, Announcing(inner, sink), Recorder(sink, arithmetic))
    elif isinstance(fault, ArtifactFault):
        wrong = open_case_model(replace(case, model=fault.plant(case.model, scratch)))
        Run(case, wrong, Announcing(reading, sink), Recorder(sink, arithmetic)).all()
    else:
        dump = MemoryDump(case.describe(), {})
        record(case, reading, dump, arithmetic)
        fault.plant(dump)
        copy(dump, sink)


def copy(dump: MemoryDump, sink: Sink) -> None:
    """Every record of a dump in memory, put in ``sink``."""
    for step in dump.steps:
        for stage in dump.stages(step):
            kept = dump.get(step, stage)
            assert kept is not None
            sink.put(step, stage, kept.array(), kept.row0, kept.dtype, kept.axes)


def edited_case(case: Case, fault: AnyFault, scratch: Path) -> Case:
    """The case as it is really run: for a candidate that only takes cases. `FaultError` for a mistake that is no edit of a case."""
    if isinstance(fault, ArtifactFault):
        return replace(case, model=fault.plant(case.model, scratch))
    if isinstance(fault, StepFault) and fault.call is None:
        changed = fault.case(case, open_case_model(case))
        if changed is not case:
            return changed
    raise FaultError(f"fault {fault.kind}: not an edit of the case; plant it in a candidate that runs operation by operation (--entry op)")
