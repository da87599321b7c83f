"""The cage: a candidate's worker process with limits of time and memory, and what became of it as findings (DESIGN section 9)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parity.errors import CandidateError, UsageError
from parity.report import CAGE, finding
from parity.worker import PREFIX, log_file

if TYPE_CHECKING:
    from parity.candidates import Candidate

MARK = "PARITY_CAGE"
GRACE = 0.5
LOG_BYTES, STDERR_BYTES, TEXT = 1 << 20, 1 << 16, 400


@dataclass(frozen=True)
class Limits:
    """``seconds``: wall-clock time; ``memory``: bytes of private writable memory, None for the machine's.
    ``perturb``: a byte that fresh memory is filled from (glibc), 0 for as it comes: a read of what was never written then shows."""

    seconds: float = 600.0
    memory: int | None = None
    perturb: int = 0

    def bytes(self) -> int:
        return self.memory if self.memory is not None else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass
class Outcome:
    """How a worker ended. ``findings``: ``kind, text, count, stage, stderr``, the one that ended it first; none for a clean run."""

    seconds: float = 0.0
    findings: list[dict[str, Any]] = field(default_factory=list)

    def add(self, kind: str, text: str, *, stage: str | None = None, stderr: str = "", first: bool = False) -> None:
        assert kind in CAGE, kind
        same = next((f for f in self.findings if (f["kind"], f["text"]) == (kind, text)), None)
        if same is not None:
            same["count"] += 1
            return
        self.findings.insert(0 if first else len(self.findings), finding(kind, text, stage, stderr))

    def demand_clean(self) -> None:
        """`CandidateError` with the first finding, where a run that misbehaved is of no use."""
        if self.findings:
            raise CandidateError(self.findings[0]["text"], self.findings[0]["stage"], self.findings[0]["stderr"])


def run_worker(
    candidate: Candidate,
    case_folder: Path,
    out: Path,
    *,
    fault: str | None = None,
    threads: int = 0,
    limits: Limits | None = None,
    order: dict[str, Any] | None = None,
) -> Outcome:
    """Run a candidate in a process of its own, on the case in ``case_folder`` or, with ``order``, to be asked for the order of its sums
    (`parity.ordering.inside.Options`). `UsageError` where the worker refuses its input; all else is in the outcome."""
    limits = limits or Limits()
    request = case_folder / f"request-{out.name}.json"
    body = {"candidate": asdict(candidate), "case": str(case_folder), "out": str(out), "fault": fault, "threads": threads, "order": order}
    request.write_text(json.dumps(body | {"path": [str(Path.cwd())], "memory": limits.bytes()}))
    log_file(out).unlink(missing_ok=True)
    errors = out.with_name(out.name + ".stderr")
    token = uuid.uuid4().hex
    began = time.perf_counter()
    # Standard error is a file: a pipe would stay open as long as any process that the candidate left behind.
    with errors.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "parity.worker", str(request)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=sink,
            env=os.environ | {MARK: token} | ({"MALLOC_PERTURB_": str(limits.perturb)} if limits.perturb else {}),
            start_new_session=True,
        )
    timed_out = False
    try:
        process.wait(limits.seconds)
    except subprocess.TimeoutExpired:
        timed_out = True
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        left = _end_left_behind(process.pid, token, 0.0 if timed_out else GRACE)
    outcome = Outcome(time.perf_counter() - began)
    _judge(outcome, process.returncode, timed_out, limits, out, _tail(errors))
    if left and not timed_out:
        outcome.add("left-behind", f"the candidate left {len(left)} running behind it, now ended: {', '.join(left)}")
    return outcome


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - STDERR_BYTES, 0))
        return file.read().decode("utf-8", "replace")


def _log(out: Path) -> list[dict[str, Any]]:
    """The worker's lines. The candidate could have written them too: bounded, and what is no object of short values is passed over."""
    entries: list[dict[str, Any]] = []
    with suppress(OSError), log_file(out).open("rb") as file:
        for line in file.read(LOG_BYTES).splitlines():
            with suppress(ValueError, RecursionError):
                value = json.loads(line)
                if isinstance(value, dict):
                    entries.append(value)
    return entries


