"""The project's own libraries: where they are installed and which sources they must have been built from."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import native
from native.errors import NativeError

PACKAGE = Path(__file__).parent
HEADER = PACKAGE / "include" / "dlab.h"
SUFFIXES = (".cpp", ".hpp", ".h", ".cu", ".cuh", ".metal", ".mm", ".py", ".cmake")
BUILD_RULES = "CMakeLists.txt"

FOLDERS: dict[str, tuple[str, ...]] = {
    "cpu": ("cpu",),
    "cuda": ("cuda", "gpu", "cpu"),
    "cuda-emu": ("cuda", "emu", "gpu", "cpu"),
    "metal": ("metal", "gpu", "cpu"),
    "metal-emu": ("metal", "emu", "gpu", "cpu"),
}
"""Source folders of each library, by the name `native.open_library` takes; a library calls itself ``dlab-<name>``."""


def source_hash(name: str) -> str:
    """SHA-256 over the build rules, the header and the sources of library ``name``, as `native/CMakeLists.txt` computes it at build time.

    The hash of the text ``<path>:<sha256>\\n`` for every file, in byte order of its path below the package.
    """
    files = [PACKAGE / "CMakeLists.txt", HEADER]
    for folder in FOLDERS[name]:
        files += [f for f in (PACKAGE / folder).glob("*") if f.suffix in SUFFIXES or f.name == BUILD_RULES]
    by_path = {f.relative_to(PACKAGE).as_posix(): f for f in files}
    lines = [f"{path}:{hashlib.sha256(by_path[path].read_bytes()).hexdigest()}\n" for path in sorted(by_path)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def library_path(name: str) -> Path:
    """The installed shared library ``name``; `NativeError` says where it was looked for and how to build it."""
    if name not in FOLDERS:
        raise NativeError("LOAD", f"library {name!r} is unknown: expected one of {', '.join(FOLDERS)}, or the path of a shared library")
    file = file_name(name)
    looked = list(dict.fromkeys(folder / file for folder in _library_folders()))
    for path in looked:
        if path.is_file():
            return path
    places = ", ".join(str(p.parent) for p in looked)
    make = "make native" if name == "cpu" else f"make native-{name}"
    raise NativeError("LOAD", f"library {name!r} is not built: {file} is not in {places}; build it with `{make}`")


def file_name(name: str) -> str:
    """File of the library ``name``."""
    return f"libdlab_{name.replace('-', '_')}{'.dylib' if sys.platform == 'darwin' else '.so'}"


def library_folder() -> Path:
    """Where libraries are installed: beside the CPU library, or where it would be."""
    folders = list(_library_folders())
    return next((f for f in folders if (f / file_name("cpu")).is_file()), folders[0])


def _library_folders() -> Iterator[Path]:
    """Beside the package, as a wheel installs it; in site-packages for an editable install, whose package lies elsewhere."""
    for folder in native.__path__:
        yield Path(folder) / "lib"
    for key in ("platlib", "purelib"):
        yield Path(sysconfig.get_path(key)) / "native" / "lib"
