"""Calls with every buffer between guard pages: for a library that nobody has checked yet (DESIGN section 9).

A buffer lies in pages of its own with inaccessible ones on either side, its end as close to the later ones as 16-byte alignment allows;
the slack holds a pattern that is compared after the call. Weights are read-only memory; other inputs are compared after the call. Outputs
start as NaN (ids as -1), so that an element nobody wrote is seen.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import mmap
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from native import watch
from native.context import Context
from native.drafter import Drafter
from native.library import OPERATIONS
from native.tensors import Stored

PAGE = mmap.PAGESIZE
GUARD = 16 * PAGE
ALIGN = 16
PATTERN = 0xA5
NAME_BYTES = 63

Report = Callable[[str, str], None]
"""Called with the kind of a finding and its text."""


class Buffer(NamedTuple):
    """A guarded buffer. ``pages``: the accessible bytes; ``start, stop``: the buffer's own among them; ``array``: the buffer."""

    name: str
    pages: NDArray[np.uint8]
    start: int
    stop: int
    array: NDArray[Any]

    def overrun(self) -> str | None:
        """What was written around the buffer, or None."""
        before = np.flatnonzero(self.pages[: self.start] != PATTERN)
        if before.size:
            return f"wrote {self.start - int(before[0])} bytes before"
        past = np.flatnonzero(self.pages[self.stop :] != PATTERN)
        return f"wrote {int(past[-1]) + 1} bytes past" if past.size else None


_protect = ctypes.CDLL(None, use_errno=True).mprotect
_protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def _protected(address: int, size: int, mode: int) -> None:
    if _protect(address, size, mode):
        raise OSError(ctypes.get_errno(), "mprotect failed: no guard page can be made")


_free = list(range(watch.SLOTS - 1, -1, -1))


def _release(slot: int) -> None:
    watch.TABLE[slot] = np.zeros((), watch.WATCHED)
    _free.append(slot)


def place(name: str, shape: tuple[int, ...], dtype: Any, like: NDArray[Any] | None = None, *, frozen: bool = False) -> Buffer:
    """A guarded buffer holding a copy of ``like`` (of that shape and dtype), or bytes of 0xFF. ``frozen``: memory nobody can write."""
    kind = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    length = max(-(-size // PAGE), 1) * PAGE
    memory = mmap.mmap(-1, length + 2 * GUARD, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    whole = np.frombuffer(memory, np.uint8)
    base = int(whole.ctypes.data)
    pages = whole[GUARD : GUARD + length]
    start = (length - size) // ALIGN * ALIGN
    pages[:start] = PATTERN
    pages[start + size :] = PATTERN
    own = pages[start : start + size]
    own[:] = 0xFF if like is None else np.ascontiguousarray(like).reshape(-1).view(np.uint8)
    if _free:
        slot = _free.pop()
        first = base + GUARD + start
        watch.TABLE[slot] = (base, first, first + size, base + length + 2 * GUARD, name.encode("ascii", "replace")[:NAME_BYTES])
        weakref.finalize(memory, _release, slot)
    for edge in (base, base + GUARD + length):
        _protected(edge, GUARD, 0)
    if frozen:
        _protected(base + GUARD, length, mmap.PROT_READ)
        own.flags.writeable = False
    return Buffer(name, pages, start, start + size, own.view(kind).reshape(shape))


class GuardedContext(Context):
    """A `Context` whose single operations get guarded buffers. ``report(kind, text)`` is told of writes around a buffer
    (``write-outside``) and of changed inputs (``changed-input``), with the operation and the buffer's name."""

    def __init__(self, *arguments: Any, report: Report) -> None:
        super().__init__(*arguments)
        self._report = report
        self._frozen: dict[int, tuple[Stored, Stored]] = {}
        self._outputs: list[Buffer] | None = None
        self._op = ""

    def _empty(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        if self._outputs is None:
            return super()._empty(shape, dtype)
        self._outputs.append(place(f"{self._op} output {len(self._outputs)}", shape, dtype))
        return self._outputs[-1].array

    def frozen(self, name: str, w: Stored) -> Stored:
        """The same weight in read-only guarded memory, placed once."""
        if id(w) not in self._frozen:
            self._frozen[id(w)] = (w, Stored(place(f"{name} (weight)", w.raw.shape, np.uint8, w.raw, frozen=True).array, w.dtype, w.shape))
        return self._frozen[id(w)][1]

    def guarded(self, op: str, call: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        """``call(**arguments)`` with every array and weight guarded; results are plain arrays."""
        self._op, self._outputs = op, []
        inputs: list[tuple[Buffer, NDArray[Any]]] = []
        outputs: list[tuple[Buffer, NDArray[Any]]] = []

        def moved(name: str, value: Any) -> Any:
            if isinstance(value, Stored):
                return self.frozen(f"{op} {name}", value)
            if isinstance(value, np.ndarray):
                buffer = place(f"{op} {name}", value.shape, value.dtype, value)
                (outputs if op == "apply" and name == "y" else inputs).append((buffer, value))
                return buffer.array
            if isinstance(value, list | tuple):
                return [moved(f"{name} {i}", part) for i, part in enumerate(value)]
            return value

        try:
            result = call(**{name: moved(name, value) for name, value in arguments.items()})
            self._check(op, inputs, [*self._outputs, *(b for b, _ in outputs)])
        finally:
            self._outputs = None
        for buffer, original in outputs:
            original[...] = buffer.array
            result = original
        return tuple(_plain(r) for r in result) if isinstance(result, tuple) else _plain(result)

    def _check(self, op: str, inputs: Sequence[tuple[Buffer, NDArray[Any]]], outputs: Iterable[Buffer]) -> None:
        for buffer in (*(b for b, _ in inputs), *outputs):
            how = buffer.overrun()
            if how:
                self._report("write-outside", f"{how} the buffer {buffer.name}")
        for buffer, original in inputs:
            now, was = (np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in (buffer.array, original))
            if not np.array_equal(now, was):
                changed = int((now != was).sum())
                self._report("changed-input", f"changed {changed} bytes of its input {buffer.name}")

    def drafter(self, config: dict[str, object], weights: Mapping[str, Stored | NDArray[np.int64]]) -> Drafter:
        placed = {role: self.frozen(role, w) if isinstance(w, Stored) else w for role, w in weights.items()}
        return super().drafter(config, placed)


def _plain(value: Any) -> Any:
    return np.array(value) if isinstance(value, np.ndarray) else value


def _override(op: str) -> Callable[..., Any]:
    plain = getattr(Context, op)
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def method(self: GuardedContext, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, *args, **kwargs)
        arguments = dict(list(bound.arguments.items())[1:])
        return self.guarded(op, functools.partial(plain, self), arguments)

    return method


for _op in (*OPERATIONS, "apply"):
    setattr(GuardedContext, _op, _override(_op))
