"""Candidates: what `--candidate` names, and the arithmetic each declares. They run in a worker process (`parity.worker`)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oracle import arithmetic as arithmetics
from oracle.arithmetic import Arithmetic
from oracle.readings import Exact, Reading, Rounded
from parity.adapters import ADAPTERS
from parity.case import Case
from parity.errors import UsageError

if TYPE_CHECKING:
    from dumps import DumpWriter
    from native import Context, Library

LIBRARIES = {
    "cpu": "cpu",
    "cuda": "cuda-f32",
    "cuda-emu": "cuda-f32",
    "metal": "metal-f32",
    "metal-emu": "metal-f32",
    "cuda+tensor-core": "cuda-tensor-core",
    "cuda-emu+tensor-core": "cuda-tensor-core",
    "metal+simdgroup": "metal-simdgroup",
    "metal-emu+simdgroup": "metal-simdgroup",
}
"""The project's own libraries, and the arithmetic each declares."""
NUMPY = tuple(name for name in arithmetics.PRESETS if name not in (*LIBRARIES.values(), *ADAPTERS))
ENTRIES = ("auto", "op", "fused")


@dataclass(frozen=True)
class Candidate:
    """A parsed ``--candidate``: ``kind`` is numpy, library, adapter or callable. ``mapping``: a file in place of an adapter's own.
    ``schedule``: when the work of an emulated library runs, None for its own (eager). ``guard``: guard pages around the buffers of a
    library's single operations, None where it is not one of ours."""

    spec: str
    kind: str
    entry: str = "auto"
    mapping: str | None = None
    schedule: str | None = None
    guard: bool | None = None

    @property
    def name(self) -> str:
        return self.spec if self.entry == "auto" else f"{self.spec} ({self.entry})"


def parse(
    spec: str, entry: str = "auto", mapping: str | None = None, schedule: str | None = None, guard: bool | None = None
) -> Candidate:
    """``f32 … | f64 | cpu | cuda | cuda-emu | metal | metal-emu | PATH.so | llama.cpp | module:callable``; `UsageError` lists what is
    known."""
    if entry not in ENTRIES:
        raise UsageError(f"entry {entry!r}: expected one of {', '.join(ENTRIES)}")
    if spec in LIBRARIES or spec.endswith((".so", ".dylib")):
        return Candidate(spec, "library", entry, schedule=_schedule(schedule), guard=guard)
    if guard is not None:
        raise UsageError(f"--guard: {spec!r} is no library; only the operations of a library are called with buffers of the lab's")
    if schedule is not None:
        raise UsageError(f"--schedule: {spec!r} is no emulated library; expected cuda-emu, metal-emu or the path of one")
    if spec == "f64" or spec in NUMPY:
        return Candidate(spec, "numpy")
    if spec in ADAPTERS:
        return Candidate(spec, "adapter", mapping=mapping)
    if mapping is not None:
        raise UsageError(f"--mapping: only an adapter has one ({', '.join(ADAPTERS)}), {spec!r} is none")
    if ":" in spec:
        return Candidate(spec, "callable")
    known = ", ".join((*LIBRARIES, "f64", *NUMPY, *ADAPTERS))
    raise UsageError(f"candidate {spec!r} is unknown: expected {known}, a PATH.so, or module:callable")


def _schedule(text: str | None) -> str | None:
    if text is not None and text not in ("eager", "late") and not (text.isdigit() and len(text) < 19):
        raise UsageError(f"--schedule {text}: expected eager, late, or a number (the seed of an order between the two)")
    return text


def declared(candidate: Candidate, text: str | None, case: Case | None = None) -> Arithmetic:
    """The arithmetic to judge by: ``--arithmetic``, else what the candidate is known to do (an adapter: on ``case``)."""
    if text is not None:
        return arithmetics.named(text)
    if candidate.kind == "numpy" and candidate.spec != "f64":
        return arithmetics.named(candidate.spec)
    if candidate.kind == "adapter":
        return arithmetics.named(ADAPTERS[candidate.spec].declared(case))
    return arithmetics.named(LIBRARIES.get(candidate.spec, "f32"))


def execute(
    candidate: Candidate, case: Case, out: Path, fault: str | None, threads: int = 0, tell: Callable[[str, str], None] | None = None
) -> None:
    """Run the candidate on the case in this process and leave a dump at ``out``. ``tell(kind, text)`` hears what a library does wrong
    without dying of it (`parity.report.CAGE`)."""
    if candidate.kind == "callable":
        _call(candidate.spec, case, out)
    elif candidate.kind == "adapter":
        if fault is not None:
            raise UsageError(f"--fault: {candidate.spec} cannot be edited from outside; plant faults in cpu or a NumPy candidate")
        ADAPTERS[candidate.spec].run(case, out, threads, Path(candidate.mapping) if candidate.mapping else None)
    elif candidate.kind == "numpy":
        _numpy(candidate, case, out, fault)
    else:
        _library(candidate, case, out, fault, threads, tell)


