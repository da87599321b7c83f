"""The emulated library built with AddressSanitizer and UndefinedBehaviourSanitizer, under its own tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from native.sources import PACKAGE
from tests.native.test_sanitizers import FLAGS, ROOT

pytestmark = pytest.mark.slow
REDIRECT = "import sys, pathlib, native.building as b; b.ensure = lambda name: pathlib.Path(sys.argv[1])\n"
SUITE = "import pytest; sys.exit(pytest.main(['-q', '-x', '-s', '-p', 'no:cacheprovider', '-m', 'not slow', *sys.argv[2:]]))\n"
TOO_SHORT = """
import numpy as np, native
from native.tensors import view
short, w = np.ones((4, 64), np.float32), native.Stored.of(np.ones((3, 64), np.float32))
x, y = view(short), view(np.zeros((5, 3), np.float32))
x.shape[0] = 5
with native.open_library(sys.argv[1]).context() as ctx:
    ctx._calls.call("linear", x, w.matrix(), native.tensors.ffi.NULL, y)
"""


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, built by its own CMake rules."""
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if cmake is None or sys.platform != "linux":
        pytest.skip("needs cmake and a Linux tool chain with sanitizers")
    folder = tmp_path_factory.mktemp("sanitized")
    options = ["-DDLAB_EMULATE=ON", "-DCMAKE_BUILD_TYPE=Debug", f"-DCMAKE_CXX_FLAGS={FLAGS}", f"-DPython3_EXECUTABLE={sys.executable}"]
    for command in (
        [cmake, "-S", str(PACKAGE), "-B", str(folder), *options],
        [cmake, "--build", str(folder), "--target", "dlab_cuda_emu", "-j", "2"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return next(folder.glob("**/libdlab_cuda_emu.so"))


def run(library: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The script in a process of its own, with the sanitizer's runtime loaded first."""
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


@pytest.mark.parametrize("file", ["test_operations", "test_named", "test_fused", "test_heads"])
def test_nothing_is_read_or_written_outside(sanitized: Path, file: str) -> None:
    done = run(sanitized, SUITE, f"tests/cuda/{file}.py")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_an_operand_that_is_shorter_than_it_says_is_seen(sanitized: Path) -> None:
    done = run(sanitized, TOO_SHORT)
    assert done.returncode != 0 and "heap-buffer-overflow" in done.stderr
