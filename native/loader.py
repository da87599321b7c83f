"""Opening a shared library: every check that stands between a file and a call (`dlab.h`, handshake)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from cffi import FFI

from native import sources
from native.errors import NativeError
from native.library import FUSED, OPERATIONS, Info, Library, applied
from native.tensors import ffi

HANDSHAKE = ("get_info", "layout", "open", "close", "last_error")
CAPABILITIES = {1: "ops", 2: "fused", 4: "dumps", 8: "device", 16: "emulated"}


def open_library(name_or_path: str | Path) -> Library:
    """Load a library by name (``cpu`` ...) or from the path of a shared library.

    Refuses, with `NativeError`, a file that is missing or does not load, misses symbols it must have, speaks another ABI, lays out a
    struct differently, was built from other sources (our own libraries only), or changes the floating-point mode of the thread.
    """
    text = str(name_or_path)
    is_path = isinstance(name_or_path, Path) or "/" in text or text.endswith((".so", ".dylib"))
    path = Path(text).expanduser() if is_path else sources.library_path(text)
    if not path.is_file():
        raise NativeError("LOAD", f"{path}: there is no such file")
    with _guarded_floating_point(path):
        handle = _dlopen(path)
    try:
        info = _handshake(handle, path)
    except BaseException:
        ffi.dlclose(handle)
        raise
    return Library(handle, info)


def _dlopen(path: Path) -> Any:
    try:
        return ffi.dlopen(str(path.resolve()))
    except OSError as error:
        reason = str(error).partition(".  Additionally")[0]  # cffi adds a search by name, which is not what was asked for
        raise NativeError("LOAD", f"{path}: cannot be loaded: {reason}") from None


def _handshake(handle: Any, path: Path) -> Info:
    _require_symbols(handle, path, HANDSHAKE)
    info = _read_info(handle, path)
    if info.abi[0] != handle.DLAB_ABI_MAJOR:
        raise NativeError("LOAD", f"{path}: speaks ABI {info.abi[0]}.{info.abi[1]}, expected {handle.DLAB_ABI_MAJOR}.x")
    _check_layout(handle, path)
    if "fused" in info.flags:
        _require_symbols(handle, path, FUSED)
    if "dumps" in info.flags:
        _require_symbols(handle, path, ("set_dump",))
    if "ops" in info.flags and not any(hasattr(handle, f"dlab_{op}") for op in OPERATIONS) and not applied(handle):
        raise NativeError("LOAD", f"{path}: declares operations but has none of {', '.join(OPERATIONS)}")
    if not {"ops", "fused"} & info.flags:
        raise NativeError("LOAD", f"{path}: declares neither operations nor a fused drafter")
    _check_sources(info)
    return info


def _require_symbols(handle: Any, path: Path, names: tuple[str, ...]) -> None:
    missing = [f"dlab_{name}" for name in names if not hasattr(handle, f"dlab_{name}")]
    if missing:
        raise NativeError("LOAD", f"{path}: required symbols are missing: {', '.join(missing)}")


def _read_info(handle: Any, path: Path) -> Info:
    raw = ffi.new("dlab_info*")
    raw.struct_size = ffi.sizeof("dlab_info")
    if handle.dlab_get_info(raw) != 0:
        raise NativeError("LOAD", f"{path}: dlab_get_info failed")

    def text(pointer: Any) -> str:
        return "" if pointer == ffi.NULL else ffi.string(pointer).decode("utf-8", "replace")

    pairs = (part.partition("=") for part in text(raw.arithmetic).split(",") if part)
    return Info(
        name=text(raw.name),
        version=text(raw.version),
        abi=(raw.abi_major, raw.abi_minor),
        flags=frozenset(name for bit, name in CAPABILITIES.items() if raw.flags & bit),
        arithmetic={key.strip(): value.strip() for key, _, value in pairs},
        source_hash=text(raw.source_hash),
        path=path,
    )


def _check_layout(handle: Any, path: Path) -> None:
    size, offset = ffi.new("int64_t*"), ffi.new("int64_t*")
    for struct in ("dlab_tensor", "dlab_named_tensor", "dlab_dump", "dlab_info"):
        for field, _ in ffi.typeof(struct).fields:
            want = (ffi.sizeof(struct), ffi.offsetof(struct, field))
            if handle.dlab_layout(struct.encode(), field.encode(), size, offset) != 0:
                raise NativeError("LOAD", f"{path}: dlab_layout does not know {struct}.{field}")
            if (size[0], offset[0]) != want:
                raise NativeError(
                    "LOAD",
                    f"{path}: {struct} has {size[0]} bytes with {field} at {offset[0]}, expected {want[0]} bytes with {field} at {want[1]};"
                    " build it against this dlab.h",
                )


def _check_sources(info: Info) -> None:
    name = info.name.removeprefix("dlab-")
    if info.name == name or name not in sources.FOLDERS:
        return
    want = sources.source_hash(name)
    if info.source_hash != want:
        found = info.source_hash[:12] or "no hash"
        make = "make native" if name == "cpu" else f"make native-{name}"
        raise NativeError("LOAD", f"{info.path}: built from other sources ({found}, the package has {want[:12]}); rebuild it with `{make}`")


@contextmanager
def _guarded_floating_point(path: Path) -> Iterator[None]:
    """Refuses what happens inside if it makes subnormal numbers vanish, as a library linked with -ffast-math does, and undoes it."""
    if not _subnormals_work():
        raise NativeError("LOAD", f"subnormal arithmetic is already broken in this thread, before {path} is loaded; start a fresh process")
    libc = FFI()
    libc.cdef("int fegetenv(void*); int fesetenv(const void*);")
    process = libc.dlopen(None)
    saved = libc.new("char[512]")
    process.fegetenv(saved)
    yield
    if not _subnormals_work():
        process.fesetenv(saved)
        raise NativeError(
            "LOAD", f"{path}: loading it made subnormal numbers vanish (linked with -ffast-math or -Ofast?); build it without these flags"
        )


def _subnormals_work() -> bool:
    double = np.array([2.0**-1060]) * 0.5
    single = np.array([2.0**-140], np.float32) * np.float32(0.5)
    return bool(double[0] > 0.0 and single[0] > np.float32(0.0))
