"""Engines that keep the delta net's state in bf16 between the calls: declared, they agree; undeclared, that is what is named."""

from __future__ import annotations

import pytest

from oracle import arithmetic as arithmetics
from oracle.readings import Rounded
from parity.case import Case
from parity.comparing import compare_dump
from parity.memory import MemoryDump
from parity.recording import record
from parity.report import Report
from parity.scoring_cases import score_case

STATE = "delta_state"


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A prefill, a verify window, and one that takes rows of it back."""
    return score_case("qwen38-flash-next target", 0, tmp_path_factory.mktemp("state"))


def judged(case: Case, ran: str, declared: str, mode: str = "local") -> Report:
    dump, arithmetic = MemoryDump(case.describe(), {"candidate": "test"}), arithmetics.named(ran)
    record(case, Rounded(arithmetic), dump, arithmetic)
    return compare_dump(case, dump, arithmetics.named(declared), mode=mode, members=3)


@pytest.mark.parametrize("state", ["bf16", "bf16-rows"])
def test_a_state_kept_as_declared_agrees(case: Case, state: str) -> None:
    name = f"f32,state={state}"
    report = judged(case, name, name, "both")
    assert report.verdict == "parity", report.divergences[:2]


@pytest.mark.parametrize(("state", "first"), [("bf16", 1), ("bf16-rows", 0)])
def test_a_state_kept_in_bf16_undeclared_is_found_and_named(case: Case, state: str, first: int) -> None:
    """Nothing was kept before the first call; from row to row it shows in the first one."""
    report = judged(case, f"f32,state={state}", "f32")
    assert {d.stage.rpartition(".")[2] for d in report.divergences} == {STATE}
    assert report.divergences[0].step == first
    assert report.divergences[0].explanations[0]["kind"] == "delta.kept"


def test_a_state_in_f32_where_bf16_is_declared_is_found(case: Case) -> None:
    report = judged(case, "f32", "f32,state=bf16")
    assert {d.stage.rpartition(".")[2] for d in report.divergences} == {STATE} and report.divergences[0].step == 1
