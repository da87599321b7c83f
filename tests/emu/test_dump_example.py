"""A drafter in CUDA, on the emulator, dumps every stage by the C header: it agrees with the oracle, and its mistakes are named."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from native import building
from parity.cli import main
from parity.report import Report
from tests.dumps.example_engines import EXAMPLE, MISTAKES, changed, check_mistake, exported_case, verdict
from tests.emu.programs import Programs, Run

pytestmark = pytest.mark.slow
SCHEDULES = [{"EMU_SCHEDULE": "late"}, *({"EMU_SCHEDULE": str(n), "EMU_ORDER": str(n + 1)} for n in (1, 2, 3))]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported_case(tmp_path_factory.mktemp("export"))


@pytest.fixture(scope="module")
def healthy(programs: Programs, exported: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the engine as it is has run, as soon as work is issued."""
    place = tmp_path_factory.mktemp("healthy") / "place"
    done = ran(programs, exported, place)
    assert done == Run(0, "", [])
    return place


def ran(programs: Programs, exported: Path, place: Path, change: tuple[str, str] | None = None, **schedule: str) -> Run:
    """What the engine did in a copy of the case at ``place``, with ``change`` made in its source."""
    text = changed("block.cu", change)
    source = programs.folder / "block.cu"
    if source.read_text() != text:
        source.write_text(text)
    programs.build("block")
    shutil.copytree(exported, place)
    return programs.run("block", place, **schedule)


def judged(programs: Programs, exported: Path, place: Path, change: tuple[str, str]) -> Report:
    assert ran(programs, exported, place, change) == Run(0, "", [])
    return verdict(place)


def test_every_stage_is_recorded_and_agrees(healthy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = verdict(healthy)
    assert report.verdict == "parity" and set(report.counts()) == {"agree"}
    assert not report.missing and not report.unseen and not report.extra
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(healthy / "dump"), "--quiet"])
    assert ended.value.code == 0 and capsys.readouterr().out.startswith("PARITY")


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s["EMU_SCHEDULE"])
def test_every_schedule_gives_the_same_bits(
    programs: Programs, exported: Path, healthy: Path, tmp_path: Path, schedule: dict[str, str]
) -> None:
    place = tmp_path / "place"
    assert ran(programs, exported, place, **schedule) == Run(0, "", [])
    files = sorted(path.name for path in (healthy / "dump").iterdir())
    assert files == sorted(path.name for path in (place / "dump").iterdir())
    assert all((healthy / "dump" / name).read_bytes() == (place / "dump" / name).read_bytes() for name in files)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_kernel_is_found_at_its_stage(programs: Programs, exported: Path, tmp_path: Path, mistake: str) -> None:
    check_mistake(judged(programs, exported, tmp_path / "place", MISTAKES[mistake]["block.cu"]), mistake)


def test_a_cuda_compiler_takes_it(tmp_path: Path) -> None:
    nvcc = building.nvcc()
    if nvcc is None:
        pytest.skip("nvcc is not here (pip install nvidia-cuda-nvcc nvidia-cuda-runtime nvidia-cuda-cccl): nothing can be compiled")
    options = ["-std=c++17", "-arch=sm_80", "-Xcompiler", "-Wall,-Wextra,-Werror", f"-I{EXAMPLE.parent}"]
    subprocess.run([nvcc, *options, "-c", EXAMPLE / "block.cu", "-o", tmp_path / "block.o"], check=True)


# What stands before a barrier that is left out, and what is found; an index that nothing has written stops the kernel.
BARRIERS = {
    "  part[threadIdx.x] = mine;\n": {"race", "uninitialised"},
    "part[threadIdx.x + half]);\n  ": {"race"},
    "  const float all = part[0];\n": {"race"},
    "  best[threadIdx.x] = mine;\n": {"uninitialised", "out-of-bounds"},
}


@pytest.mark.parametrize("before", BARRIERS, ids=["sum", "tree", "next", "pick"])
def test_a_barrier_left_out_is_found(programs: Programs, exported: Path, tmp_path: Path, before: str) -> None:
    source = changed("block.cu", None)
    rest = source[source.index(before + "  __syncthreads();") + len(before) :].partition("\n")
    run = ran(programs, exported, tmp_path / "place", (before + rest[0] + "\n", before))
    stopped = "out-of-bounds" in BARRIERS[before]
    assert (run.status, run.printed) == ((2, "block: unspecified launch failure\n") if stopped else (0, ""))
    assert run.kinds() == BARRIERS[before]
    assert all(place.startswith("block.cu:") for finding in run.found for place in finding["places"])


def test_a_stage_that_is_not_waited_for_shows_when_work_runs_late(programs: Programs, exported: Path, tmp_path: Path) -> None:
    change = ("    check(cudaStreamSynchronize(stream_));\n", "")
    ran(programs, exported, tmp_path / "place", change, EMU_SCHEDULE="late")
    report = verdict(tmp_path / "place")
    assert report.verdict == "divergence" and report.counts()["invalid"] > 0
