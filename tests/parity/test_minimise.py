"""A failing case shrinks to one that still fails at the same stage for the same reason, within its bound of runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from oracle import arithmetic as arithmetics
from parity import shrinking
from parity.case import Case, load
from parity.comparing import compare_dump
from parity.errors import UsageError
from parity.minimise import command, key, minimise
from parity.recording import record
from parity.report import Report


@pytest.fixture
def runner(tmp_path: Path):
    """Runs the NumPy candidate with a fault in this process; counts."""
    from dumps import DumpWriter, open_dump
    from oracle.faults import parse as parse_fault
    from oracle.readings import Faulty, Rounded

    def make(fault: str | None):
        def run(case: Case) -> Report:
            run.count += 1  # type: ignore[attr-defined]
            A = arithmetics.named("f32")
            reading = Rounded(A) if fault is None else Faulty(Rounded(A), parse_fault(fault))
            out = tmp_path / f"dump{run.count}"  # type: ignore[attr-defined]
            with DumpWriter(out, case.describe(), {}) as writer:
                record(case, reading, writer, A)
            return compare_dump(case, open_dump(out), A, mode="local")

        run.count = 0  # type: ignore[attr-defined]
        return run

    return make


@pytest.mark.slow
def test_a_wrong_norm_shrinks_to_one_row_of_one_layer_of_a_narrow_model(runner, drafter, tmp_path):
    run = runner("norm.offset:stage=draft.L*.xn_mlp")
    smallest, how = minimise(drafter, run, tmp_path / "out", runs=80)
    g = shrinking.open_case_model(smallest).geometry
    assert how.made <= 80 and run.count == how.made
    assert [s.kind for s in smallest.steps][-1] == "propose" and len(smallest.steps[-1].array) == 1
    assert g["layers"] == 1 and g["hidden"] < 48 and smallest.steps[-1].at < drafter.steps[-1].at
    kept = run(smallest)
    assert key(kept.first_divergence) == ("draft.L*.xn_mlp", "norm.offset")
    assert smallest.model.is_relative_to(tmp_path / "out")


@pytest.mark.slow
def test_a_window_keeps_the_rows_that_show_it(runner, muse, tmp_path):
    """Window 9 and one less: the smallest context is the one that reaches the edge."""
    smallest, how = minimise(muse, runner("attention.window:stage=draft.L0.attn,delta=-1"), tmp_path / "out", runs=14)
    assert smallest.steps[-1].at < muse.steps[-1].at or len(smallest.steps) < len(muse.steps)
    assert how.made <= 14 and how.log[0].startswith("as it was")


def test_what_does_not_diverge_is_refused(runner, drafter, tmp_path):
    with pytest.raises(UsageError, match="does not diverge"):
        minimise(drafter, runner(None), tmp_path / "out")


def test_the_bound_on_runs_is_kept(runner, drafter, tmp_path):
    run = runner("norm.offset:stage=draft.final_norm")
    _, how = minimise(drafter, run, tmp_path / "out", runs=3)
    assert run.count <= 4 and how.made <= 3


def test_dropped_rows_move_everything_forward(drafter):
    cut = shrinking.without_first_rows(drafter, 5)
    assert [(s.kind, s.at, len(s.array)) for s in cut.steps] == [
        ("append", 0, 2),
        ("append", 2, 4),
        ("propose", 6, 6),
        ("append", 6, 3),
        ("propose", 9, 6),
    ]
    assert np.array_equal(cut.steps[0].array, drafter.steps[0].array[5:])
    assert shrinking.without_first_rows(drafter, 12) is None
    assert [s.kind for s in shrinking.merged_appends(drafter).steps] == ["append", "propose", "append", "propose"]


def test_the_line_that_reproduces_it_is_one_command(tmp_path):
    line = command(Path("/a b/case"), "cpu", "op", "norm.eps:factor=10", None)
    assert line == "parity run --case '/a b/case' --candidate cpu --mode local --entry op --fault norm.eps:factor=10"


@pytest.mark.slow
def test_the_command_line_writes_the_case_and_the_line(dumped, drafter, tmp_path, monkeypatch):
    from click.testing import CliRunner

    from parity.cli.explaining import explain

    drafter.save(tmp_path / "case")
    dumped(drafter, "f32", "norm.offset:stage=draft.final_norm")
    done = CliRunner().invoke(explain, [str(tmp_path / "dump"), "--minimise", "--runs", "6", "--out", str(tmp_path / "small")])
    assert "minimised in 6 runs" in done.output and "parity run --case" in done.output
    assert (tmp_path / "small/reproduce.txt").read_text().startswith("parity run --case ")
    assert load(tmp_path / "small/case").steps and json.loads((tmp_path / "small/case/case.json").read_text())["steps"]
