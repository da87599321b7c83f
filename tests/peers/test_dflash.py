"""The oracle's `qwen3` drafter against the official package, round by round, with forced accept counts."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

import oracle
from tests.peers import random_models as rm
from tests.peers.dflash_cases import ACCEPTED, CASES, SIZES, TAIL, Case, wrong_readings

pytestmark = pytest.mark.peers
TOLERANCE, MISS = 1e-12, 1e-3

by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(scope="module")
def peer() -> ModuleType:
    """The official model; imported only when a test of this module runs, so that deselecting them needs no torch."""
    for package in ("torch", "transformers", "dflash"):
        pytest.importorskip(package)
    from tests.peers import dflash_peer

    return dflash_peer


@pytest.fixture(scope="module")
def official(peer: ModuleType) -> dict[str, rm.Outputs]:
    return {case.name: peer.outputs(case) for case in CASES}


def test_the_schedule_forces_none_some_and_all_drafts_and_ends_in_narrow_blocks():
    assert len(ACCEPTED) >= 10
    assert set(ACCEPTED) == set(range(SIZES.block))
    assert [len(r.ids) for r in CASES[0].rounds()[-2:]] == list(TAIL)


@by_name
def test_every_round_agrees(case: Case, official):
    assert rm.largest_difference(case.outputs(), official[case.name]) <= TOLERANCE


@by_name
def test_rejected_rows_leave_no_trace(case: Case, official):
    assert rm.largest_difference(case.outputs(rejected=3), official[case.name]) <= TOLERANCE


@by_name
def test_every_wrong_reading_misses(case: Case, official):
    for name, drafter in wrong_readings(case).items():
        assert rm.largest_difference(case.outputs(drafter), official[case.name]) > MISS, name


@by_name
def test_a_folder_saved_by_the_package_opens_as_the_same_drafter(case: Case, official, peer: ModuleType, tmp_path: Path):
    peer.build(case).save_pretrained(tmp_path)
    assert rm.largest_difference(case.outputs(oracle.open_drafter(tmp_path, family="qwen3")), official[case.name]) <= TOLERANCE


@pytest.mark.parametrize("case", [CASES[0], CASES[3]], ids=lambda case: case.name)
def test_widening_changed_nothing_but_the_precision(case: Case, official, peer: ModuleType):
    difference = rm.largest_difference(peer.outputs(case, wide=False), official[case.name])
    assert 1e-9 < difference < 1e-4
