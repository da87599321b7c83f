"""The CPU library built with AddressSanitizer and UndefinedBehaviourSanitizer, under the tests of its operations and its drafter."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from native.sources import PACKAGE

pytestmark = pytest.mark.slow
ROOT = PACKAGE.parent
FLAGS = "-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined"
REDIRECT = "import sys, pathlib, native.sources as s; s.library_path = lambda name: pathlib.Path(sys.argv[1])\n"
SUITE = "import pytest; sys.exit(pytest.main(['-q', '-x', '-s', '-p', 'no:cacheprovider', '-m', 'not slow', *sys.argv[2:]]))\n"
TOO_SHORT = """
import numpy as np, native
from native.tensors import ffi, view
short, out = np.ones((4, 64), np.float32), np.ones((5, 64), np.float32)
x, y = view(short), view(out)
x.shape[0] = 5
with native.open_library("cpu").context(1) as ctx:
    ctx._calls.call("apply", b"silu", x, 1, ffi.new("double[]", [1.0]), 1, y)
"""


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, built by its own CMake rules."""
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if cmake is None or sys.platform != "linux":
        pytest.skip("needs cmake and a Linux tool chain with sanitizers")
    folder = tmp_path_factory.mktemp("sanitized")
    configure = [cmake, "-S", str(PACKAGE), "-B", str(folder), "-DCMAKE_BUILD_TYPE=Debug", f"-DCMAKE_CXX_FLAGS={FLAGS}"]
    for command in (configure, [cmake, "--build", str(folder), "--target", "dlab_cpu", "-j", "2"]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return next(folder.glob("**/libdlab_cpu.so"))


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
    return subprocess.run(command, cwd=ROOT, env=os.environ | options, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("file", ["test_named_ops", "test_ops", "test_misuse", "test_drafter", "test_drafter_misuse", "test_invariance"])
def test_nothing_is_read_or_written_outside(sanitized: Path, file: str) -> None:
    done = run(sanitized, SUITE, f"tests/native/{file}.py")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_an_operand_that_is_shorter_than_it_says_is_seen(sanitized: Path) -> None:
    done = run(sanitized, TOO_SHORT)
    assert done.returncode != 0 and "heap-buffer-overflow" in done.stderr and "silu" in done.stderr
