"""The whole catalogue: call faults (`oracle.faults`), case and step faults, dump faults, artifact faults; one SPEC grammar for all.

Each kind is declared once; lists, plants, the score, the sensitivity ledger and `docs/faults.md` are read from the declarations.
"""

from __future__ import annotations

from oracle import faults as calls
from oracle.faults import FaultError, Options
from oracle.readings import Fault
from parity.faults import artifacts, recordings, steps
from parity.faults.artifacts import ArtifactFault, ArtifactKind
from parity.faults.base import StepFault, StepKind
from parity.faults.recordings import DumpFault, DumpKind

AnyKind = calls.Kind | StepKind | DumpKind | ArtifactKind
AnyFault = Fault | StepFault | DumpFault | ArtifactFault
KINDS: dict[str, AnyKind] = {
    **calls.KINDS,
    **{k.name: k for k in steps.KINDS},
    **{k.name: k for k in recordings.KINDS},
    **{k.name: k for k in artifacts.KINDS},
}
TYPES = {calls.Kind: "call", StepKind: "case or step", DumpKind: "dump", ArtifactKind: "artifact"}


def parse(spec: str) -> AnyFault:
    """The fault of a SPEC of any type. `FaultError` names what does not fit."""
    name, _, tail = spec.partition(":")
    kind = KINDS.get(name)
    if kind is None or isinstance(kind, calls.Kind):
        if kind is None:
            raise FaultError(f"fault kind {name!r} is unknown; known: {', '.join(KINDS)}")
        return calls.parse(spec)
    options, stage = Options(kind.defaults), kind.stage
    keys = {*kind.defaults, *(("stage",) if isinstance(kind, DumpKind) else ())}
    for pair in filter(None, tail.split(",")):
        key, eq, value = pair.partition("=")
        if not eq or key not in keys:
            raise FaultError(f"fault {name}: {pair!r}: expected {', '.join(sorted(keys)) or 'no key'} = value")
        if key == "stage":
            stage = value
        else:
            options[key] = value
    if isinstance(kind, StepKind):
        return kind.make(options)
    if isinstance(kind, DumpKind):
        return DumpFault(name, stage, kind.make(options))
    return ArtifactFault(name, kind.make(options))


def type_of(kind: AnyKind) -> str:
    """call, case or step, dump, artifact."""
    return TYPES[type(kind)]


__all__ = ["KINDS", "AnyFault", "AnyKind", "ArtifactFault", "DumpFault", "FaultError", "StepFault", "parse", "type_of"]
