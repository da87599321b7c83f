"""One header for C, C++ and cffi."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import gguf
import pytest

import native
from native.sources import HEADER
from native.tensors import ffi


@pytest.mark.parametrize(("compiler", "standard", "suffix"), [("cc", "c11", "c"), ("c++", "c++17", "cpp")])
def test_the_header_compiles_alone_without_a_warning(tmp_path: Path, compiler: str, standard: str, suffix: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    source = tmp_path / f"unit.{suffix}"
    source.write_text('#include "dlab.h"\nint unit_is_not_empty(void);\n')
    flags = [f"-std={standard}", "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only"]
    done = subprocess.run([compiler, *flags, f"-I{HEADER.parent}", str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_dtype_numbers_are_the_gguf_type_ids() -> None:
    for name, number in ffi.typeof("enum dlab_dtype").relements.items():
        assert gguf.GGMLQuantizationType[name.removeprefix("DLAB_")] == number


def test_the_dtype_table_agrees_with_the_gguf_block_sizes() -> None:
    for name, kind in native.DTYPES.items():
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind.id)] == (kind.block, kind.bytes), name


def test_the_library_declares_every_function_of_the_header(cpu: native.Library) -> None:
    text = HEADER.read_text().split("/*@cdef-begin*/")[1]
    declared = {part.split("(")[0].split()[-1].lstrip("*") for part in text.split("DLAB_API")[1:]}
    assert len(declared) > 25
    missing = {name for name in declared if not hasattr(cpu._handle, name)}
    assert not missing
