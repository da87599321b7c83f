"""The built CPU library, opened once, and a place to compile small C libraries."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import native
from native.sources import PACKAGE


@pytest.fixture(scope="session")
def cpu() -> native.Library:
    return native.open_library("cpu")


def kernel_sets() -> list[str]:
    """The instruction sets the kernels are compiled for and this processor has."""
    return ["x86-64", "x86-64-v3"] if platform.machine() in ("x86_64", "AMD64") else [platform.machine()]


@pytest.fixture(scope="session", params=kernel_sets())
def ctx(cpu: native.Library, request: pytest.FixtureRequest) -> Iterator[native.Context]:
    try:
        context = cpu.context(2, isa=request.param)
    except native.NativeError as error:
        pytest.skip(error.text)
    with context:
        yield context


@pytest.fixture
def compile_c(tmp_path: Path) -> Callable[..., Path]:
    """Compile C text against dlab.h into a shared library."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")

    def build(text: str, *flags: str) -> Path:
        source, library = tmp_path / "library.c", tmp_path / "library.so"
        source.write_text(text)
        command = [compiler, "-shared", "-fPIC", f"-I{PACKAGE / 'include'}", *flags, str(source), "-o", str(library), "-lm"]
        subprocess.run(command, check=True, capture_output=True, text=True)
        return library

    return build
