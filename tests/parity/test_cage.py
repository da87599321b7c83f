"""Ways for a candidate to die or cheat: each is its own finding, and what was recorded before is compared all the same."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from native.sources import HEADER, library_path
from parity import candidates, render
from parity.cage import Limits, run_worker
from parity.case import Case, load
from parity.errors import UsageError
from parity.flow import run_candidate
from parity.report import CAGE

X86 = platform.machine() in ("x86_64", "AMD64")
GIB = 1 << 30

LIBRARY = {
    "wild pointer": ("crash", "signal 11 (SIGSEGV) at address 0x18 in stage target.L1.mlp_act"),
    "abort": ("abort", "signal 6 (SIGABRT) in stage target.L1.mlp_act"),
    "exit 0": ("exit", "exit status 0 in stage target.L1.mlp_act"),
    "exit 2": ("exit", "exit status 2"),
    "_exit 0": ("exit", "exit status 0"),
    "throw": ("uncaught-exception", "no such kernel"),
    "throw in a thread": ("uncaught-exception", "no such stream"),
    "recursion": ("stack-overflow", "no stack was left"),
    "bad_alloc": ("out-of-memory", "limited to 1 GiB"),
    "unchecked malloc": ("out-of-memory", "limited to 1 GiB"),
    "no memory, said so": ("out-of-memory", "ran out of memory"),
    "hang": ("hang", "did not finish within 4 s in stage target.L1.mlp_act"),
    "trap": ("crash", "signal 4 (SIGILL)"),
    "kill itself": ("killed", "SIGKILL"),
    "one past": ("write-outside", "past the buffer swiglu output 0"),
    "page past": ("write-outside", "past the buffer swiglu output 0"),
    "one before": ("write-outside", "4 bytes before the buffer swiglu output 0"),
    "page before": ("write-outside", "before the buffer swiglu output 0"),
    "past an input": ("write-outside", "past the buffer swiglu gate"),
    "read past": ("read-outside", "past the buffer swiglu gate"),
    "input changed": ("changed-input", "bytes of its input swiglu gate"),
    "weight changed": ("changed-input", "read-only input linear w (weight)"),
    "child": ("left-behind", "left 1 running"),
    "daemon": ("left-behind", "left 1 running"),
    "stderr closed": ("closed-output", "swiglu closed or replaced standard error"),
    "stdout replaced": ("closed-output", "swiglu closed or replaced standard output"),
    "failure": ("failed", ""),
    "dump removed": ("dump-deleted", "was there and is gone"),
} | ({"subnormals flushed": ("floating-point-mode", "swiglu left"), "rounding down": ("floating-point-mode", "swiglu left")} if X86 else {})

# Deeds that differ from another in how they are done, not in what is found.
ALIKE = {"exit 2", "_exit 0", "throw in a thread", "unchecked malloc", "trap", "page past", "page before", "past an input", "daemon"}
ALIKE |= {"stdout replaced", "rounding down", "no memory, said so"}


@pytest.fixture(scope="module")
def misbehaving(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One library with a switch."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    built = tmp_path_factory.mktemp("misbehaving") / "libmisbehaving.so"
    source = Path(__file__).with_name("misbehaving.cpp")
    flags = ["-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-pthread", f"-I{HEADER.parent}", f'-DCPU_LIBRARY="{library_path("cpu")}"']
    subprocess.run([compiler, *flags, str(source), "-o", str(built), "-ldl"], check=True, capture_output=True, text=True)
    return built


@pytest.fixture(scope="module")
def folder(target: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return target.save(tmp_path_factory.mktemp("cage") / "case")


@pytest.mark.parametrize("deed", [pytest.param(deed, marks=pytest.mark.slow) if deed in ALIKE else deed for deed in LIBRARY])
def test_what_a_library_does_to_its_process_is_a_finding_of_its_own(misbehaving, folder, tmp_path, monkeypatch, deed):
    kind, said = LIBRARY[deed]
    monkeypatch.setenv("MISBEHAVE", deed)
    monkeypatch.setenv("DUMP_FOLDER", str(tmp_path / "dump"))
    limits = Limits(4 if deed == "hang" else 120, GIB)
    outcome = run_worker(candidates.parse(str(misbehaving)), folder, tmp_path / "dump", threads=1, limits=limits)
    assert [f["kind"] for f in outcome.findings] == [kind] and said in outcome.findings[0]["text"], outcome.findings


def test_a_library_that_behaves_has_no_finding(misbehaving, target):
    report = run_candidate(target, candidates.parse(str(misbehaving)), mode="local", threads=1)
    assert report.verdict == "parity" and not report.findings


def test_what_was_recorded_before_a_death_is_compared(misbehaving, target, monkeypatch, tmp_path):
    """A wrong stage before the death is still named; the finding stands above it."""
    monkeypatch.setenv("MISBEHAVE", "abort")
    report = run_candidate(target, candidates.parse(str(misbehaving)), mode="local", fault="norm.eps:factor=1e6,stage=target.L0.xn")
    assert report.verdict == "abort" and report.exit_status == 4
    assert report.first_divergence is not None and report.first_divergence.stage == "target.L0.xn"
    assert json.dumps(report.to_json())


def test_an_output_nobody_wrote_is_not_taken_for_a_result(misbehaving, target, monkeypatch):
    monkeypatch.setenv("MISBEHAVE", "nothing written")
    report = run_candidate(target, candidates.parse(str(misbehaving)), mode="local", threads=1)
    assert report.verdict == "divergence" and report.divergences[0].stage == "target.L1.mlp_act"


def test_without_guard_pages_a_changed_input_passes_unseen(misbehaving, folder, tmp_path, monkeypatch):
    """What the guard is for: the same library without it."""
    monkeypatch.setenv("MISBEHAVE", "input changed")
    outcome = run_worker(candidates.parse(str(misbehaving), guard=False), folder, tmp_path / "dump", threads=1)
    assert outcome.findings == []


@pytest.mark.parametrize(("deed", "stage", "rows"), [("race", "target.L0.", [1]), ("uninitialised", "target.L1.mlp_act", None)])
def test_what_does_not_repeat_is_a_verdict_of_its_own(misbehaving, target, monkeypatch, deed, stage, rows):
    monkeypatch.setenv("MISBEHAVE", deed)
    report = run_candidate(target, candidates.parse(str(misbehaving)), mode="local", threads=1, repeat=2)
    assert report.verdict == "not-reproducible" and report.exit_status == 1
    first = report.to_json()["repeat"]["stages"][0]
    last = [len(target.steps[first["step"]].array) - 1]
    assert first["stage"].startswith(stage) and first["rows"] == (rows or last) and first["elements"] == 1
    assert first["runs"] == [2] and render.headline(report).startswith(f"NOT REPRODUCIBLE first at {first['stage']}, step")


def test_a_candidate_that_repeats_itself_passes(target):
    report = run_candidate(target, candidates.parse("cpu"), mode="local", threads=2, repeat=3)
    assert report.verdict == "parity" and report.repeat == {"runs": 3, "reproducible": True, "stages": []}
    assert "3 runs, bit for bit the same" in render.text(report)


def test_a_death_in_a_later_run_is_a_finding(drafter, tmp_path):
    report = run_candidate(drafter, candidates.parse(f"{__name__}:dies_the_second_time"), mode="local", repeat=2, keep=tmp_path)
    assert report.verdict == "abort" and report.findings[0]["text"].startswith("run 2: ")


def dies_the_second_time(case_folder, out):
    if out.name != "dump":
        os.abort()
    _begun(case_folder, out).close()


def _begun(case_folder, out):
    from parity import open_writer

    writer = open_writer(out, load(case_folder), "callable")
    writer.put(0, "target.embed", [[1.0]])
    writer.announce("target.L0.xn")
    return writer


def deletes_its_dump(case_folder, out):
    _begun(case_folder, out).close()
    shutil.rmtree(out)


def records_twice(case_folder, out):
    _begun(case_folder, out).put(0, "target.embed", [[1.0]])


def writes_a_line_twice(case_folder, out):
    """Without the writer's own check."""
    _begun(case_folder, out).close(complete=False)
    manifest = out / "manifest.jsonl"
    lines = manifest.read_text().splitlines()
    manifest.write_text("\n".join([*lines, lines[-1]]) + "\n")


