"""Every switch of the dialect, and every value it names, changes at least one stage on a fixture: else no fixture could tell it wrong.

The switches are those that `oracle.drafters.dialect` declares; one that is added without a value here fails.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations

import numpy as np
import pytest

from oracle.drafters.dialect import ENGINES, Dialect, switches
from oracle.recipes import ROPE_STYLES
from oracle.weights import Weight
from tests.properties import families
from tests.properties.families import DRAFTERS, SINK, WINDOW, Lent

ROWS, PORTIONS, ROUNDS = 19, (7, 6), (3, 1, 2)
NUMBERS = {
    "eps": "1e-3", "attn_scale": "0.4", "embed_scale": "1.5", "output_multiplier": "0.4", "softcap": "5", "window": str(WINDOW + 1),
    "sink": str(SINK + 1), "rope_theta": "2e4",
}  # fmt: skip
CHOICES: dict[str, tuple[str, ...]] = {
    **Dialect.CHOICES,
    "rope_style": ROPE_STYLES,
    "block_mask": ("causal", "bidirectional"),
    **dict.fromkeys(("tap_norm", "ctx_layernorm", "conv", "selector", "sinks"), ("on", "off")),
}
VALUES = [(switch, value) for switch, values in CHOICES.items() for value in values] + list(NUMBERS.items())
# A drafter whose files have what a switch needs: heads, norms of taps, a gate, a sink.
NEEDS = {
    "anchor_layout": "dspark rnn", "sink": "muse-glimmer/muser", "tap_norm": "laguna/vllm", "attn_gate": "laguna/vllm",
    "conv": "dflash 2", "selector": "dflash 2", "confidence": "dspark rnn", "ctx_layernorm": "laguna/vllm",
}  # fmt: skip
MARKOV = {"none": "dspark rnn", "rnn": "dspark rnn", "gated": "dspark gated", "vanilla": "dspark vanilla"}


@cache
def fixture(switch: str, value: str) -> Lent:
    """For window rules one whose window is shorter than its bidirectional block, so that its right edge shows too."""
    if switch == "window_rule":
        return families.drafter("qwen3").read(window="3", block_mask="bidirectional")
    if switch == "sinks":
        return sunk(families.drafter("qwen3"))
    return families.drafter(MARKOV[value] if switch == "markov" else NEEDS.get(switch, "qwen3"))


def sunk(lent: Lent) -> Lent:
    """The drafter with an attention sink per head."""
    w = lent.drafter.weights
    sinks = Weight.of(np.linspace(-1, 1, lent.drafter.geometry.heads), ("head",))
    return lent.with_weights(replace(w, layers=tuple(replace(layer, sinks=sinks) for layer in w.layers)))


def current(lent: Lent, switch: str) -> str:
    d = lent.drafter.dialect
    if switch.startswith("rope_"):
        return str(getattr(d.rope, switch.removeprefix("rope_")))
    if switch == "block_mask":
        return "causal" if all(d.causal) else "bidirectional"
    found = getattr(d, switch)
    return {True: "on", False: "off"}[found] if isinstance(found, bool) else str(found)


def read(lent: Lent, switch: str, value: str) -> Lent:
    """The drafter under one value, with what that value needs beside it."""
    more = {"sink": str(SINK)} if value == "SINK_RING" else {}
    if switch == "confidence" and value == "hidden":
        return trimmed(lent)
    if switch == "markov" and value == "none" and lent.drafter.weights.confidence is not None:
        return trimmed(lent.read(markov="none", confidence="hidden"))
    return lent.read(**{switch: value}, **more)


def trimmed(lent: Lent) -> Lent:
    """The drafter with a confidence head over the hidden row alone: the left part of its weights."""
    w, width = lent.drafter.weights, lent.drafter.geometry.hidden
    short = type(w.confidence).of(w.confidence.array()[:, :width], w.confidence.axes)
    return lent.with_weights(replace(w, confidence=short)).read(confidence="hidden")


def stages(lent: Lent):
    return lent.stages(families.features(lent.drafter, ROWS), PORTIONS, ROUNDS)


def changed(one, other) -> list[str]:
    """Paths of stages that are not the same in both."""
    return sorted({key[1] for key in one.keys() ^ other.keys()} | {k[1] for k in one.keys() & other.keys() if not _same(one[k], other[k])})


def _same(a, b) -> bool:
    return a.shape == b.shape and np.array_equal(a, b)


def test_every_declared_switch_has_a_value_here():
    # The mask token is the geometry's: another one is another block, not another forward.
    assert {switch for switch, _ in VALUES} | {"engine", "mask_token_id"} == switches()


@pytest.mark.parametrize(("switch", "value"), VALUES, ids=lambda v: str(v))
def test_every_value_of_every_switch_changes_a_stage(switch: str, value: str):
    """Against the fixture as it is, or, where it is that already, against every other value."""
    lent = fixture(switch, value)
    mine = stages(read(lent, switch, value))
    if current(lent, switch) != value:
        assert changed(mine, stages(lent))
        return
    # Of the Markov heads a file has one.
    others = [v for v in CHOICES[switch] if v != value and (switch != "markov" or v == "none")]
    assert others and all(changed(mine, stages(read(lent, switch, v))) for v in others)


def test_window_rules_are_told_apart_pairwise():
    """Each is a set of its own."""
    lent = fixture("window_rule", "none")
    found = {rule: stages(read(lent, "window_rule", rule)) for rule in CHOICES["window_rule"]}
    assert [(a, b) for a, b in combinations(found, 2) if not changed(found[a], found[b])] == []


@pytest.mark.parametrize("family", ENGINES)
def test_every_engine_reads_the_family_as_no_other_but_its_equals(family: str):
    """``mlxcel`` and ``vllm`` are one reading of Laguna; all others differ pairwise."""
    found = {e: stages(families.drafter(f"{family}/{e}")) for e in ENGINES[family]}
    same = {(a, b) for a in found for b in found if a < b and not changed(found[a], found[b])}
    assert same == {(a, b) for a in found for b in found if a < b and ENGINES[family][a] == ENGINES[family][b]}


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_switches_that_every_drafter_has_are_felt_by_it(name: str):
    lent = families.drafter(name)
    before, felt = stages(lent), ("eps", "attn_scale", "rope_theta", "embed_scale", "output_multiplier", "softcap", "block_mask")
    for switch in felt:
        value = NUMBERS.get(switch) or {"causal": "bidirectional", "bidirectional": "causal"}[current(lent, switch)]
        assert changed(stages(lent.read(**{switch: value})), before), switch
    if lent.drafter.geometry.window is not None:
        assert changed(stages(lent.read(window=str(WINDOW + 1))), before)
        assert changed(stages(lent.read(window=str(WINDOW - 1))), before)


def test_a_switch_that_nothing_reads_would_be_found_out():
    """The check itself: the same drafter twice changes nothing."""
    lent = families.drafter("qwen3")
    assert changed(stages(lent), stages(lent.read(eps=str(lent.drafter.dialect.eps)))) == []
