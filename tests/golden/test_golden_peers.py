"""The oracle reproduces what independent implementations gave; the files are made under ``tests/peers/golden``, torch is not needed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import oracle
from parity import realtext
from parity.errors import UsageError
from tests.peers import muse_cases as muse
from tests.peers import random_models as rm
from tests.peers import smollm2_rows
from tests.peers.dflash_cases import CASES, Case, wrong_readings
from tests.peers.golden.files import read

TOLERANCE, MISS = 1e-12, 1e-3
DFLASH, MUSE, SMOL = read("dflash"), read("muse"), read("smollm2")
SMOL_TOLERANCE = 1e-11


MUSE_SUMMARY: dict[str, Any] = {key: MUSE[key] for key in ("hidden_means", "logit_means", "last_hidden", "last_logits")}


def test_uniform_numbers_are_the_same_on_every_machine():
    assert rm.uniform(1, "fc", 3).tolist() == DFLASH["uniform"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_official_drafter_is_reproduced(case: Case):
    assert rm.summary_difference(rm.summary(case.outputs()), DFLASH[case.name]) <= TOLERANCE


@pytest.mark.parametrize("case", [c for c in CASES if c.name in ("mixed", "sliding-bidirectional", "scales-and-cap")], ids=lambda c: c.name)
def test_a_drafter_misread_by_one_switch_is_not(case: Case):
    for name, drafter in wrong_readings(case).items():
        assert rm.summary_difference(rm.summary(case.outputs(drafter)), DFLASH[case.name]) > MISS, name


def test_the_muse_assistant_is_reproduced():
    assert rm.summary_difference(rm.summary(muse.outputs()), MUSE_SUMMARY) <= TOLERANCE


@pytest.mark.parametrize("mask", muse.wrong_masks())
def test_the_muse_assistant_under_another_mask_is_not(mask: str):
    assert rm.summary_difference(rm.summary(muse.outputs(muse.wrong_masks()[mask])), MUSE_SUMMARY) > MISS


@pytest.fixture(scope="module")
def smollm2() -> oracle.Target:
    try:
        return oracle.open_target(realtext.smollm2())
    except UsageError as e:
        pytest.skip(str(e))


def test_smollm2_on_real_text_is_reproduced(smollm2: oracle.Target):
    assert SMOL["model_sha256"] == realtext.SMOL_SHA256
    assert realtext.tokenizer(realtext.smollm2()).encode(realtext.PROMPT.read_text())[: smollm2_rows.ROWS] == SMOL["ids"]
    found = smollm2_rows.summary(smollm2.window(SMOL["ids"]).logits)
    assert smollm2_rows.difference(found, SMOL) <= SMOL_TOLERANCE


def test_smollm2_with_a_score_scale_off_by_one_percent_is_not(smollm2: oracle.Target):
    wrong = replace(smollm2, geometry=replace(smollm2.geometry, attn_scale=smollm2.geometry.attn_scale * 1.01))
    assert smollm2_rows.difference(smollm2_rows.summary(wrong.window(SMOL["ids"]).logits), SMOL) > MISS
