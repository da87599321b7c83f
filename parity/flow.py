"""One comparison from case to report: worker, dump, verdict. What the command line, the suite and `assert_parity` share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from oracle.arithmetic import Arithmetic
from parity import candidates
from parity.case import Case
from parity.comparing import compare_dump
from parity.emulated import clear_findings, read_findings
from parity.errors import CandidateError
from parity.models import Progress
from parity.report import Report
from parity.worker import run_worker


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
    progress: Progress | None = None,
) -> Report:
    """Run the candidate in a worker process and compare its dump. ``keep``: folder that keeps the case and the dump."""
    from dumps import open_dump

    folder = keep or Path(tempfile.mkdtemp(prefix="parity-"))
    try:
        case_folder = case.save(folder / "case")
        out = folder / "dump"
        if out.exists():
            shutil.rmtree(out)
        clear_findings(out)
        if progress:
            progress(f"candidate {candidate.name}")
        seconds, died = 0.0, None
        try:
            seconds = run_worker(candidate, case_folder, out, fault=fault, threads=threads, timeout=timeout)
        except CandidateError as error:
            if not (read_findings(out) and out.exists()):
                raise
            died = error  # the finding says why; what was recorded before is compared all the same
        report = compare_dump(
            case,
            open_dump(out),
            arithmetic or candidates.declared(candidate, None),
            mode=mode,
            members=members,
            required=required,
            certify=certify,
            progress=progress,
        )
        report.timing["candidate_s"] = seconds
        report.findings = read_findings(out)
        if died is not None:
            report.notes.append(str(died))
        return report
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)


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
