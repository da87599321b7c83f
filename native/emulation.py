"""What an emulated library can be told and asked beside the ABI (``native/emu``): schedules, orders of threads, findings."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cffi import FFI

from native.errors import NativeError

_ffi: Any = FFI()
_ffi.cdef(
    """
    int emu_set_schedule(const char* text);
    void emu_set_order(unsigned long long seed);
    void emu_set_checking(int on);
    unsigned long long emu_findings(char* buffer, unsigned long long capacity);
    void emu_clear_findings(void);
    """
)
KINDS = ("race", "hazard", "divergent-sync", "out-of-bounds", "uninitialised", "api")
"""Kinds of finding: a race explains an unwritten byte, not the other way round."""
SCHEDULES = "eager, late, or a number (the seed of an order between the two)"


@dataclass(frozen=True)
class Finding:
    """One finding of the emulator. ``kind``: race, hazard, out-of-bounds, uninitialised, divergent-sync or api. ``text``: one line,
    complete. ``places``: ``file:line`` of both sides, the later access first. ``count``: how often the same places met."""

    kind: str
    text: str
    places: tuple[str, ...]
    count: int


class Emulation:
    """The emulator inside the shared library at ``path``, which may be loaded already. `NativeError` when there is none in it."""

    def __init__(self, path: str | Path) -> None:
        try:
            self._handle = _ffi.dlopen(str(Path(path).resolve()))
        except OSError as error:
            raise NativeError("LOAD", f"{path}: cannot be loaded: {error}") from None
        if not hasattr(self._handle, "emu_findings"):
            raise NativeError("LOAD", f"{path}: not an emulated library: a schedule needs one (native/emu/README.md)")

    def schedule(self, text: str) -> None:
        """When work runs: `SCHEDULES`. A number also shuffles blocks and threads."""
        if not self._handle.emu_set_schedule(text.encode()):
            raise NativeError("ARG", f"schedule {text!r}: expected {SCHEDULES}")
        self._handle.emu_set_order(int(text) if text.isdigit() else 0)

    def checking(self, on: bool) -> None:
        """Look at every access to memory, or only at copies and synchronisations (several times faster)."""
        self._handle.emu_set_checking(int(on))

    def findings(self) -> list[Finding]:
        """What was found so far: causes before their effects, else in order."""
        size = int(self._handle.emu_findings(_ffi.NULL, 0))
        buffer = _ffi.new("char[]", size + 1)
        self._handle.emu_findings(buffer, size + 1)
        lines = _ffi.string(buffer).decode("utf-8", "replace").splitlines()
        found = [Finding(f["kind"], f["text"], tuple(f["places"]), f["count"]) for f in map(json.loads, lines)]
        return sorted(found, key=lambda f: KINDS.index(f.kind))

    def clear(self) -> None:
        """Forget the findings."""
        self._handle.emu_clear_findings()
