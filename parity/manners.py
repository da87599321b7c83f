"""What a library may not do to the thread and the process that call it, looked at after every call."""

from __future__ import annotations

import os
from collections.abc import Callable

Tell = Callable[[str, str], None]
"""``tell(kind, text)``: a finding of `parity.report.CAGE`."""
STREAMS = {1: "standard output", 2: "standard error"}


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class Manners:
    """Remembers the floating-point mode and the standard streams; `check` tells of each change once and undoes a changed mode."""

    def __init__(self, tell: Tell) -> None:
        from native import watch

        self._watch = watch
        self._tell = tell
        self._mode = watch.fp_mode()
        self._streams = {fd: _identity(fd) for fd in STREAMS}
        self._told: set[str] = set()

    def check(self, what: str) -> None:
        """After the call ``what`` (an entry point's name) or the candidate as a whole."""
        mode = self._watch.fp_mode()
        if mode != self._mode:
            self._watch.set_fp_mode(self._mode)
            self._once("floating-point-mode", f"{what} left the floating-point mode at {mode:#x}, it was {self._mode:#x} before the call")
        for fd, was in self._streams.items():
            if _identity(fd) != was:
                self._once("closed-output", f"{what} closed or replaced {STREAMS[fd]}")
                self._streams[fd] = _identity(fd)

    def _once(self, kind: str, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._tell(kind, text)
