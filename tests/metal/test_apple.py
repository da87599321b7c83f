"""What Apple's compilers would refuse, as far as another clang can tell: the host file under ARC against declarations of what it uses, and
the kernels under address spaces, built-in vectors and C++14. Skipped where there is no clang (the PyPI wheel ziglang has one)."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import native

NATIVE = Path(native.__file__).parent
APPLE = Path(__file__).with_name("apple")


def clang() -> list[str]:
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-macos.13.0"]
    if shutil.which("clang++"):
        return ["clang++", "-target", "arm64-apple-macos13.0"]
    pytest.skip("no clang here (pip install ziglang): the sources for Apple's compilers are not checked")


def compiled(command: list[str], source: Path, out: Path) -> str:
    done = subprocess.run([*command, "-c", str(source), "-o", str(out)], capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


@pytest.mark.slow
def test_the_host_file_compiles_under_arc(tmp_path: Path) -> None:
    folders = [f"-I{folder}" for folder in (APPLE, NATIVE, NATIVE / "include", NATIVE / "cpu", NATIVE / "metal")]
    command = [*clang(), "-std=c++17", "-fobjc-arc", "-Wall", "-Wextra", "-Werror", *folders, "-x", "objective-c++"]
    assert not compiled(command, NATIVE / "metal/device.mm", tmp_path / "device.o")


def as_clang_takes_it(text: str) -> str:
    """Without attributes, which only Apple's clang knows, and with threadgroup variables where another clang allows address spaces."""
    text = re.sub(r"\[\[(?:[^\[\]]|\[[^\]]*\])*?\]\]", "", text)
    return re.sub(r"^(\s+)(threadgroup [\w: ]+\[[^;]*;)", r"\1static \2", text, flags=re.MULTILINE)


def kernel_errors(folder: Path, name: str) -> str:
    language = ["-std=c++14", "-nostdinc", "-D__METAL_VERSION__=300", "-Wno-unknown-pragmas", "-Werror=c++17-extensions"]
    command = [*clang(), *language, f"-I{APPLE}", f"-I{folder}", "-x", "c++"]
    return compiled([*command, "-emit-llvm"], folder / name, folder / f"{name}.bc")


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    for path in (NATIVE / "metal").iterdir():
        if path.suffix in (".metal", ".h"):
            (tmp_path / path.name).write_text(as_clang_takes_it(path.read_text()))
    return tmp_path


@pytest.mark.slow
def test_the_kernels_keep_address_spaces_apart(kernels: Path) -> None:
    for path in sorted(kernels.glob("*.metal")):
        assert not kernel_errors(kernels, path.name), path.name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("header", "right", "wrong", "source"),
    [
        ("formats.h", "device const ushort* words = ", "const ushort* words = ", "linear.metal"),
        ("reduce.h", "threadgroup float* parts", "float* parts", "rows.metal"),
        ("formats.h", "enum { kValues = 32, kBytes = 34 };", "inline static int kValues = 32, kBytes = 34;", "linear.metal"),
    ],
)
def test_a_mistake_is_refused(kernels: Path, header: str, right: str, wrong: str, source: str) -> None:
    text = (kernels / header).read_text()
    assert right in text
    (kernels / header).write_text(text.replace(right, wrong))
    assert kernel_errors(kernels, source)
