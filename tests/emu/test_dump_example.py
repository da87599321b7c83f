"""A CUDA program on the emulator dumps stages of a block by the C header: they agree with the oracle, and a kernel's mistake is named."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dumps import open_dump
from oracle import arithmetic as arithmetics
from oracle.artifacts import make_artifact
from parity.case import load
from parity.comparing import compare_dump
from parity.exporting import export
from parity.making import drafter_case
from parity.report import Report

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "dumps" / "example" / "block.cu"
CMAKE = f"""cmake_minimum_required(VERSION 3.20)
project(block LANGUAGES CXX)
include({ROOT}/native/emu/emulate.cmake)
add_executable(block {ROOT}/native/emu/example/report.cpp)
dlab_emulate_cuda(block block.cu)
target_include_directories(block PRIVATE {ROOT}/dumps)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A CMake project around the example, configured."""
    made = tmp_path_factory.mktemp("block")
    (made / "CMakeLists.txt").write_text(CMAKE)
    shutil.copy(SOURCE, made)
    cmake(made, "-S", str(made), "-B", str(made / "build"), "-DCMAKE_BUILD_TYPE=Release")
    return made


def cmake(folder: Path, *arguments: str) -> None:
    found = shutil.which("cmake", path=str(Path(sys.executable).parent)) or shutil.which("cmake")
    assert found is not None
    subprocess.run([found, *arguments], check=True, capture_output=True, text=True, cwd=folder)


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("case")
    sizes = {"hidden": 48, "intermediate": 64, "heads": 6, "kv_heads": 2, "head_dim": 8, "vocab": 67, "block_size": 6, "mask_token_id": 66}
    made = make_artifact("qwen3", "tiny", "bf16", root / "model", seed=5, **sizes)
    export(drafter_case(made[0], made[1], family="qwen3", appends=(7,), accepts=(2,), seed=1), root / "out", weights=True)
    return root / "out"


def judged(folder: Path, exported: Path, place: Path, change: tuple[str, str] | None = None) -> tuple[Report, str]:
    """The program built with ``change`` made in its source, run on the case: the report, and what the emulator found."""
    text = SOURCE.read_text()
    if change is not None:
        assert text.count(change[0]) == 1
        text = text.replace(*change)
    (folder / "block.cu").write_text(text)
    cmake(folder, "--build", str(folder / "build"))
    shutil.copytree(exported, place)
    done = subprocess.run([folder / "build" / "block", place], check=True, capture_output=True, text=True)
    return compare_dump(load(place / "case"), open_dump(place / "dump"), arithmetics.named("f32"), mode="local"), done.stderr


def test_the_block_agrees(folder, exported, tmp_path):
    report, found = judged(folder, exported, tmp_path / "place")
    assert report.verdict == "parity" and report.counts() == {"agree": 10} and not report.extra and not found


MISTAKES = {
    "draft.L0.xn": ("1 / sqrtf(sums[0] / n + eps)", "1 / sqrtf(sums[0] / n + 1e4f * eps)"),
    "draft.embed": ("table[ids[blockIdx.x] * n + i]", "table[(ids[blockIdx.x] - 1) * n + i]"),
    "draft.L0.k_raw": ("k < n; ++k", "k < n - (outputs == 16); ++k"),
}


@pytest.mark.parametrize("stage", MISTAKES)
def test_a_mistake_in_a_kernel_is_named(folder, exported, tmp_path, stage):
    report, found = judged(folder, exported, tmp_path / "place", MISTAKES[stage])
    assert report.verdict == "divergence" and report.divergences[0].stage == stage and not found
