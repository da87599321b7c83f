"""The translation of CUDA sources: what is rewritten, what is left alone, and that lines stay where they are."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import native


@pytest.fixture(scope="module")
def translator() -> ModuleType:
    path = Path(native.__file__).parent / "emu" / "translate.py"
    spec = importlib.util.spec_from_file_location("translate", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def body(translator: ModuleType, text: str) -> str:
    made: str = translator.translate(text, "x.cu")
    head = '#include "cuda_emu.hpp"\n#line 1 "x.cu"\n'
    assert made.startswith(head)
    assert made.count("\n") == text.count("\n") + head.count("\n")
    return made[len(head) :]


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("k<<<1, 2>>>(a);", "k"),
        ("k <<< dim3(1, 2), 32, 0, s >>> (a, f(b, c));", "k"),
        ("ns::k<16><<<1, 2>>>();", "ns::k<16>"),
        ("k<T, (4 > 3), 2><<<g(1), b>>>(x);", "k<T, (4 > 3), 2>"),
        ("::k<<<1,\n2>>>(a,\nb);", "::k"),
    ],
)
def test_a_launch_becomes_a_call(translator: ModuleType, text: str, label: str) -> None:
    made = body(translator, text)
    assert f'::emu::launch_kernel("{label}", {{}}, ::emu::config(' in made
    assert "<<<" not in made and ">>>" not in made


def test_shared_variables_become_storage_of_the_block(translator: ModuleType) -> None:
    made = body(translator, "__shared__ __align__(16) float tile[M][33], sum;")
    assert "typedef float emu_type_tile[M][33];" in made and "typedef float emu_type_sum;" in made
    assert 'emu_tile{"tile", "x.cu", 1}' in made
    dynamic = body(translator, "extern __shared__ unsigned char bytes[];")
    assert "unsigned char* const bytes" in dynamic and "extern" not in dynamic
    typed = body(translator, "__shared__ Pair<int, 4> p[2];")
    assert "typedef Pair < int , 4 > emu_type_p[2];" in typed


@pytest.mark.parametrize(
    "text", ['"k<<<1, 2>>>(a)"', "// k<<<1, 2>>>(a)\n", "/* __shared__ float x; */", "a << b; c >> d;", 'R"(k<<<1>>>(a))"']
)
def test_texts_and_comments_and_shifts_are_left_alone(translator: ModuleType, text: str) -> None:
    assert body(translator, text) == text


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("\nk<<<1, 2>>>;", "x.cu:2: expected the arguments"),
        ("k<<<1, 2(a);", "<<< without >>>"),
        ("5<<<1, 2>>>(a);", "expected the name of a kernel"),
        ("k<<<1, 2>>>(a;", "is never closed"),
        ("__shared__ float", "without a semicolon"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_line(translator: ModuleType, text: str, what: str) -> None:
    with pytest.raises(translator.TranslationError, match=what):
        translator.translate(text, "x.cu")
