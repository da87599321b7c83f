"""One comparison from case to report: worker, dump, verdict. What the command line, the suite and `assert_parity` share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oracle.arithmetic import Arithmetic
from parity import candidates
from parity.cage import Limits, Outcome, run_worker
from parity.case import Case
from parity.comparing import compare_dump, versions
from parity.emulated import clear_findings, read_findings
from parity.models import Progress, open_case_model
from parity.repeating import summary, unrepeated
from parity.report import Report

if TYPE_CHECKING:
    from dumps import Dump


def run_candidate(
    case: Case,
    candidate: candidates.Candidate,
    arithmetic: Arithmetic | None = None,
    *,
    mode: str = "both",
    members: int = 8,
    fault: str | None = None,
    required: Iterable[str] = (),
    certify: bool = False,
    keep: Path | None = None,
    threads: int = 0,
    timeout: float = 600.0,
    memory: int | None = None,
    repeat: int = 1,
    progress: Progress | None = None,
) -> Report:
    """Run the candidate in a worker process and compare its dump. ``keep``: folder that keeps the case and the dump. ``timeout``:
    seconds, ``memory``: bytes it may take. What it does to its process are findings of the report; what it had recorded is compared
    all the same. ``repeat``: runs in all, compared bit for bit with the first."""
    folder = keep or Path(tempfile.mkdtemp(prefix="parity-"))
    judged_by = arithmetic or candidates.declared(candidate, None, case)
    try:
        case_folder = case.save(folder / "case")
        if progress:
            progress(f"candidate {candidate.name}")
        out = folder / "dump"
        limits = Limits(timeout, memory)
        outcome = _run(candidate, case_folder, out, fault, threads, limits)
        dump = _opened(out, outcome)
        if dump is None:
            report = Report(
                case.describe(), open_case_model(case).geometry, asdict(judged_by), {"candidate": candidate.name}, (), versions=versions()
            )
        else:
            others = _further(candidate, case_folder, out, fault, threads, limits, repeat, outcome)
            options: dict[str, Any] = {"mode": mode, "members": members, "required": required, "certify": certify, "repeats": others}
            report = compare_dump(case, dump, judged_by, **options, partial=bool(outcome.findings), progress=progress)
            if repeat > 1:
                report.repeat = summary(1 + len(others), unrepeated((dump, *others)))
        report.timing["candidate_s"] = outcome.seconds
        report.findings = read_findings(out) + outcome.findings
        if dump is not None and not dump.complete:
            report.notes.append(f"the dump ends where the candidate did: {len(dump.pieces)} records were compared")
        return report
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)


def _run(candidate: candidates.Candidate, case_folder: Path, out: Path, fault: str | None, threads: int, limits: Limits) -> Outcome:
    """One run that leaves its dump at ``out``."""
    if out.exists():
        shutil.rmtree(out)
    clear_findings(out)
    return run_worker(candidate, case_folder, out, fault=fault, threads=threads, limits=limits)


def _further(
    candidate: candidates.Candidate,
    case_folder: Path,
    first: Path,
    fault: str | None,
    threads: int,
    limits: Limits,
    repeat: int,
    whole: Outcome,
) -> list[Dump]:
    """The dumps of the runs after the first, each with other bytes in fresh memory; what happens to them is added to ``whole``."""
    dumps: list[Dump] = []
    for number in range(2, repeat + 1):
        out = first.with_name(f"{first.name}-{number}")
        outcome = _run(candidate, case_folder, out, fault, threads, replace(limits, perturb=37 * number % 255 or 1))
        dump = _opened(out, outcome)
        for f in outcome.findings:
            whole.add(f["kind"], f"run {number}: {f['text']}", stage=f["stage"], stderr=f["stderr"])
        if dump is not None:
            dumps.append(dump)
    return dumps


def _opened(out: Path, outcome: Outcome) -> Dump | None:
    """The dump with anything in it, or None; one that is not well formed is a finding."""
    from dumps import DumpError, open_dump

    if not out.exists():
        return None
    try:
        dump = open_dump(out)
    except DumpError as error:
        # What a candidate that died left half-made adds nothing to its death.
        if not outcome.findings:
            outcome.add("record-twice" if "recorded already" in str(error) else "bad-dump", str(error))
        return None
    if not dump.complete and not outcome.findings:
        outcome.add("bad-dump", f"{out}: the dump is incomplete (its writer never closed it)")
    return dump if dump.pieces or not outcome.findings else None


def run_callable(
    case: Case, function: Callable[[Path, Path], Any], arithmetic: Arithmetic, *, mode: str = "both", members: int = 8
) -> Report:
    """Run ``function(case_folder, dump_path)`` in this process and compare the dump it leaves."""
    from dumps import open_dump

    with tempfile.TemporaryDirectory(prefix="parity-") as folder:
        case_folder = case.save(Path(folder) / "case")
        from parity.case import load

        loaded = load(case_folder)
        out = Path(folder) / "dump"
        function(case_folder, out)
        return compare_dump(loaded, open_dump(out), arithmetic, mode=mode, members=members)
