"""Calling into a library: statuses become exceptions, dump callbacks become Python callables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from native.errors import NativeError
from native.tensors import ffi, read_tensor

DumpCallback = Callable[[str, int, NDArray[Any], str], None]


class Calls:
    """One open context: its pointer, its dump callback and the translation of its errors.

    An exception raised by the dump callback ends the call that caused it and is raised there, with its own traceback. ``after``, where
    set, is told of every call that returned.
    """

    def __init__(self, handle: Any, options: dict[str, str]) -> None:
        self.handle = handle
        self.raised: BaseException | None = None
        self.after: Callable[[str], None] | None = None
        self._dump: Any = None
        self._statuses = dict(ffi.typeof("enum dlab_status").elements)
        out = ffi.new("dlab_ctx**")
        self.pointer: Any = None
        text = "".join(f"{key}={value}\n" for key, value in options.items())
        self.check(handle.dlab_open(text.encode(), out), "open")
        self.pointer = out[0]

    def check(self, status: int, what: str) -> None:
        """Raises what a dump callback raised, else `NativeError` with the library's text, unless ``status`` is OK."""
        raised, self.raised = self.raised, None
        if self.after is not None:
            self.after(what)
        if status == 0:
            return
        if raised is not None:
            raise raised
        name = self._statuses.get(status, f"status {status}").removeprefix("DLAB_E_")
        text = self.handle.dlab_last_error(self.pointer or ffi.NULL)
        raise NativeError(name, ffi.string(text).decode("utf-8", "replace") if text != ffi.NULL else f"{what} failed")

    def function(self, name: str) -> Any:
        """The entry point ``dlab_<name>`` of an open context; `NativeError` when the library does not have it."""
        if self.pointer is None:
            raise NativeError("STATE", "the context is closed")
        function = getattr(self.handle, f"dlab_{name}", None)
        if function is None:
            raise NativeError("UNSUPPORTED", f"the library does not implement dlab_{name}")
        return function

    def call(self, name: str, *arguments: Any) -> None:
        self.check(self.function(name)(self.pointer, *arguments), name)

    def set_dump(self, callback: DumpCallback | None, patterns: str) -> None:
        if callback is None:
            self.call("set_dump", ffi.NULL, ffi.NULL, b"")
            self._dump = None
            return

        def record(_: Any, dump: Any) -> int:
            try:
                array, dtype = read_tensor(dump.tensor)
                callback(ffi.string(dump.stage).decode(), int(dump.row0), array, dtype)
            except BaseException as error:  # even KeyboardInterrupt: it cannot pass through the C frames, so it waits in `raised`
                self.raised = error
                return 1
            return 0

        closure = ffi.callback("dlab_dump_fn", record, error=1)
        self.call("set_dump", closure, ffi.NULL, patterns.encode())
        self._dump = closure

    def close(self) -> None:
        if self.pointer is not None:
            self.handle.dlab_close(self.pointer)
            self.pointer = None
