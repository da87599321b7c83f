"""Emulated candidates: the schedule they run under, and what the emulator found, carried from the worker to the report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parity.errors import UsageError

if TYPE_CHECKING:
    from native.library import Info


def _file(dump: Path) -> Path:
    return dump.with_name(dump.name + ".findings.json")


@contextmanager
def emulated(info: Info, schedule: str | None, dump: Path) -> Iterator[None]:
    """Sets the schedule of an emulated library and, however what happens inside ends, leaves its findings beside ``dump``."""
    from native.emulation import Emulation

    if "emulated" not in info.flags:
        if schedule is not None:
            raise UsageError(f"--schedule: {info.name} is not emulated: the order of its work is its own")
        yield
        return
    emulation = Emulation(info.path)
    emulation.schedule(schedule or "eager")
    try:
        yield
    finally:
        if found := found_by(info):
            _file(dump).write_text(json.dumps(found))


def found_by(info: Info) -> list[dict[str, Any]]:
    """What the emulator in the library has found in this process so far; [] where there is none in it."""
    from native.emulation import Emulation

    return [asdict(f) for f in Emulation(info.path).findings()] if "emulated" in info.flags else []


def read_findings(dump: Path) -> list[dict[str, Any]]:
    """What the emulator found in the run that left ``dump``; [] for nothing, or no emulator."""
    file = _file(dump)
    found: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    return found


def clear_findings(dump: Path) -> None:
    """Forget those of an earlier run."""
    _file(dump).unlink(missing_ok=True)
