"""Target and drafter in the CPU library over whole generations, fused and op by op: proposals, accepts, commits and crops agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracle.artifacts import make_artifact
from oracle.speculation.verification import Verified
from parity.errors import UsageError
from parity.speculating import greedy
from parity.speculating.arms import arms
from parity.speculating.bugs import BUGS
from parity.speculating.fused import FusedDrafter, FusedSession, NativeGreedy
from parity.speculating.greedy import GreedyReport, compare
from parity.speculating.setup import Setup
from tests.artifacts.test_artifact_heads import DFLASH2, DSPARK, FEWER

SMALL = {"hidden": 32, "intermediate": 32, "heads": 4, "kv_heads": 2, "head_dim": 8, "vocab": 67}
PROMPT = tuple(int(i) for i in np.random.default_rng(3).integers(0, 60, 11))
PAIRS: dict[str, dict[str, Any]] = {
    "qwen3": SMALL | {"block_size": 6, "mask_token_id": 66},
    "muse-glimmer": SMALL | {"window": 9, "block_size": 6, "mask_token_id": 66},
    "laguna": {"window": 6},
    "qwen38-flash-next": {},
}
HEADS = {"dflash 2": DFLASH2, "gated": DSPARK | {"markov": "gated", "sample_from_anchor": False}, "reduced": {"draft_vocab": 40}}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    known: dict[str, tuple[Path, Path]] = {}

    def pair(name: str) -> tuple[Path, Path]:
        if name not in known:
            family, sizes = (name, PAIRS[name]) if name in PAIRS else ("qwen3", FEWER | HEADS[name])
            where = tmp_path_factory.mktemp(name.replace(" ", "-"))
            known[name] = make_artifact(family, "tiny", "f32", where, 5, "safetensors" if name in HEADS else None, **sizes)
        return known[name]

    return pair


def setup(pair: tuple[Path, Path], **changes: Any) -> Setup:
    base: dict[str, Any] = {"max_new": 16, "drafter": "steered", "accepts": (0, 2, None, 1), "candidate": "cpu"}
    return Setup(pair[1], **({"prompt": PROMPT, "drafter_path": pair[0]} | base | changes))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both arms in this process, where a test can plant."""
    monkeypatch.setattr(greedy, "run", lambda setup, timeout: arms(setup))


def healthy(report: GreedyReport) -> None:
    assert report.verdict == "parity", report.broken
    assert report.identical and report.proposals is not None and report.proposals.rows >= 15
    assert 0 < report.proposals.ratio < 1 and not report.proposals.wrong
    assert report.context and max(report.context.values()) < report.rebuild


@pytest.mark.parametrize(("name", "entry"), [*((n, "fused") for n in PAIRS), ("qwen3", "op"), ("muse-glimmer", "op")])
def test_whole_generations_of_the_cpu_library_are_the_oracle_s(made: Any, here: None, name: str, entry: str) -> None:
    report, trace = compare(setup(made(name), family=name, entry=entry), members=2)
    healthy(report)
    assert {0, 1, 2} < {r.accepted for r in trace.rounds}, "rounds that refuse and rounds that accept several"


@pytest.mark.parametrize("name", HEADS)
def test_drafters_with_heads_draft_by_themselves(made: Any, here: None, name: str) -> None:
    report, trace = compare(setup(made(name), family="qwen3", drafter="model", accepts=(None,)), members=2)
    healthy(report)
    assert trace.header.chooser == {"dflash 2": "selector", "gated": "markov", "reduced": "argmax"}[name]


def test_the_library_s_own_calls_end_the_rounds(made: Any, here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for cls, name in ((FusedDrafter, "verify"), (NativeGreedy, "verify")):
        real = getattr(cls, name)
        monkeypatch.setattr(cls, name, lambda *a, real=real, cls=cls: (calls.append(cls.__name__), real(*a))[1])
    for entry, expected in (("fused", "FusedDrafter"), ("op", "NativeGreedy")):
        calls.clear()
        compare(setup(made("qwen3"), family="qwen3", entry=entry, max_new=8), members=0)
        assert set(calls) == {expected}
    with pytest.raises(UsageError, match="--entry fused: candidate f32 has no fused drafter"):
        compare(setup(made("qwen3"), family="qwen3", candidate="f32", entry="fused"), members=0)


def wrong_rows(self: FusedDrafter, features: Any, start: int) -> None:
    """Appends one row late what it should have committed."""
    rows = np.ascontiguousarray(np.roll(features, -1, 0), np.float32)
    self.library.append(rows, start)
    self._length = start + len(rows)


def wrong_accept(self: FusedSession, window: Any, out: Any) -> Verified:
    made = self.drafting.verify(window[1:], out, len(self.tokens) - 1)
    return Verified(max(made.accepted - 1, 0), made.bonus)


def wrong_row(self: FusedDrafter, tokens: Any, block: Any, drafts: Any, logits: Any) -> Any:
    return real_proposal(self, tokens, block, np.roll(drafts, 1), np.roll(logits, 1, 0))


def wrong_scale(self: FusedDrafter, tokens: Any, block: Any, drafts: Any, logits: Any) -> Any:
    return real_proposal(self, tokens, block, drafts, logits * 1.001)


@pytest.mark.parametrize("name", [n for n, b in BUGS.items() if b.session and n != "bonus.by-value"])
def test_bugs_of_the_loop_are_named_around_a_compiled_drafter_too(made: Any, here: None, name: str) -> None:
    drafter = "model" if BUGS[name].drafts else "steered"
    report = compare(setup(made("qwen3"), family="qwen3", entry="fused", drafter=drafter, plant=name, accepts=(0, 2)), members=2)[0]
    assert report.verdict == "divergence" and BUGS[name].check in report.explanation, report.explanation


real_proposal = FusedDrafter.proposal
PLANTS = {
    "a context fed one row late": (FusedDrafter, "commit", wrong_rows, "drafter context: layers"),
    "one accepted draft too few": (FusedSession, "verify", wrong_accept, "accepted, "),
    "drafts read one row off": (FusedDrafter, "proposal", wrong_row, "proposals: "),
    "logits off by a thousandth": (FusedDrafter, "proposal", wrong_scale, "x tolerance from the oracle drafter's"),
}


@pytest.mark.parametrize("name", PLANTS)
def test_a_mistake_around_the_library_is_found(made: Any, here: None, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    cls, method, planted, told = PLANTS[name]
    monkeypatch.setattr(cls, method, planted)
    drafter = "model" if name == "drafts read one row off" else "steered"
    report = compare(setup(made("qwen3"), family="qwen3", entry="fused", drafter=drafter), members=2)[0]
    assert report.verdict == "divergence" and any(told in line for line in report.broken), report.broken
