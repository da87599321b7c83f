"""A loaded library: what it says of itself, what it implements, and its contexts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from native.context import Context
from native.sources import FOLDERS
from native.tensors import ffi

if TYPE_CHECKING:
    from native.guard import Report

OPERATIONS = (
    *("dequant", "convert", "rms_norm", "linear", "rope", "attention", "gate", "swiglu"),
    *("add", "gather", "concat", "top2", "softmax", "softcap", "accept"),
)
"""Operations with an entry point of their own (ABI 1.0); further ones go by name through ``dlab_apply`` (ABI 1.1)."""
FUSED = tuple(f"drafter_{part}" for part in ("create", "describe", "append", "propose", "truncate", "context", "destroy"))


@dataclass(frozen=True)
class Info:
    """What a library declares: name, version, ABI (major, minor), capabilities (``ops fused dumps device emulated``), its arithmetic
    as key and value, the hash of the sources it was built from (may be empty) and the file it was loaded from."""

    name: str
    version: str
    abi: tuple[int, int]
    flags: frozenset[str]
    arithmetic: dict[str, str]
    source_hash: str
    path: Path


def applied(handle: Any) -> tuple[str, ...]:
    """Names of the operations that ``dlab_apply`` of a loaded library knows; none for a library of ABI 1.0."""
    if not (hasattr(handle, "dlab_operations") and hasattr(handle, "dlab_apply")):
        return ()
    names = handle.dlab_operations()
    text = "" if names == ffi.NULL else ffi.string(names).decode("utf-8", "replace")
    return tuple(name.strip() for name in text.split(",") if name.strip())


class Library:
    """Made by `native.open_library`. ``info`` describes it, ``ops`` names the operations it implements."""

    def __init__(self, handle: Any, info: Info) -> None:
        self._handle = handle
        self.info = info
        entries = {op for op in OPERATIONS if hasattr(handle, f"dlab_{op}")}
        self.ops: frozenset[str] = frozenset(entries | set(applied(handle)))

    @property
    def ours(self) -> bool:
        """True for a library of this project, whose sources were checked."""
        return self.info.name.removeprefix("dlab-") in FOLDERS and self.info.name.startswith("dlab-")

    def context(self, threads: int = 0, *, guard: Report | None = None, **options: str) -> Context:
        """A context with its own threads (0: one per core). `NativeError` when it cannot be opened (no device ...).

        ``options`` are the library's own; the CPU library knows ``isa="x86-64"``, which leaves newer instructions unused.
        ``guard``: every buffer of a single operation between guard pages, findings told as ``guard(kind, text)`` (`native.guard`).
        """
        arguments = self._handle, self.ops, self.info.flags, self.info.abi, {"threads": str(threads)} | options
        if guard is None:
            return Context(*arguments)
        from native.guard import GuardedContext

        return GuardedContext(*arguments, report=guard)

    def __repr__(self) -> str:
        return f"<Library {self.info.name} {self.info.version} from {self.info.path}>"