def _judge(outcome: Outcome, status: int, timed_out: bool, limits: Limits, out: Path, stderr: str) -> None:
    """Adds the findings of a worker that has ended."""
    entries = _log(out)
    refused = next((e["refused"] for e in entries if isinstance(e.get("refused"), str)), None)
    if refused is not None and status == 2:
        raise UsageError(refused)
    stage = _last_stage(out)
    tail = stderr[-2000:]
    for entry in entries:
        if entry.get("kind") in CAGE and isinstance(entry.get("text"), str):
            outcome.add(entry["kind"], entry["text"][:TEXT], stage=stage, stderr=tail, first=entry.get("ended") is True)
    where = f" in stage {stage}" if stage else ""
    if timed_out:
        outcome.add("hang", f"the candidate did not finish within {limits.seconds:g} s{where}", stage=stage, stderr=tail, first=True)
    elif status < 0:
        fatal: dict[str, Any] = next((e for e in reversed(entries) if e.get("fatal") == -status), {})
        kind, what = _fatal(-status, fatal, stderr, limits)
        text = f"the candidate died with {what}{where}{_said(stderr)}"
        outcome.add(kind, text[:TEXT], stage=stage, stderr=tail, first=True)
    elif not any(e.get("done") is True or e.get("ended") is True for e in entries):
        text = f"the candidate ended itself with exit status {status}{where}{_said(stderr)}"
        outcome.add("exit", text[:TEXT], stage=stage, stderr=tail, first=True)
    elif not (outcome.findings or out.exists()):
        outcome.add("no-dump", f"the candidate ended without leaving a dump at {out}", stderr=tail)


def _fatal(number: int, fatal: dict[str, Any], stderr: str, limits: Limits) -> tuple[str, str]:
    """The kind of a death by signal, and its description."""
    try:
        what = f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        what = f"signal {number}"
    if isinstance(fatal.get("buffer"), str):
        access, side, count = fatal.get("access", "touched"), fatal.get("side"), fatal.get("bytes")
        if side == "inside":
            return "changed-input", f"{what}: it {access} byte {count} of its read-only input {fatal['buffer'][:64]}"
        kind = "read-outside" if access == "read" else "write-outside"
        return kind, f"{what}: it {access} byte {count} {side} the buffer {fatal['buffer'][:64]}"
    memory = f"; its memory was limited to {limits.bytes() / 2**30:.3g} GiB (--memory)"
    if number == signal.SIGKILL:
        return "killed", f"{what}, as the system ends what takes too much memory"
    if "bad_alloc" in stderr or fatal.get("exhausted"):
        return "out-of-memory", what + memory
    if fatal.get("stack"):
        return "stack-overflow", f"{what}: no stack was left"
    if number == signal.SIGABRT:
        return ("uncaught-exception", f"{what}: a C++ exception was not caught") if "terminate called" in stderr else ("abort", what)
    address = fatal.get("address")
    return "crash", what + (f" at address {address:#x}" if isinstance(address, int) and number == signal.SIGSEGV else "")


def _said(stderr: str) -> str:
    lines = [line.removeprefix(PREFIX) for line in stderr.strip().splitlines() if line.strip()]
    return f": {lines[-1][:200]}" if lines else ""


def _last_stage(out: Path) -> str | None:
    from dumps import announced

    return announced(out) if out.is_dir() else None


def _end_left_behind(session: int, token: str, grace: float) -> list[str]:
    """Ends every process of the worker that outlived it by more than ``grace`` seconds; ``name (pid)`` of each."""
    until = time.monotonic() + grace
    while (left := _descendants(session, token)) and time.monotonic() < until:
        time.sleep(0.01)
    for pid in left:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return [f"{name} ({pid})" for pid, name in left.items()]


def _descendants(session: int, token: str) -> dict[int, str]:
    """Living processes of the worker's session, or that carry its mark (Linux); elsewhere those of its process group, as one."""
    proc = Path("/proc")
    if not (proc / "self" / "environ").exists():
        try:
            os.killpg(session, 0)
        except (ProcessLookupError, PermissionError):
            return {}
        return {-session: "process group"}
    mark = f"{MARK}={token}".encode()
    found: dict[int, str] = {}
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        with suppress(OSError, ValueError, IndexError):
            name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
            state, *numbers = rest.split()
            if state not in "ZX" and (int(numbers[2]) == session or mark in (folder / "environ").read_bytes().split(b"\0")):
                found[int(folder.name)] = name
    return found
