"""The oracle's Qwen3.8-Flash-Next target reproduces what Transformers gave; torch is not needed."""

from __future__ import annotations

import pytest

from tests.peers import qwen38_drafter_cases as drafts
from tests.peers import random_models as rm
from tests.peers.golden.files import read
from tests.peers.qwen38_cases import CASES, Case, portioned, summary, summary_difference, wrong_readings

GOLDEN = read("qwen38_target")
TOLERANCE, MISS = 1e-11, 1e-3


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_target_is_reproduced(case: Case):
    assert summary_difference(summary(portioned(case, (case.rows,))), GOLDEN[case.name]) <= TOLERANCE


def test_it_is_reproduced_in_windows_whose_rows_are_partly_taken_back():
    case = CASES[0]
    assert summary_difference(summary(portioned(case, (1, 2, 17, 5, 9, 1, 6), rejected=3)), GOLDEN[case.name]) <= TOLERANCE


@pytest.mark.parametrize("name", wrong_readings(CASES[0]))
def test_a_target_misread_in_one_convention_is_not(name: str):
    case = CASES[0]
    found = portioned(case, (case.rows,), target=wrong_readings(case)[name])
    assert summary_difference(summary(found), GOLDEN[case.name]) > MISS


def test_the_drafter_is_reproduced_over_twelve_rounds():
    golden = read("qwen38_drafter")
    wanted = {key: golden[key] for key in ("hidden_means", "logit_means", "last_hidden", "last_logits")}
    assert rm.summary_difference(rm.summary(drafts.outputs()), wanted) <= 1e-12
    assert rm.summary_difference(rm.summary(drafts.outputs(drafts.drafter(causal=True))), wanted) > MISS