def never_closes(case_folder, out):
    _begun(case_folder, out)


def leaves_nothing(case_folder, out):
    pass


def raises(case_folder, out):
    raise ZeroDivisionError("a bug of its own")


def allocates(case_folder, out):
    import numpy as np

    np.zeros(1 << 40, np.uint8)


def exits(case_folder, out):
    sys.exit(0)


def closes_stderr(case_folder, out):
    _begun(case_folder, out).close()
    os.close(2)


CALLABLES = {
    deletes_its_dump: ("dump-deleted", "was there and is gone"),
    records_twice: ("record-twice", "recorded already"),
    writes_a_line_twice: ("record-twice", "recorded already"),
    never_closes: ("bad-dump", "never closed"),
    leaves_nothing: ("no-dump", "without leaving a dump"),
    raises: ("exception", "ZeroDivisionError: a bug of its own"),
    allocates: ("out-of-memory", "ran out of memory"),
    exits: ("exit", "exit status 0"),
    closes_stderr: ("closed-output", "standard error"),
}


SLOW = {writes_a_line_twice, exits, closes_stderr, raises, leaves_nothing}


@pytest.mark.parametrize(
    "function", [pytest.param(f, marks=pytest.mark.slow, id=f.__name__) if f in SLOW else pytest.param(f, id=f.__name__) for f in CALLABLES]
)
def test_what_an_adapter_of_ones_own_does_is_a_finding(target, tmp_path, function):
    kind, said = CALLABLES[function]
    parsed = candidates.parse(f"{__name__}:{function.__name__}")
    report = run_candidate(target, parsed, mode="local", memory=GIB, keep=tmp_path)
    assert report.verdict == kind and report.exit_status == 4 and said in report.findings[0]["text"]


def refuses_its_mapping(case_folder, out):
    from parity.adapters.mapping import MappingError

    raise MappingError("m.toml: the tensor 'Kcur-0' is mapped twice")


def test_bad_input_of_an_adapter_is_no_finding_about_it(target):
    with pytest.raises(UsageError, match="'Kcur-0' is mapped twice"):
        run_candidate(target, candidates.parse(f"{__name__}:refuses_its_mapping"), mode="local")


def test_every_kind_of_finding_is_seen_to_happen():
    assert {kind for kind, _ in (*LIBRARY.values(), *CALLABLES.values())} == set(CAGE) - (set() if X86 else {"floating-point-mode"})
