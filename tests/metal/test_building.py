"""What builds the Metal library: its text, its hash, and what is said where it cannot be built."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from native import building, sources
from native.errors import NativeError

METAL = sources.PACKAGE / "metal"


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS builds it")
def test_it_is_refused_elsewhere_with_what_to_do_instead(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NativeError, match=r"built on macOS; .* metal-emu"):
        building.ensure("metal")
    assert building.main(["metal"]) == 2 and capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("path", ["metal/linear.metal", "metal/formats.h", "metal/device.mm", "metal/embed.py", "gpu/device.hpp"])
def test_every_source_is_in_its_hash(path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "native"
    shutil.copytree(sources.PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__", "lib"))
    monkeypatch.setattr(sources, "PACKAGE", package)
    monkeypatch.setattr(sources, "HEADER", package / "include/dlab.h")
    before = sources.source_hash("metal")
    (package / path).write_text((package / path).read_text() + "\n")
    assert sources.source_hash("metal") != before


def embedded(folder: Path, *names: str) -> str:
    command = [sys.executable, str(METAL / "embed.py"), *(str(folder / n) for n in names), "--out", str(folder / "out.cpp")]
    subprocess.run(command, check=True)
    return (folder / "out.cpp").read_text()


def test_a_source_is_embedded_with_its_headers_once_and_its_lines_named(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text("#pragma once\nint a;\n")
    (tmp_path / "b.h").write_text('#include "a.h"\nint b;\n')
    (tmp_path / "k.metal").write_text('#include <metal_stdlib>\n#include "a.h"\n#include "b.h"\nint k;\n')
    text = embedded(tmp_path, "k.metal")
    assert text.count("int a;") == text.count("int b;") == 1 and "#include <metal_stdlib>" in text
    assert '#line 4 "k.metal"\nint k;' in text and '#include "' not in text.partition("kSources[]")[2]
    assert "#pragma once" not in text and "kSourceCount = 1" in text


def test_the_shipped_sources_fit_into_string_literals(tmp_path: Path) -> None:
    for path in METAL.iterdir():
        shutil.copy(path, tmp_path)
    names = sorted(p.name for p in METAL.glob("*.metal"))
    text = embedded(tmp_path, *names)
    assert all(f'{{"{name}", R"metal(' in text for name in names) and f"kSourceCount = {len(names)}" in text
    assert max(len(part) for part in text.split(')metal"}')) < 65536
