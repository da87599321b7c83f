"""The translation of Metal sources: kernels and what they are bound to, threadgroup variables, address spaces, and what is refused."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import native
from native.emu.translate_metal import preprocess, translate

EMU = Path(native.__file__).parent / "emu"
PARAMETERS = "device const float* x [[buffer(0)]], device float* y [[buffer(1)]], uint t [[thread_position_in_grid]]"


def body(text: str) -> str:
    made = translate(text, "x.metal")
    assert made.startswith('#include "metal_emu.hpp"\n')
    return made


def test_a_kernel_is_entered_with_what_its_parameters_are_bound_to() -> None:
    made = body(f"kernel void copy({PARAMETERS}) {{ y[t] = x[t]; }}")
    assert "static void copy( const float* x ,  float* y , uint t ) { y[t] = x[t]; }" in made
    bound = "{::emu::Slot::Buffer, 0}, {::emu::Slot::Buffer, 1}, {::emu::Slot::ThreadInGrid, 0}"
    assert f'emu_kernel_0("copy", copy, {{{bound}}});' in made


@pytest.mark.parametrize(
    "instance",
    [
        'template [[host_name("copy" "_2")]] [[kernel]] decltype(copy<A, 2>) copy<A, 2>;',
        'template [[host_name("copy_2")]] kernel void copy<A, 2>(device A* x [[buffer(0)]]);',
        'template [[host_name("copy_2")]] kernel copy_t copy<A, 2>;',
    ],
)
@pytest.mark.parametrize("mark", ["kernel", "[[kernel]]"])
def test_an_instance_of_a_template_is_entered_under_its_host_name(instance: str, mark: str) -> None:
    made = body(f"template <class T, int N>\n{mark} void copy(device T* x [[buffer(0)]]) {{}}\n{instance}\n")
    assert 'emu_kernel_0("copy_2", copy<A,2>, {{::emu::Slot::Buffer, 0}});' in made
    assert "host_name" not in made and made.count("emu_kernel_") == 1


def test_threadgroup_variables_become_storage_and_pointers_do_not() -> None:
    pointer = "threadgroup const float4* q = (threadgroup const float4*)p;"
    made = body(f"void f(threadgroup float* p) {{ threadgroup float tile[4 * 8][33]; {pointer} }}")
    assert "typedef float emu_type_tile[4*8][33];" in made and 'emu_tile{"tile", "x.metal", 1}' in made
    assert "void f( float* p)" in made and " const float4* q = ( const float4*)p;" in made


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("constant constexpr int k = 4;", " constexpr int k = 4;"),
        ("constexpr constant int k = 4;", "constexpr  int k = 4;"),
        ("void f(constant Sizes& n);", "void f(const Sizes& n);"),
        ("a[b[i]] = x[[flat]];", "a[b[i]] = x;"),
    ],
)
def test_address_spaces_and_attributes_go(text: str, made: str) -> None:
    assert made in body(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("\nkernel void k(device float* x) {}", "x.metal:2: the parameter 'device float* x' of a kernel needs one attribute"),
        ("kernel void k(uint x [[sample_id]]) {}", "the attribute [[sample_id]] is not emulated; known: buffer"),
        ("kernel float k() {}", "expected `kernel void name"),
        ("template <class T> kernel void k() {}\ntemplate kernel void k<int>();", "x.metal:2: an explicit instantiation without"),
        ('template [[host_name("a")]] [[kernel]] decltype(f<int>) f<int>;', "f is instantiated, but no kernel"),
        ('#line 7 "other.h"\nkernel void k(int x) {}', "other.h:7: the parameter 'int x'"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(text: str, says: str) -> None:
    from native.emu.translate import TranslationError

    with pytest.raises(TranslationError) as raised:
        translate(text, "x.metal")
    assert says in str(raised.value)


@pytest.mark.skipif(not shutil.which("c++"), reason="no C++ compiler")
def test_macros_and_own_headers_are_expanded_and_lines_keep_their_names(tmp_path: Path) -> None:
    (tmp_path / "sizes.h").write_text("#pragma once\nstruct Sizes { int n; };\n")
    source = tmp_path / "k.metal"
    source.write_text('#include <metal_stdlib>\n#include "sizes.h"\n#define P constant Sizes& n [[buffer(0)]]\n\nkernel void k(P) {}\n')
    made = translate(preprocess(source, tmp_path, "c++"), "k.metal")
    assert '#line 1 "sizes.h"' in made and "static void k(const Sizes& n )" in made
    assert "metal_headers" not in made


@pytest.mark.skipif(not shutil.which("c++"), reason="no C++ compiler")
def test_a_source_that_cannot_be_read_is_one_line_and_status_2(tmp_path: Path) -> None:
    source = tmp_path / "k.metal"
    source.write_text("#include <metal_tensor>\n")
    command = [sys.executable, "-m", "emu.translate_metal", str(source), "--root", str(tmp_path), "--compiler", "c++", "--out", "x"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=EMU.parent)
    assert done.returncode == 2 and "metal_tensor" in done.stderr and "Traceback" not in done.stderr
