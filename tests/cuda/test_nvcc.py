"""The same sources compiled by nvcc: a library for real devices that loads without one and says so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import native
from native import building, sources
from native.errors import NativeError


def without_driver(program: str) -> subprocess.CompletedProcess[str]:
    """Runs Python in a process that sees no device."""
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    )


@pytest.mark.slow
def test_it_compiles_for_every_target_loads_without_a_driver_and_says_that_there_is_no_device() -> None:
    if building.nvcc() is None:
        pytest.skip("nvcc is not here (pip install nvidia-cuda-nvcc nvidia-cuda-runtime nvidia-cuda-cccl): nothing can be compiled")
    path = building.ensure("cuda")
    info = native.open_library("cuda").info
    assert info.name == "dlab-cuda" and "device" in info.flags and info.source_hash == sources.source_hash("cuda")
    call = f"native.open_library({str(path)!r}).context()"
    done = without_driver(f"import native\ntry: {call}\nexcept native.NativeError as e: print(e.status, e.text)")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("NO_DEVICE") and "driver" in done.stdout and "\n" not in done.stdout.strip()
    rules = (sources.PACKAGE.parent / "build/native-cuda/build.ninja").read_text()
    assert all(f"arch=compute_{target},code=[sm_{target}]" in rules for target in (80, 90))
    assert "arch=compute_100,code=[sm_100]" in rules and "arch=compute_100,code=[compute_100]" in rules


def test_the_compiler_of_a_wheel_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(building.sysconfig, "get_path", lambda key: str(tmp_path))
    assert building.nvcc() is None
    with pytest.raises(NativeError, match="nvcc is not here: pip install nvidia-cuda-nvcc nvidia-cuda-runtime nvidia-cuda-cccl"):
        building._nvcc()
    wheel = tmp_path / "nvidia/cu13/bin/nvcc"
    wheel.parent.mkdir(parents=True)
    wheel.touch()
    assert building.nvcc() == str(wheel)


def test_a_case_for_a_library_or_a_device_that_is_not_there_ends_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from parity.cli import main

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(SystemExit) as ended:
        main(["run", "--family", "qwen3", "--candidate", "cuda", "--context", "2"])
    out, error = capsys.readouterr()
    assert ended.value.code == 2
    assert "Traceback" not in error + out and error.strip().count("\n") == 0
    assert ("cuda-emu" in error or "driver" in error) if building.is_built("cuda") else "make native-cuda" in error


def test_sources_and_build_rules_are_in_the_hash(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A changed flag makes a library stale as a changed source does."""
    package = tmp_path / "native"
    shutil.copytree(sources.PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__", "lib"))
    monkeypatch.setattr(sources, "PACKAGE", package)
    monkeypatch.setattr(sources, "HEADER", package / "include/dlab.h")
    changed = [("cuda", "cuda/CMakeLists.txt"), ("cuda-emu", "emu/emulate.cmake"), ("cuda", "cuda/linear.cu"), ("cpu", "CMakeLists.txt")]
    for name, path in changed:
        before = sources.source_hash(name)
        (package / path).write_text((package / path).read_text() + "\n")
        assert sources.source_hash(name) != before, path


def test_a_library_that_nobody_builds_here_is_not_built() -> None:
    with pytest.raises(NativeError, match="library 'metal2' is unknown"):
        building.ensure("metal2")
