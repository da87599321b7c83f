"""A library is used only after it has shown that it is what it says."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import native
from native import sources
from native.sources import PACKAGE

Compile = Callable[..., Path]
ENGINE = PACKAGE / "example" / "engine.c"


def refusal(path: Path) -> str:
    with pytest.raises(native.NativeError) as caught:
        native.open_library(path)
    assert caught.value.status == "LOAD"
    assert str(path) in caught.value.text
    return caught.value.text


def test_the_cpu_library_says_what_it_is(cpu: native.Library) -> None:
    assert cpu.info.name == "dlab-cpu"
    assert cpu.info.abi == (1, 2)
    assert cpu.info.flags == {"ops", "fused", "dumps"}
    assert cpu.info.arithmetic["order"] == "blocked:256"
    assert cpu.info.source_hash == sources.source_hash("cpu")
    assert "linear" in cpu.ops


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(native.NativeError, match="cpu, cuda"):
        native.open_library("gpu")


def test_a_library_that_was_not_built_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sources.FOLDERS, "never-built", ("never",))
    with pytest.raises(native.NativeError, match="make native"):
        native.open_library("never-built")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "nothing.so")


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.so"
    path.write_text("not an ELF file")
    assert "cannot be loaded" in refusal(path)


def test_missing_symbols_are_listed(compile_c: Compile) -> None:
    text = refusal(compile_c("int dlab_open(void) { return 0; }"))
    assert "dlab_get_info, dlab_layout, dlab_close, dlab_last_error" in text
    assert "dlab_open" not in text


def test_a_declared_capability_must_be_there(compile_c: Compile) -> None:
    text = refusal(compile_c(ENGINE.read_text().replace("DLAB_CAP_OPS", "DLAB_CAP_OPS | DLAB_CAP_FUSED")))
    assert "dlab_drafter_create" in text


def test_another_abi_major_is_refused(compile_c: Compile) -> None:
    assert "ABI 2.2" in refusal(compile_c(ENGINE.read_text().replace("DLAB_ABI_MAJOR", "2")))


def test_a_library_of_abi_1_0_still_loads(compile_c: Compile) -> None:
    library = native.open_library(compile_c(ENGINE.read_text().replace("DLAB_ABI_MINOR", "0")))
    assert library.info.abi == (1, 0) and library.ops == {"linear", "rms_norm"}
    with library.context() as context:
        assert context.linear(np.ones((1, 2), np.float32), native.Stored.of(np.ones((3, 2)))).tolist() == [[2, 2, 2]]
        with pytest.raises(native.NativeError, match="the library has no operation silu") as caught:
            context.apply("silu", [np.ones((1, 2), np.float32)], [1.0], np.empty((1, 2), np.float32))
        assert caught.value.status == "UNSUPPORTED"


def test_another_struct_layout_is_refused(compile_c: Compile) -> None:
    text = ENGINE.read_text().replace("*offset = offsetof(type, field)", '*offset = offsetof(type, field) + 4 * !strcmp(name, "dtype")')
    assert "dlab_tensor" in (found := refusal(compile_c(text)))
    assert "dtype at 76" in found


def test_a_stale_build_of_our_own_library_is_refused(compile_c: Compile) -> None:
    text = refusal(compile_c(ENGINE.read_text().replace('"example-engine"', '"dlab-cpu"')))
    assert "make native" in text


def test_the_source_hash_follows_every_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cpu"
    folder.mkdir()
    (tmp_path / "dlab.h").write_text("h")
    (folder / "a.cpp").write_text("one")
    (tmp_path / "CMakeLists.txt").write_text("flags")
    monkeypatch.setattr(sources, "PACKAGE", tmp_path)
    monkeypatch.setattr(sources, "HEADER", tmp_path / "dlab.h")
    first = sources.source_hash("cpu")
    (folder / "notes.txt").write_text("not a source")
    assert sources.source_hash("cpu") == first
    (folder / "a.cpp").write_text("two")
    second = sources.source_hash("cpu")
    assert second != first
    (tmp_path / "CMakeLists.txt").write_text("other flags")
    assert sources.source_hash("cpu") != second


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the canary sets an x86 register")
def test_a_fast_math_library_is_refused_and_its_damage_undone(compile_c: Compile) -> None:
    # What gcc's crtfastmath does on x86: set flush-to-zero and denormals-are-zero when the library is loaded.
    constructor = "__attribute__((constructor)) static void fast(void) { _mm_setcsr(_mm_getcsr() | 0x8040); }"
    canary = compile_c(f"#include <xmmintrin.h>\n{constructor}\n{ENGINE.read_text()}")
    assert "-ffast-math" in refusal(canary)
    assert np.array([2.0**-1060])[0] * np.float64(0.5) > 0.0


def test_the_example_engine_loads_and_computes() -> None:
    library = native.open_library(sources.library_path("cpu").with_name("libdlab_example.so"))
    assert library.ops == {"linear", "rms_norm"}
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 40), (5, 40)))
    with library.context() as context:
        want = x.astype(np.float64) @ w.T.astype(np.float64)
        np.testing.assert_allclose(context.linear(x, native.Stored.of(w)), want, rtol=1e-4, atol=1e-5)
        with pytest.raises(native.NativeError, match="rows of 40 values, w of 39"):
            context.linear(x, native.Stored.of(w[:, :39]))
        with pytest.raises(native.NativeError, match="does not implement dlab_rope"):
            context.rope(np.zeros((1, 1, 2), np.float32), np.zeros(1, np.int64), np.ones(1), 2, "neox")
        with pytest.raises(native.NativeError, match="no fused drafter"):
            context.drafter({}, {})
