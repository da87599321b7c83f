"""The oracle's Qwen3.8-Flash-Next target against Transformers: one forward, portions of a prefill, one token at a time."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import oracle
from oracle.models import Target
from tests.peers.qwen38_cases import CASES, TAPS, Case, portioned, wrong_readings

pytestmark = pytest.mark.peers
TOLERANCE, MISS = 1e-11, 1e-3
PORTIONS = (1, 2, 17, 5, 9, 1, 6)
SINGLES = (25,) + (1,) * 16

by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(scope="module")
def peer() -> ModuleType:
    for package in ("torch", "transformers"):
        pytest.importorskip(package)
    from tests.peers import qwen38_peer

    return qwen38_peer


@pytest.fixture(scope="module")
def official(peer: ModuleType):
    made = {}

    def rows(case: Case):
        if case.name not in made:
            made[case.name] = peer.outputs(case)
        return made[case.name]

    return rows


def difference(found, wanted) -> float:
    """Largest absolute difference of logits and taps."""
    return float(max(np.abs(found.logits - wanted.logits).max(), np.abs(found.features - wanted.features).max()))


@by_name
def test_one_forward_agrees(case: Case, official):
    assert difference(case.target().window(case.ids, taps=TAPS), official(case)) <= TOLERANCE


@pytest.mark.parametrize("portions", [PORTIONS, SINGLES], ids=["prefill in portions", "one token at a time"])
@pytest.mark.parametrize("case", [CASES[0], CASES[3]], ids=lambda case: case.name)
def test_windows_agree_with_a_cached_run(case: Case, portions, peer: ModuleType):
    assert sum(portions) == case.rows
    assert difference(portioned(case, portions), peer.outputs(case, portions)) <= TOLERANCE


def test_rows_taken_back_leave_no_trace(official):
    case = CASES[0]
    assert difference(portioned(case, PORTIONS, rejected=3), official(case)) <= TOLERANCE


@pytest.mark.parametrize("case", CASES[:3], ids=lambda case: case.name)
def test_every_wrong_reading_misses(case: Case, official):
    wrong: dict[str, Target] = wrong_readings(case)
    for name, target in wrong.items():
        assert difference(target.window(case.ids, taps=TAPS), official(case)) > MISS, name


@pytest.mark.parametrize("case", [CASES[0], CASES[3]], ids=lambda case: case.name)
def test_a_folder_saved_by_the_package_opens_as_the_same_target(case: Case, peer: ModuleType, official, tmp_path: Path):
    peer.build(case).save_pretrained(tmp_path)
    assert difference(oracle.open_target(tmp_path).window(case.ids, taps=TAPS), official(case)) <= TOLERANCE


def test_widening_changed_nothing_but_the_precision(peer: ModuleType, official):
    shipped = peer.outputs(CASES[0], wide=False)
    assert 1e-9 < difference(shipped, official(CASES[0])) < 1e-4
