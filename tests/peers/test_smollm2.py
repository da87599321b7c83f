"""The oracle's Llama target against Transformers on SmolLM2-135M and real text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oracle
from oracle.models import Target
from parity import realtext
from parity.errors import UsageError

pytestmark = pytest.mark.peers
TOLERANCE, MISS, ROWS = 1e-11, 1e-2, 56
CHUNKS = {"one window": (56,), "one by one, then blocks": (1, 1, 1, 5, 16, 7, 25), "halves": (28, 28)}


@pytest.fixture(scope="module")
def peer() -> Any:
    """The Llama of Transformers; imported only when a test of this module runs, so that deselecting them needs no torch."""
    for package in ("torch", "transformers", "tokenizers"):
        pytest.importorskip(package)
    from tests.peers import llama_peer

    return llama_peer


@pytest.fixture(scope="module")
def model() -> Path:
    try:
        return realtext.smollm2()
    except UsageError as e:
        pytest.skip(str(e))


@pytest.fixture(scope="module")
def target(model: Path) -> Target:
    return oracle.open_target(model)


@pytest.fixture(scope="module")
def ids(model: Path) -> list[int]:
    return realtext.tokenizer(model).encode(realtext.PROMPT.read_text())[:ROWS]


@pytest.fixture(scope="module")
def official(peer: Any, model: Path, ids: list[int]) -> Any:
    return peer.outputs(model, ids)


@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
def test_logits_agree_in_one_window_and_through_the_state(chunks: tuple[int, ...], target: Target, ids: list[int], official):
    assert sum(chunks) == len(ids)
    state, parts = None, []
    for stop, size in zip(np.cumsum(chunks), chunks, strict=True):
        out = target.window(ids[stop - size : stop], state)
        parts.append(out.logits)
        state = out.state
    assert np.abs(np.concatenate(parts) - official.logits).max() <= TOLERANCE


def test_the_state_that_drops_rejected_rows_goes_on_as_if_they_had_never_been(target: Target, ids: list[int], official):
    prefix = target.window(ids[:20])
    wrong = target.window([*ids[20:24], 7, 7, 7], prefix.state)
    rest = target.window(ids[24:32], wrong.state.keep(24))
    assert np.abs(rest.logits - official.logits[24:32]).max() <= TOLERANCE


def test_a_tap_is_the_residual_after_its_layer(target: Target, ids: list[int], official):
    taps = (0, 1, 14, 28)
    features = target.window(ids[:16], taps=taps).features.reshape(16, len(taps), -1)
    for number, tap in enumerate(taps):
        theirs = official.residuals[tap + 1][:16]
        assert np.abs(features[:, number] - theirs).max() <= 1e-12 * np.abs(theirs).max()
        assert np.abs(features[:, number] - official.residuals[tap][:16]).max() > MISS


@pytest.mark.parametrize("fault", ["eps", "pairs", "theta", "scale"])
def test_a_wrong_reading_misses(fault: str, target: Target, ids: list[int], official):
    g = target.geometry
    wrong = {
        "eps": replace(g, eps=g.eps * 10),
        "pairs": replace(g, rope=replace(g.rope, style="neox")),
        "theta": replace(g, rope=replace(g.rope, theta=1e4)),
        "scale": replace(g, attn_scale=g.attn_scale * 1.01),
    }[fault]
    logits = replace(target, geometry=wrong).window(ids[:16]).logits
    assert np.abs(logits - official.logits[:16]).max() > MISS


def test_widening_changed_nothing_but_the_precision(peer: Any, model: Path, ids: list[int], official):
    difference = np.abs(peer.outputs(model, ids, wide=False).logits - official.logits).max()
    assert 1e-7 < difference < 1e-2
