"""Libraries built with AddressSanitizer and UndefinedBehaviourSanitizer, under their own tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from native.sources import PACKAGE, file_name

pytestmark = pytest.mark.slow
FLAGS = "-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined"
# Whatever asks for a library by its name is given the one in the first argument.
REDIRECT = """
import sys, pathlib, native.building, native.sources
native.sources.library_path = native.building.ensure = lambda name: pathlib.Path(sys.argv[1])
"""
SUITE = "import pytest; sys.exit(pytest.main(['-q', '-x', '-s', '-p', 'no:cacheprovider', '-m', 'not slow', *sys.argv[2:]]))\n"
TOO_SHORT = """
import numpy as np, native
from native.tensors import ffi, view
short, w = np.ones((4, 64), np.float32), native.Stored.of(np.ones((3, 64), np.float32))
x, y = view(short), view(np.zeros((5, 3), np.float32))
x.shape[0] = 5
with native.open_library(sys.argv[1]).context() as ctx:
    ctx._calls.call("linear", x, w.matrix(), ffi.NULL, y)
"""
OVERFLOW = """
import ctypes
ctypes.CDLL(sys.argv[1]).after(2**31 - 1)
"""


@dataclass(frozen=True)
class Sanitized:
    """A library: options of its build beside the flags, and the test files it must pass."""

    options: tuple[str, ...]
    folder: str
    files: tuple[str, ...]


EMULATED = ("-DDLAB_EMULATE=ON", f"-DPython3_EXECUTABLE={sys.executable}")
DEVICE_FILES = ("test_operations", "test_named", "test_fused", "test_heads")
LIBRARIES = {
    "cpu": Sanitized((), "native", ("test_named_ops", "test_ops", "test_misuse", "test_drafter", "test_drafter_misuse", "test_invariance")),
    "cuda-emu": Sanitized(EMULATED, "cuda", (*DEVICE_FILES, "test_matrix_units")),
    "metal-emu": Sanitized(EMULATED, "metal", (*DEVICE_FILES, "test_simdgroup")),
}
RUNS = [(name, file) for name, library in LIBRARIES.items() for file in library.files]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The library of a name, built by its own CMake rules."""
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if cmake is None or sys.platform != "linux":
        pytest.skip("needs cmake and a Linux tool chain with sanitizers")
    made: dict[str, Path] = {}

    def build(name: str) -> Path:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            options = [*LIBRARIES[name].options, "-DCMAKE_BUILD_TYPE=Debug", f"-DCMAKE_CXX_FLAGS={FLAGS}"]
            target = f"dlab_{name.replace('-', '_')}"
            for command in (
                [cmake, "-S", str(PACKAGE), "-B", str(folder), *options],
                [cmake, "--build", str(folder), "--target", target, "-j", "2"],
            ):
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
            made[name] = next(folder.glob(f"**/{file_name(name)}"))
        return made[name]

    return build


def run(library: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The script in a process of its own, with the sanitizer's runtime loaded first, as a library built with it needs."""
    # The C++ library too: the sanitizer looks for what throws exceptions when it starts.
    ask = [["g++", f"-print-file-name={name}"] for name in ("libasan.so", "libstdc++.so.6")]
    first = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() for command in ask]
    options = {
        "LD_PRELOAD": ":".join(first),
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
    }
    command = [sys.executable, "-c", REDIRECT + script, str(library), *arguments]
    return subprocess.run(command, cwd=PACKAGE.parent, env=os.environ | options, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("name", "file"), RUNS)
def test_nothing_is_read_or_written_outside(built: Callable[[str], Path], name: str, file: str) -> None:
    done = run(built(name), SUITE, f"tests/{LIBRARIES[name].folder}/{file}.py")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.parametrize("name", LIBRARIES)
def test_an_operand_that_is_shorter_than_it_says_is_seen(built: Callable[[str], Path], name: str) -> None:
    done = run(built(name), TOO_SHORT)
    assert done.returncode != 0 and "heap-buffer-overflow" in done.stderr and "dlab_linear" in done.stderr


def test_undefined_behaviour_ends_the_process(tmp_path: Path) -> None:
    """The libraries refuse what would lead to any, so one of a line has it."""
    source, library = tmp_path / "after.c", tmp_path / "after.so"
    source.write_text("int after(int n) { return n + 1; }\n")
    subprocess.run(["gcc", *FLAGS.split(), "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    done = run(library, OVERFLOW)
    assert done.returncode != 0 and "signed integer overflow" in done.stderr
