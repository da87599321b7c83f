"""The Laguna target reproduces what Transformers gave, its drafter what a second implementation gave (``make_laguna``); no torch here."""

from __future__ import annotations

import pytest

from tests.peers import laguna_cases as laguna
from tests.peers import laguna_drafter_cases as draft
from tests.peers import random_models as rm
from tests.peers.golden.files import read

GOLDEN = read("laguna")
TOLERANCE, DRAFT_TOLERANCE, MISS = 1e-11, 1e-12, 1e-5

each = pytest.mark.parametrize("variant", laguna.VARIANTS, ids=lambda v: v.name)


@each
@pytest.mark.parametrize("chunks", [(laguna.ROWS,), laguna.CHUNKS], ids=["at once", "in chunks"])
def test_the_target_is_reproduced(variant: laguna.Variant, chunks: tuple[int, ...]):
    found = laguna.summary(laguna.outputs(laguna.target(variant), chunks))
    assert laguna.summary_difference(found, GOLDEN[variant.name]) <= TOLERANCE


@pytest.mark.parametrize("mistake", laguna.WRONG)
def test_the_target_with_a_mistake_is_not(mistake: str):
    variant = laguna.VARIANTS[0]
    found = laguna.summary(laguna.outputs(laguna.WRONG[mistake](laguna.target(variant))))
    assert laguna.summary_difference(found, GOLDEN[variant.name]) > MISS


def test_the_drafter_is_reproduced():
    assert rm.summary_difference(rm.summary(draft.outputs()), GOLDEN["drafter"]) <= DRAFT_TOLERANCE


@pytest.mark.parametrize("reading", draft.wrong())
def test_another_reading_of_the_drafter_is_not(reading: str):
    assert rm.summary_difference(rm.summary(draft.outputs(draft.wrong()[reading])), GOLDEN["drafter"]) > 1e-3
