"""A tiny target of every family with a drafter that reads it: windows of 6 to 8 rows, so that a dozen rounds wrap them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from oracle.drafters.dialect import Dialect, Geometry
from oracle.models import Drafter, Target
from oracle.recipes import Rope
from oracle.speculation.caches import layer_windows
from oracle.speculation.schedules import SCHEDULES, Schedule
from oracle.speculation.verification import Verified
from oracle.targets.qwen38_weights import Qwen38Geometry
from tests.oracle import golden_laguna, models
from tests.peers import muse_target_cases, qwen38_cases
from tests.peers import random_models as rm

BLOCK = 5


@dataclass(frozen=True)
class Pair:
    """A target, a drafter for it, and the engine whose rounds they run in."""

    target: Target
    drafter: Drafter
    schedule: Schedule

    @property
    def vocab(self) -> int:
        """Ids that a test draws from."""
        return self.target.geometry.vocab - 2


def drafter_for(target: Target, taps: Sequence[int], rule: str, window: int | None, layout: str = "fill_in", seed: int = 11) -> Drafter:
    """One seeded layer over the target's taps."""
    g = target.geometry
    z = rm.Sizes(g.hidden, 24, 1, 4, 2, 8, len(taps), g.vocab, BLOCK)
    weights = rm.oracle_weights(rm.drafter_tensors(z, seed), z)
    sliding = (window is not None,)
    geometry = Geometry(
        g.hidden, 24, 1, 4, 2, 8, g.vocab, BLOCK, g.vocab - 3, tuple(taps), g.hidden, sliding=sliding, window=window,
        window_source="file" if window else "none",
    )  # fmt: skip
    dialect = Dialect(
        "qwen3", 1e-6, Rope(1e4, 8), 8**-0.5, causal=(False,), window_rule=rule, window=window, anchor_layout=layout,
        sink=2 if rule == "SINK_RING" else 0,
    )  # fmt: skip
    return Drafter(geometry, dialect, weights)


class _Shallow(qwen38_cases.Case):
    """A recurrent layer with n-grams and one of sparse attention."""

    @property
    def geometry(self) -> Qwen38Geometry:
        return replace(qwen38_cases.geometry((0,), layers=2), sparse=(False, True))


def shallow(target: Target, layers: int = 2) -> Target:
    """The first layers of a target: one that slides and one that sees everything, where it has both."""
    g, names = target.geometry, ("sliding", "roped", "sparse", "layer_heads")
    cut = {n: getattr(g, n)[:layers] for n in names if hasattr(g, n)}
    weights = replace(target.weights, layers=target.weights.layers[:layers])
    return replace(target, geometry=replace(g, layers=layers, **cut), weights=weights)


@cache
def pair(family: str) -> Pair:
    if family == "llama":
        t = shallow(models.target())
        return Pair(t, drafter_for(t, (0, 1), "none", None), SCHEDULES["z-lab"])
    if family == "muse-glimmer":
        t = muse_target_cases.target(2)
        t = replace(t, geometry=replace(t.geometry, placeholders=()))
        return Pair(t, drafter_for(t, (0, 1), "W_LE", 7), Schedule("muser", "drafts", None, False, "window"))
    if family == "laguna":
        t = shallow(golden_laguna.target(0x2222))
        return Pair(t, drafter_for(t, (0, 1), "W_LT", 6), SCHEDULES["mlxcel"])
    assert family == "qwen38-flash-next"
    t = _Shallow("two layers").target()
    return Pair(t, drafter_for(t, (0, 1), "none", None, "predict_next"), SCHEDULES["strata"])


FAMILIES = ("llama", "muse-glimmer", "laguna", "qwen38-flash-next")


class Forced:
    """A judge that accepts as many drafts as a test says; ``drawn`` counts its choices, as a stream its draws."""

    name = "forced"

    def __init__(self, accepts: int = 0) -> None:
        self.accepts, self.drawn = accepts, 0

    def first(self, logits: Any) -> int:
        return int(np.argmax(logits[: len(logits) - 2]))

    def choose(self, proposal: Any, vocab: int) -> tuple[int, ...]:
        self.drawn += len(proposal.drafts)
        return tuple(t % (vocab - 2) for t in proposal.drafts)

    def verify(self, drafts: Sequence[int], logits: Any) -> Verified:
        accepted = min(self.accepts, len(drafts))
        return Verified(accepted, self.first(logits[accepted]))

    def mark(self) -> Any:
        return self.drawn

    def restore(self, mark: Any) -> None:
        self.drawn = mark


def seen_rows(target: Target, state: Any, length: int) -> list[Any]:
    """Everything of a state that a later window can read, as arrays: per layer its visible rows or its recurrent state."""
    if hasattr(state, "tokens"):
        parts: list[Any] = [] if state.tokens is None else [state.tokens[-2:]]
        for layer in state.layers:
            if hasattr(layer, "keys"):
                parts += [layer.keys.data, layer.values.data, layer.index.data]
            else:
                parts += [layer.last.data, *(t.history.data for t in (layer.q, layer.k, layer.v))]
        return parts + [trail.history.data for _, trail in state.ple]
    parts = []
    for window, (k, v) in zip(layer_windows(target), state.layers, strict=True):
        first = 0 if window is None else max(length - window + 1, 0)
        parts += [k.data[first:length], v.data[first:length]]
    return parts


def apart(mine: list[Any], theirs: list[Any]) -> float:
    """Largest difference; infinity for other shapes."""
    if [np.shape(a) for a in mine] != [np.shape(b) for b in theirs]:
        return float("inf")
    return max((float(np.abs(a - b).max(initial=0)) for a, b in zip(mine, theirs, strict=True)), default=0.0)
