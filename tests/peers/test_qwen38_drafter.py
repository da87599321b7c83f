"""The oracle's DeepSpec drafter against the official package over twelve rounds."""

from __future__ import annotations

import pytest

from tests.peers import qwen38_drafter_cases as cases
from tests.peers import random_models as rm

pytestmark = pytest.mark.peers
TOLERANCE, MISS = 1e-12, 1e-3


@pytest.fixture(scope="module")
def official() -> rm.Outputs:
    for package in ("torch", "transformers", "dflash"):
        pytest.importorskip(package)
    from tests.peers import qwen38_drafter_peer

    return qwen38_drafter_peer.outputs()


def test_every_round_agrees(official):
    assert len(official) >= 10
    assert rm.largest_difference(cases.outputs(), official) <= TOLERANCE


def test_rejected_rows_leave_no_trace(official):
    assert rm.largest_difference(cases.outputs(rejected=4), official) <= TOLERANCE


def test_wrong_readings_miss(official):
    for wrong in (cases.drafter(causal=True), cases.drafter(theta=2 * cases.THETA)):
        assert rm.largest_difference(cases.outputs(wrong), official) > MISS
