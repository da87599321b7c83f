"""The Python interface that tests and notebooks use."""

from __future__ import annotations

import json

import numpy as np
import pytest

import parity
from oracle import arithmetic
from oracle.readings import Faulty, Rounded
from parity.case import load
from parity.recording import record

F32 = arithmetic.named("f32")


def healthy(case_folder, dump_path):
    case = load(case_folder)
    with parity.open_writer(dump_path, case, "mine") as writer:
        record(case, Rounded(F32), writer, F32)


def faulty(case_folder, dump_path):
    from oracle.faults import parse

    case = load(case_folder)
    with parity.open_writer(dump_path, case, "mine") as writer:
        record(case, Faulty(Rounded(F32), parse("rope.theta:stage=draft.L1.k_rope,factor=1.01")), writer, F32)


@pytest.fixture(scope="module")
def case(models):
    return parity.drafter_case(str(models / "qwen3/drafter"), str(models / "qwen3/target"), appends=(5, 2), accepts=(1,))


def test_assert_parity_returns_the_report_of_a_healthy_candidate(case):
    report = parity.assert_parity(healthy, case, arithmetic="f32", mode="local")
    assert report.verdict == "parity" and report.exit_status == 0


def test_assert_parity_raises_with_the_report_as_its_message(case):
    with pytest.raises(AssertionError, match=r"DIVERGENCE first at draft\.L1\.k_rope") as raised:
        parity.assert_parity(faulty, case, arithmetic="f32", mode="local")
    assert "draft.L*.attn" in str(raised.value)


def test_assert_parity_takes_a_name_and_runs_it_in_a_process_of_its_own(case):
    report = parity.assert_parity(f"{__name__}:healthy", case, arithmetic="f32", mode="local")
    assert report.candidate["candidate"] == "mine"


def test_assert_parity_of_the_cpu_library_fused(case):
    assert parity.assert_parity("cpu", case, entry="fused").candidate["entry"] == "fused"


def test_compare_finds_the_case_beside_the_dump(case, tmp_path):
    folder = case.save(tmp_path / "case")
    healthy(folder, tmp_path / "dump")
    report = parity.compare(tmp_path / "dump", mode="local")
    assert report.verdict == "parity"
    assert json.loads(json.dumps(report.to_json()))["stages"][0]["stage"] == "draft.taps"
    with pytest.raises(ValueError, match="no case was given"):
        (tmp_path / "case/case.json").unlink()
        parity.compare(tmp_path / "dump")


def test_a_target_case_takes_token_ids(models):
    case = parity.target_case(str(models / "llama/target"), prefill=[1, 2, 3], block=[4, 5])
    assert [s.array.tolist() for s in case.steps] == [[1, 2, 3], [4, 5]]
    assert np.array_equal(
        parity.target_case(models / "llama/target", block=3, seed=1).steps[1].array,
        parity.target_case(models / "llama/target", block=3, seed=1).steps[1].array,
    )
