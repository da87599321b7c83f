"""The oracle's Laguna target against Transformers, and its drafter against a second implementation, past every window."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

import oracle
from tests.peers import laguna_cases as laguna
from tests.peers import laguna_drafter_cases as draft
from tests.peers import random_models as rm

pytestmark = pytest.mark.peers
TOLERANCE, DRAFT_TOLERANCE, MISS = 1e-11, 1e-12, 1e-4

each = pytest.mark.parametrize("variant", laguna.VARIANTS, ids=lambda v: v.name)


@pytest.fixture(scope="module")
def peer() -> ModuleType:
    """Transformers' model; imported only when a test of this module runs, so that deselecting them needs no torch."""
    for package in ("torch", "transformers"):
        pytest.importorskip(package)
    from tests.peers import laguna_peer

    return laguna_peer


@pytest.fixture(scope="module")
def official(peer: ModuleType) -> dict[str, laguna.Result]:
    return {v.name: peer.outputs(v) for v in laguna.VARIANTS}


@pytest.fixture(scope="module")
def second() -> rm.Outputs:
    pytest.importorskip("torch")
    from tests.peers import laguna_drafter_peer

    return laguna_drafter_peer.outputs()


def test_the_text_is_longer_than_several_windows():
    assert laguna.ROWS > 4 * laguna.WINDOW


@each
def test_one_window_agrees(variant: laguna.Variant, official):
    assert laguna.difference(laguna.outputs(laguna.target(variant)), official[variant.name]) <= TOLERANCE


@each
@pytest.mark.parametrize("chunks", [laguna.CHUNKS, (1,) * laguna.ROWS], ids=["in chunks", "token by token"])
def test_chunks_agree_with_the_model_s_own_cache(variant: laguna.Variant, chunks: tuple[int, ...], peer: ModuleType):
    assert laguna.difference(laguna.outputs(laguna.target(variant), chunks), peer.outputs(variant, chunks)) <= TOLERANCE


@pytest.mark.parametrize("mistake", laguna.WRONG)
def test_every_mistake_misses(mistake: str, official):
    variant = laguna.VARIANTS[0]
    assert laguna.difference(laguna.outputs(laguna.WRONG[mistake](laguna.target(variant))), official[variant.name]) > MISS


@each
def test_widening_changed_nothing_but_the_precision(variant: laguna.Variant, official, peer: ModuleType):
    assert 1e-9 < laguna.difference(peer.outputs(variant, wide=False), official[variant.name]) < 1e-3


@each
def test_a_folder_saved_by_transformers_opens_as_the_same_target(variant: laguna.Variant, official, peer: ModuleType, tmp_path: Path):
    peer.build(variant).save_pretrained(tmp_path)
    assert laguna.difference(laguna.outputs(oracle.open_target(tmp_path)), official[variant.name]) <= TOLERANCE


def test_the_drafter_agrees_in_every_round(second):
    assert len(draft.rounds()) >= 10 and all(r.position > draft.WINDOW for r in draft.rounds())
    assert rm.largest_difference(draft.outputs(), second) <= DRAFT_TOLERANCE


def test_rejected_rows_leave_no_trace(second):
    assert rm.largest_difference(draft.outputs(rejected=4), second) <= DRAFT_TOLERANCE


@pytest.mark.parametrize("reading", draft.wrong())
def test_every_other_reading_of_the_drafter_misses(reading: str, second):
    assert rm.largest_difference(draft.outputs(draft.wrong()[reading]), second) > 0.01