def _provenance(candidate: Candidate, fault: str | None, **more: Any) -> dict[str, Any]:
    return {"candidate": candidate.name, "fault": fault, **more}


def _recorded(case: Case, reading: Reading, fault: str | None, writer: DumpWriter, arithmetic: Arithmetic | None) -> None:
    """All steps in the reading, with the mistake of the SPEC made where there is one."""
    from parity.faults.planting import record_planted
    from parity.recording import record

    if fault is None:
        record(case, reading, writer, arithmetic)
    else:
        record_planted(case, reading, fault, writer, arithmetic, writer.path.parent / "artifact")


def _numpy(candidate: Candidate, case: Case, out: Path, fault: str | None) -> None:
    from dumps import DumpWriter

    arithmetic = None if candidate.spec == "f64" else arithmetics.named(candidate.spec)
    reading: Reading = Exact() if arithmetic is None else Rounded(arithmetic)
    with DumpWriter(out, case.describe(), _provenance(candidate, fault, where="numpy")) as writer:
        _recorded(case, reading, fault, writer, arithmetic)


def library_of(candidate: Candidate) -> tuple[Library, dict[str, Any]]:
    """The candidate's library, built where it is an emulated one that is not, and what its contexts are opened with."""
    import native
    from native.building import EMULATED, ensure

    name, _, products = candidate.spec.partition("+") if candidate.spec in LIBRARIES else (candidate.spec, "", "")
    return native.open_library(ensure(name) if name in EMULATED else name), {"products": products} if products else {}


@contextmanager
def opened(
    candidate: Candidate, out: Path, threads: int, tell: Callable[[str, str], None] | None
) -> Iterator[tuple[Context, dict[str, Any]]]:
    """The candidate's library with a context open, and what is to be said about it. What it does wrong goes to ``tell``, what an emulator
    finds beside ``out``."""
    from parity.emulated import emulated
    from parity.manners import Manners

    manners = None if tell is None else Manners(tell)
    library, options = library_of(candidate)
    info = library.info
    about = {
        "where": "emulated" if "emulated" in info.flags else "device" if "device" in info.flags else "host",
        "library": info.name,
        "version": info.version,
        "path": str(info.path),
        "source_hash": info.source_hash,
        "arithmetic": info.arithmetic,
    }
    with emulated(info, candidate.schedule, out):
        if "emulated" in info.flags:
            about["schedule"] = candidate.schedule or "eager"
        guarded = tell if (not library.ours if candidate.guard is None else candidate.guard) else None
        with library.context(threads, guard=guarded, **options) as context:
            if manners is not None:
                manners.check("open")
                context.after_each_call(manners.check)
            yield context, about


def _library(
    candidate: Candidate, case: Case, out: Path, fault: str | None, threads: int, tell: Callable[[str, str], None] | None
) -> None:
    from dumps import DumpWriter
    from parity.native_drafter import run_fused
    from parity.native_reading import Native

    with opened(candidate, out, threads, tell) as (context, about):
        entry = candidate.entry
        if entry == "auto":
            entry = "op" if case.role == "target" or fault or "linear" in context.ops else "fused"
        with DumpWriter(out, case.describe(), _provenance(candidate, fault, **about, entry=entry)) as writer:
            if entry == "fused":
                run_fused(_wrong(case, fault, out), context, writer)
            else:
                _recorded(case, Native(context), fault, writer, arithmetics.named("f32"))


def _wrong(case: Case, fault: str | None, out: Path) -> Case:
    """The case as a candidate that cannot be edited from outside is fed it."""
    if fault is None:
        return case
    from parity.faults import parse as parse_fault
    from parity.faults.planting import edited_case

    return edited_case(case, parse_fault(fault), out.parent / "artifact")


def _call(spec: str, case: Case, out: Path) -> None:
    """``module:callable`` takes (case folder, dump path) and leaves a dump there."""
    module_name, _, attribute = spec.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as e:
        raise UsageError(f"candidate {spec!r}: {e}") from None
    if not callable(function):
        raise UsageError(f"candidate {spec!r}: {attribute} is not callable")
    function(case.folder, out)


def open_writer(out: Path, case: Case, name: str) -> DumpWriter:
    """A dump writer for a candidate of one's own: carries the case, so that the comparison can check identities."""
    from dumps import DumpWriter

    return DumpWriter(out, case.describe(), {"candidate": name})
