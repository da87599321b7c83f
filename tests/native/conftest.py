"""The built CPU library, opened once, and a place to compile small C libraries."""

from __future__ import annotations

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


@pytest.fixture(scope="session")
def ctx(cpu: native.Library) -> Iterator[native.Context]:
    with cpu.context(threads=2) as context:
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
