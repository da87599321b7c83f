"""A real model on real text: greedy output is the target's own for 256 tokens, whoever drafts."""

from __future__ import annotations

from pathlib import Path

import pytest

from oracle.speculation.acceptance import mlxcel
from parity.realtext import PROMPT, smollm2, tokenizer
from parity.speculating.greedy import compare
from parity.speculating.setup import Setup

pytestmark = pytest.mark.slow
TOKENS = 256


@pytest.mark.parametrize(("drafter", "least"), [("oracle", 0.3), ("lookup", 0.05), ("random", 0.0)])
def test_smollm2_s_text_is_its_own(drafter: str, least: float):
    model: Path = smollm2()
    prompt = tuple(tokenizer(model).encode(PROMPT.read_text())[:96])
    report, trace = compare(Setup(model, prompt, TOKENS, drafter, verify_length=8, schedule="mlxcel"), members=0, floor=least)
    assert report.identical and len(trace.emitted) == TOKENS and not report.broken
    assert report.rows.compared == TOKENS - 1 and report.rows.largest < 1e-9
    assert mlxcel(trace).tokens + 1 >= TOKENS
