"""The oracle's muse-glimmer dialect against the assistant of Transformers, through its own cache, past its window."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

import oracle
from tests.peers import muse_cases as muse
from tests.peers import random_models as rm

pytestmark = pytest.mark.peers
TOLERANCE, MISS = 1e-12, 0.1

either = pytest.mark.parametrize("attention", ["eager", "sdpa"])


@pytest.fixture(scope="module")
def peer() -> ModuleType:
    """The assistant; imported only when a test of this module runs, so that deselecting them needs no torch."""
    for package in ("torch", "transformers"):
        pytest.importorskip(package)
    from tests.peers import muse_peer

    return muse_peer


@pytest.fixture(scope="module")
def official(peer: ModuleType) -> dict[str, rm.Outputs]:
    return {attention: peer.outputs(attention) for attention in ("eager", "sdpa")}


def test_the_context_exceeds_the_window_from_the_first_round():
    assert all(r.position > muse.WINDOW for r in muse.rounds())


@either
def test_every_round_agrees(attention: str, official):
    assert rm.largest_difference(muse.outputs(), official[attention]) <= TOLERANCE


@either
def test_rejected_rows_leave_no_trace(attention: str, official):
    assert rm.largest_difference(muse.outputs(rejected=4), official[attention]) <= TOLERANCE


@pytest.mark.parametrize("mask", muse.wrong_masks())
def test_every_other_mask_misses(mask: str, official):
    assert rm.largest_difference(muse.outputs(muse.wrong_masks()[mask]), official["eager"]) > MISS


@either
def test_widening_changed_nothing_but_the_precision(attention: str, official, peer: ModuleType):
    difference = rm.largest_difference(peer.outputs(attention, wide=False), official[attention])
    assert 1e-9 < difference < 1e-4


def test_a_folder_saved_by_transformers_opens_as_the_same_drafter(official, peer: ModuleType, tmp_path: Path):
    peer.build("eager").save_pretrained(tmp_path)
    assert rm.largest_difference(muse.outputs(oracle.open_drafter(tmp_path)), official["eager"]) <= TOLERANCE
