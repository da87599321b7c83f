"""Mistakes inside the fused drafter of the CPU library: a test library of its sources, with hooks between them and the operations."""

from __future__ import annotations

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import native
from native.sources import PACKAGE, source_hash
from oracle.arithmetic import named
from parity.case import Case
from parity.comparing import compare_dump
from parity.memory import MemoryDump
from parity.models import open_case_model
from parity.native_drafter import run_fused
from parity.report import Report
from parity.scoring_cases import score_case

HOOKS = Path(__file__).parent.parent / "native" / "hooks"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hooked(tmp_path_factory: pytest.TempPathFactory) -> native.Library:
    """The library, compiled for one instruction set at a low level of optimisation."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    out = tmp_path_factory.mktemp("hooked")
    sources = [*sorted((PACKAGE / "cpu").glob("*.cpp")), HOOKS / "hooks.cpp"]

    def build(source: Path) -> Path:
        obj = out / f"{source.stem}.o"
        flags = [
            "-std=gnu++17",
            "-O1",
            "-fPIC",
            "-c",
            f"-I{PACKAGE / 'include'}",
            f"-I{PACKAGE / 'cpu'}",
            f"-I{HOOKS}",
            "-DDLAB_TEST_HOOKS",
        ]
        flags += [f'-DDLAB_SOURCE_HASH="{source_hash("cpu")}"', "-ffp-contract=off", "-w"]
        if source.stem == "kernels":
            flags += ["-DDLAB_KERNELS=kBaselineKernels", '-DDLAB_ISA="x86-64"', "-ffp-contract=fast"]
        if source.stem.startswith("drafter"):
            flags += ["-include", "hooks.hpp"]
        if source.stem == "entry_drafter":
            flags += [f"-Ddlab_drafter_{name}=dlab_shipped_{name}" for name in ("append", "propose")]
        built = subprocess.run([compiler, *flags, str(source), "-o", str(obj)], capture_output=True, text=True)
        assert built.returncode == 0, built.stderr
        return obj

    with ThreadPoolExecutor(2) as pool:
        objects = [str(o) for o in pool.map(build, sources)]
    library = out / "libdlab_hooked.so"
    subprocess.run([compiler, "-shared", *objects, "-o", str(library), "-lpthread"], check=True, capture_output=True, text=True)
    return native.open_library(library)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return score_case("qwen3", 0, tmp_path_factory.mktemp("case"))


def judged(library: native.Library, case: Case, monkeypatch: pytest.MonkeyPatch, fault: str) -> Report:
    drafter = open_case_model(case).drafter
    assert drafter is not None
    monkeypatch.setenv("DLAB_TEST_FAULT", fault)
    monkeypatch.setenv("DLAB_TEST_TAPS", str(len(drafter.tap_ids)))
    monkeypatch.setenv("DLAB_TEST_TARGET_HIDDEN", str(drafter.geometry.target_hidden))
    dump = MemoryDump(case.describe(), {"candidate": "hooked", "fault": fault})
    with library.context(1) as context:
        run_fused(case, context, dump)
    return compare_dump(case, dump, named("cpu"), mode="local")


def test_the_hooked_library_without_a_fault_is_the_shipped_one(hooked, case, monkeypatch):
    assert judged(hooked, case, monkeypatch, "").verdict == "parity"


@pytest.mark.parametrize(
    ("fault", "stage", "kinds"),
    [
        ("norm.row", "draft.ctx", {"values.rows"}),
        ("barrier", "draft.fc", set()),
        ("tap.order", "draft.fc", set()),
        ("rope.heads", "draft.L0.ctx.k_rope", {"rope.position"}),
        ("window-1", "draft.L0.attn", {"attention.window", "attention.cell", "attention.rule", "attention.mask"}),
        ("window+1", "draft.L0.attn", {"attention.window", "attention.extra", "attention.rule", "attention.mask"}),
        ("stale", "draft.L0.attn", set()),
        ("gqa", "draft.L0.attn", {"attention.gqa", "values.heads"}),
        ("crop", "draft.L0.k_cells", set()),
    ],
)
def test_a_mistake_in_the_fused_path_is_found_where_it_is_made(hooked, case, monkeypatch, fault, stage, kinds):
    report = judged(hooked, case, monkeypatch, fault)
    first = report.divergences[0]
    assert first.stage == stage, [d.stage for d in report.divergences[:5]]
    said = [e["kind"] for e in first.explanations]
    assert not kinds or kinds & set(said[:3]), said


def test_rows_and_heads_of_a_fused_mistake_are_named(hooked, case, monkeypatch):
    first = judged(hooked, case, monkeypatch, "rope.heads").divergences[0]
    assert first.extent.heads == [1] and first.extent.rows == list(range(10))
    first = judged(hooked, case, monkeypatch, "norm.row").divergences[0]
    assert first.extent.rows == [1]
