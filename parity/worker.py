"""The worker process: ``python -m parity.worker REQUEST.json`` runs one candidate on one case and leaves a dump, or probes the order of
its sums and leaves the answers.

A crash ends this process, not the lab. Exit status: 0 done, 2 bad input (the message on stderr behind "parity: "), other: died. What
happened is also written beside the dump, line by line as JSON (`parity.cage` reads it): ``refused``, ``done``, findings
(``kind, text``), and ``fatal`` from the signal handler.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parity.errors import REFUSALS, CandidateError, is_a

if TYPE_CHECKING:
    from parity.candidates import Candidate

PREFIX = "parity: "


def log_file(dump: Path) -> Path:
    """Where the worker that makes ``dump`` writes what happened."""
    return dump.with_name(dump.name + ".cage.jsonl")


class Log:
    """The worker's account of itself: a descriptor of its own, so that a candidate that closes the standard streams does not end it."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, **entry: Any) -> None:
        os.write(self.fd, (json.dumps(entry) + "\n").encode())

    def tell(self, kind: str, text: str) -> None:
        self.write(kind=kind, text=text)

    def ended(self, kind: str, text: str) -> None:
        """The finding that ended the candidate."""
        self.write(kind=kind, text=text, ended=True)


def main(argv: list[str]) -> int:
    """Entry point of the worker."""
    request = json.loads(Path(argv[1]).read_text())
    out = Path(request["out"])
    log = Log(log_file(out))
    _limit(request.get("memory"))
    _watch(log)
    sys.path[:0] = [p for p in request["path"] if p not in sys.path]
    from parity import candidates

    candidate = candidates.Candidate(**request["candidate"])
    began = _dump_began(out) if candidate.kind == "callable" else [True]
    try:
        _run(candidate, request, out, log)
        if began[0] and not (out / "manifest.jsonl").exists() and not out.is_file():
            raise CandidateError(f"the candidate's dump at {out} was there and is gone")
    except Exception as error:
        return _ended_by(error, out, log)
    log.write(done=True)
    return 0


def _run(candidate: Candidate, request: dict[str, Any], out: Path, log: Log) -> None:
    from parity import candidates, case
    from parity.manners import Manners

    if request["order"] is not None:
        from parity.ordering import inside

        inside.work(candidate, inside.Options(**request["order"]), out, request["threads"], log.tell)
        return
    manners = Manners(log.tell) if candidate.kind in ("callable", "adapter") else None
    candidates.execute(candidate, case.load(Path(request["case"])), out, request["fault"], request["threads"], log.tell)
    if manners is not None:
        manners.check("the candidate")


def _ended_by(error: Exception, out: Path, log: Log) -> int:
    """Writes what ended the candidate to the log and stderr; the exit status."""
    name, text = type(error).__name__, str(error)
    if is_a(error, REFUSALS) or (name == "NativeError" and getattr(error, "status", "") in ("LOAD", "UNSUPPORTED", "NO_DEVICE")):
        # A library that is refused, or says that it cannot do this, is bad input; one that fails in a call is a finding about it.
        log.write(refused=text)
        print(PREFIX + text, file=sys.stderr)
        return 2
    if name == "MemoryError" or (name == "NativeError" and getattr(error, "status", "") == "NOMEM"):
        log.ended("out-of-memory", f"the candidate ran out of memory: {text or name}")
    elif isinstance(error, CandidateError) and "is gone" in text:
        log.ended("dump-deleted", text)
    elif name == "DumpError":
        gone = not (out / "manifest.jsonl").exists()
        kind = "dump-deleted" if gone else "record-twice" if "recorded already" in text else "bad-dump"
        log.ended(kind, f"the candidate's dump at {out} was there and is gone" if gone else text)
    elif name in ("NativeError", "CandidateError"):
        log.ended("failed", text)
    else:
        import traceback

        with suppress(OSError, ValueError):
            traceback.print_exception(error)
        log.ended("exception", f"the candidate raised {name}: {text}")
        return 1
    with suppress(OSError, ValueError):
        print(PREFIX + text, file=sys.stderr)
    return 4


def _limit(memory: int | None) -> None:
    """Bounds what this process may allocate (bytes of private writable memory; mapped files do not count)."""
    if memory is None:
        return
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _watch(log: Log) -> None:
    """Signal handlers that tell which buffer a fatal access touched. A sanitizer's own are left alone; without the CPU library: none."""
    if "san" in os.environ.get("LD_PRELOAD", ""):
        return
    with suppress(Exception):
        from native import watch

        watch.watch(log.fd)


def _dump_began(out: Path) -> list[bool]:
    """``[True]`` as soon as Python code of this process opens a file below ``out``."""
    began = [False]
    folder = str(out.resolve()) + os.sep

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and not began[0] and isinstance(args[0], str) and args[0].startswith(folder):
            began[0] = True

    sys.addaudithook(hook)
    return began


if __name__ == "__main__":
    sys.exit(main(sys.argv))
