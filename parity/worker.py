"""The worker process: ``python -m parity.worker REQUEST.json`` runs one candidate on one case and leaves a dump.

A crash ends this process, not the lab. Exit status: 0 done, 2 bad input (the message on stderr behind "parity: "), other: died.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from parity.errors import CandidateError, UsageError

if TYPE_CHECKING:
    from parity.candidates import Candidate

PREFIX = "parity: "


def main(argv: list[str]) -> int:
    """Entry point of the worker."""
    from oracle.arithmetic import DeclarationError
    from oracle.artifacts import ArtifactError
    from oracle.drafters.dialect import DialectError
    from oracle.drafters.forward import ContextError
    from oracle.faults import FaultError
    from parity import candidates, case

    request = json.loads(Path(argv[1]).read_text())
    sys.path[:0] = [p for p in request["path"] if p not in sys.path]
    try:
        candidate = candidates.Candidate(**request["candidate"])
        candidates.execute(candidate, case.load(Path(request["case"])), Path(request["out"]), request["fault"], request["threads"])
    except (UsageError, ArtifactError, DialectError, DeclarationError, ContextError, FaultError) as e:
        print(PREFIX + str(e), file=sys.stderr)
        return 2
    except CandidateError as e:
        print(PREFIX + str(e), file=sys.stderr)
        return 4
    except Exception as e:
        if type(e).__name__ != "NativeError":
            raise
        # A library that is refused, or says that it cannot do this, is bad input; one that fails in a call is a finding about it.
        print(PREFIX + str(e), file=sys.stderr)
        return 2 if getattr(e, "status", "") in ("LOAD", "UNSUPPORTED", "NO_DEVICE") else 4
    return 0


def run_worker(
    candidate: Candidate, case_folder: Path, out: Path, *, fault: str | None = None, threads: int = 0, timeout: float = 600.0
) -> float:
    """Run a candidate in a process of its own; returns its seconds. `UsageError` or `CandidateError` says how it ended."""
    from dataclasses import asdict

    request = case_folder / f"request-{out.name}.json"
    body = {
        "candidate": asdict(candidate),
        "case": str(case_folder),
        "out": str(out),
        "fault": fault,
        "threads": threads,
        "path": [str(Path.cwd())],
    }
    request.write_text(json.dumps(body))
    began = time.perf_counter()
    # A group of its own, so that a time-out also ends what the candidate started.
    process = subprocess.Popen(
        [sys.executable, "-m", "parity.worker", str(request)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        _, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        _, stderr = process.communicate()
        raise CandidateError(f"the candidate did not finish within {timeout:g} s{_last_stage(out)}", None, stderr[-2000:]) from None
    if process.returncode:
        _raise(process.returncode, stderr, out)
    if not (out.exists()):
        raise CandidateError(f"the candidate ended without leaving a dump at {out}", None, stderr[-2000:])
    return time.perf_counter() - began


def _raise(status: int, stderr: str, out: Path) -> None:
    if status == 2:
        for line in stderr.splitlines():
            if line.startswith(PREFIX):
                raise UsageError(line.removeprefix(PREFIX))
    name = f"signal {-status} ({signal.Signals(-status).name})" if status < 0 else f"exit status {status}"
    lines = [line.removeprefix(PREFIX) for line in stderr.strip().splitlines() if line.strip()]
    tail = f": {lines[-1][:200]}" if lines else ""
    raise CandidateError(f"the candidate died with {name}{_last_stage(out)}{tail}", None, stderr[-2000:])


def _last_stage(out: Path) -> str:
    from dumps import announced

    stage = announced(out) if out.is_dir() else None
    return f" in stage {stage}" if stage else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv))
