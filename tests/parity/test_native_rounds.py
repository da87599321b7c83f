"""Rounds that fail inside a session with a compiled drafter: its context is as before, and the text goes on as if nothing had been."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracle.artifacts import make_artifact
from oracle.speculation.rounds import STAGES, Session, decode
from parity.speculating.fused import FusedDrafter, FusedSession
from parity.speculating.setup import Setup, open_models, reading_of, session

SMALL: dict[str, Any] = {"hidden": 32, "intermediate": 32, "heads": 4, "kv_heads": 2, "head_dim": 8, "vocab": 67}
PROMPT = tuple(int(i) for i in np.random.default_rng(3).integers(0, 60, 11))


class Failed(Exception):
    """What the test makes a stage raise."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    sizes: dict[str, Any] = SMALL | {"block_size": 6, "mask_token_id": 66, "layers": 2, "sliding": (True, True), "window": 6}
    return make_artifact("qwen3", "tiny", "f32", tmp_path_factory.mktemp("native-rounds"), 5, **sizes)


@pytest.fixture
def made(pair: tuple[Path, Path], request: pytest.FixtureRequest) -> Iterator[tuple[Session, list[int]]]:
    """A session in the CPU library, and the target's own text."""
    setup = Setup(pair[1], PROMPT, 14, "steered", pair[0], "qwen3", request.param, verify_length=5, accepts=(2, 0, None), candidate="cpu")
    models = open_models(setup)
    with reading_of("cpu", 1) as reading:
        text, _ = decode(models.target, PROMPT, 24, reading)
        yield session(setup, models, text, reading), text


def cells(drafting: FusedDrafter) -> list[Any]:
    positions, layers = drafting.held()
    return [positions, *(x for layer in layers for x in layer)]


RING = (("window_rule", "SINK_RING"), ("window", "6"), ("sink", "2"))


@pytest.mark.parametrize("made", [(), RING], ids=["whole", "ring"], indirect=True)
def test_a_failed_round_changes_nothing_and_the_text_goes_on(made: tuple[Session, list[int]]) -> None:
    s, text = made
    drafting = s.drafting
    assert isinstance(s, FusedSession) and isinstance(drafting, FusedDrafter)
    at: list[str] = []

    def hook(stage: str) -> None:
        if at and stage == at[0]:
            raise Failed(stage)

    s.hook = hook
    s.prefill()
    for stage in (*STAGES, None):
        if stage is not None:
            before = (cells(drafting), list(s.tokens), list(s.emitted), s.cache.length, drafting.length, drafting.mark())
            at[:] = [stage]
            with pytest.raises(Failed):
                s.round()
            at.clear()
            after = (cells(drafting), list(s.tokens), list(s.emitted), s.cache.length, drafting.length, drafting.mark())
            assert after[1:] == before[1:], stage
            # A ring evicts at the end of a block, and does not get back what it gave up.
            held = np.isin(before[0][0], after[0][0])
            assert held[-min(6, len(held)) :].all() and held[:2].all(), stage
            for a, b in zip(before[0], after[0], strict=True):
                np.testing.assert_array_equal(a[held], b)
        if not s.done:
            s.round()
    while not s.done:
        s.round()
    assert s.emitted == text[:14] and {r.accepted for r in s.trace.rounds} >= {0, 2}
