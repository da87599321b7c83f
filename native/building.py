"""Building the libraries that are not built at installation: the emulated ones on first use, those of devices where they are asked for.

    python -m native.building cuda-emu | cuda | metal-emu | metal
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from native import sources
from native.errors import NativeError

TARGETS = {"cuda-emu": "DLAB_EMULATE", "cuda": "DLAB_CUDA", "metal-emu": "DLAB_EMULATE", "metal": "DLAB_METAL"}
"""Libraries built by this module, and the CMake option of each."""
EMULATED = tuple(name for name in TARGETS if name.endswith("-emu"))
"""Those that need no device, so that they are built on first use."""


def ensure(name: str) -> Path:
    """The library ``name`` built from the present sources: the installed one if it is, else built now (a minute). `NativeError` says
    what is missing or what the compiler said."""
    if name not in TARGETS:
        return sources.library_path(name)
    if is_built(name):
        return _installed(name)
    if name == "metal" and sys.platform != "darwin":
        raise NativeError("LOAD", "the Metal library is built on macOS; its sources run anywhere as metal-emu (make native-metal-emu)")
    print(f"building the library {name} (once, about a minute)", file=sys.stderr)
    want = sources.source_hash(name)
    built = build(name, f"dlab_{name.replace('-', '_')}", [])
    path = _installed(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Whole or not at all: another process may load it.
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    shutil.copy2(built, temporary)
    temporary.replace(path)
    path.with_suffix(".sources").write_text(want)
    return path


def is_built(name: str) -> bool:
    """Whether the library ``name`` lies where it is installed, built from the present sources; True of one that is not built here."""
    if name not in TARGETS:
        return True
    path = _installed(name)
    stamp = path.with_suffix(".sources")
    return path.is_file() and stamp.is_file() and stamp.read_text() == sources.source_hash(name)


def _installed(name: str) -> Path:
    return sources.library_folder() / sources.file_name(name)


def build(name: str, target: str, more: list[str]) -> Path:
    """Builds a CMake target of the configuration for the library ``name``, with further options; returns its file."""
    cmake = _tool("cmake")
    folder = sources.PACKAGE.parent / "build" / ("native-emulated" if name in EMULATED else f"native-{name}")
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}"]
    options = [f"-D{TARGETS[name]}=ON", "-DCMAKE_BUILD_TYPE=Release", f"-DPython3_EXECUTABLE={sys.executable}"]
    if name == "cuda":
        options.append(f"-DCMAKE_CUDA_COMPILER={_nvcc()}")
    configure = [cmake, "-S", str(sources.PACKAGE), "-B", str(folder), *generator, *options, *more]
    with _alone(folder):
        for command in (configure, [cmake, "--build", str(folder), "--target", target]):
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
            if done.returncode:
                tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
                raise NativeError("LOAD", f"{target} cannot be built ({' '.join(command[:2])}):\n{tail}")
    return next(folder.rglob(f"lib{target}.*"))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time builds in a folder; the others wait for it."""
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _tool(name: str) -> str:
    found = shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if found is None:
        raise NativeError("LOAD", f"{name} is not here, and the library is not built: pip install {name}")
    return found


def nvcc() -> str | None:
    """The CUDA compiler: of a toolkit on the PATH, or of the wheels nvidia-cuda-nvcc, -runtime and -cccl in this environment."""
    if found := shutil.which("nvcc"):
        return found
    folders = dict.fromkeys(sysconfig.get_path(key) for key in ("purelib", "platlib"))
    return next((str(path) for folder in folders for path in sorted(Path(folder).glob("nvidia/*/bin/nvcc"))), None)


def _nvcc() -> str:
    if (found := nvcc()) is None:
        wheels = "nvidia-cuda-nvcc nvidia-cuda-runtime nvidia-cuda-cccl"
        raise NativeError("LOAD", f"nvcc is not here: pip install {wheels}, or put the one of a CUDA toolkit on the PATH")
    return found


def main(names: list[str]) -> int:
    """Entry point of ``python -m native.building``."""
    try:
        for name in names:
            print(ensure(name))
    except NativeError as error:
        print(error.text, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
