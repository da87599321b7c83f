"""Every mistake that an operation's module supposes is named when it is made: planted in the operation, found from the values alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oracle.arithmetic import named
from oracle.ngrams import NGrams
from oracle.ops import OPS
from oracle.readings import Noise, Stage
from oracle.recipes import Rope, Visible
from oracle.tensor import Tensor
from oracle.weights import Weight
from parity.explain import _specific, explain
from parity.explain.base import Suspect
from parity.explain.sources import SOURCES
from parity.judge import Judge

F32 = named("f32")
RNG = np.random.default_rng(3)


def t(*shape: int, axes: tuple[str, ...] = (), spread: float = 1.0) -> Tensor:
    names = axes or {1: ("row",), 2: ("row", "dim"), 3: ("row", "head", "dim"), 4: ("row", "head", "key", "dim")}[len(shape)]
    return Tensor((spread * RNG.standard_normal(shape)).astype(np.float32).astype(np.float64), names)


def w(*shape: int, axes: tuple[str, ...] = (), base: float = 0.0, spread: float = 1.0) -> Weight:
    names = axes or (("dim",) if len(shape) == 1 else ("dim", "in") if len(shape) == 2 else ("head", "dim", "in"))
    return Weight.of(base + spread * RNG.standard_normal(shape), names, "f32", "weight")


def stage(op: str, *args: object, path: str = "target.L1.x", **params: object) -> Stage:
    return Stage(path, OPS[op], args, params)


def chosen(*rows: list[int]) -> Tensor:
    return Tensor(np.array(rows, float), ("row", "rank"))


def calls() -> dict[str, Stage]:
    q_pos, k_pos = np.arange(24, 29), np.arange(29)
    window = Visible("W_LE", False, 9, q_pos, k_pos, 24)
    table = w(60, 4)
    recipe = NGrams(3, 2, (7, 13, 29), (11, 13, 17, 19), (0, 11, 24, 41), 0)
    sel = chosen([3, 0, 5], [1, 2, 7], [6, 4, 0], [2, 3, 1])
    experts = tuple(w(8, 8) for _ in range(8))
    scores = Tensor(np.random.default_rng(1).uniform(0.05, 0.95, (4, 8)).astype(np.float32).astype(float), ("row", "expert"))
    return {
        "rope": stage("rope", t(4, 6, 16), np.arange(30, 34), Rope(1e4, 16)),
        "rope, partial": stage("rope", t(4, 2, 16), np.arange(9, 13), Rope(5e5, 8, "interleaved", None, 1.3)),
        "rms_norm": stage("rms_norm", t(5, 32), w(32, base=1.0, spread=0.3), eps=1e-6),
        "rms_norm, 1 + w": stage("rms_norm", t(5, 3, 16), w(16, spread=0.3), eps=1e-6, offset=1.0),
        "rms_norm, groups": stage("rms_norm", t(5, 32), w(32, base=1.0, spread=0.3), eps=1e-6, groups=4),
        "l2_norm": stage("l2_norm", t(5, 4, 16), eps=1e-6, scale=0.25),
        "linear": stage("linear", t(6, 64), w(64, 64), w(64)),
        "attention": stage("attention", t(5, 6, 8), t(29, 2, 8), t(29, 2, 8), visible=window, scale=8**-0.5),
        "swiglu": stage("swiglu", t(5, 32, spread=2.0), t(5, 32)),
        "gate": stage("gate", t(5, 4, 8), t(5, 4, 8), kind="sigmoid"),
        "gate, per head": stage("gate", t(5, 4, 8), t(5, 4, axes=("row", "head")), kind="softplus"),
        "softcap": stage("softcap", t(5, 32, spread=40.0), scale=0.2, cap=20.0),
        "add": stage("add", t(5, 32), t(5, 32)),
        "silu": stage("silu", t(5, 32, spread=3.0), scale=0.25),
        "sigmoid": stage("sigmoid", t(5, 8, axes=("row", "expert"), spread=2.0)),
        "squash": stage("squash", t(5, 4), scale=0.25, gain=2.0),
        "stream_gate": stage("stream_gate", t(5, 16), t(5, 4, axes=("row", "stream"))),
        "hc_read": stage("hc_read", t(5, 32), t(5, 32), streams=4),
        "hc_write": stage("hc_write", t(5, 32), t(5, 8), t(5, 4, axes=("row", "stream"))),
        "softmax": stage("softmax", t(5, 8, axes=("row", "expert"))),
        "expert_weights": stage("expert_weights", scores, sel, scale=2.5),
        "expert_linear": stage("expert_linear", t(4, 8), sel, experts),
        "expert_sum": stage(
            "expert_sum",
            t(4, 3, 16, axes=("row", "rank", "dim")),
            Tensor(np.array([[0.5, 0.3, 0.2]] * 4) + scores.data[:, :3], ("row", "rank")),
        ),
        "gather": stage("gather", w(40, 16, axes=("vocab", "dim")), np.array([7, 39, 39, 39, 39]), scale=3.0),
        "part": stage("part", t(5, 4, 16), start=0, stop=8),
        "replicate": stage("replicate", t(5, 8), copies=4),
        "join": stage("join", t(5, 8), t(5, 8)),
        "delta_state": stage(
            "delta_state",
            Tensor(t(4, 6, 6).data, ("head", "key", "dim")),
            t(5, 2, 6),
            t(5, 4, 6),
            Tensor(-np.abs(t(5, 4).data), ("row", "head")),
            Tensor(np.random.default_rng(2).uniform(0.2, 0.8, (5, 4)), ("row", "head")),
        ),
        "delta_read": stage("delta_read", t(5, 4, 6, 6), t(5, 2, 6)),
        "decay": stage("decay", t(5, 4, axes=("row", "head")), w(4, spread=0.5), w(4)),
        "short_conv": stage("short_conv", t(6, 2, 4), t(3, 2, 4), w(2, 4, 4, axes=("head", "dim", "tap"))),
        "dynamic_conv": stage(
            "dynamic_conv",
            t(6, 8),
            Tensor(RNG.standard_normal((6, 2, 3, 4)), ("row", "side", "tap", "group")),
            Weight.of(RNG.standard_normal((2, 3, 8)), ("side", "tap", "dim"), "f32"),
            side=0,
        ),
        "markov_state": stage("markov_state", t(1, 16), Tensor(RNG.standard_normal((1, 3, 16)), ("row", "part", "dim"))),
        "markov_output": stage("markov_output", Tensor(RNG.standard_normal((1, 3, 16)), ("row", "part", "dim"))),
        "ngram": stage("ngram", table, np.array([5, 8, 0, 9, 3, 2]), np.array([4, 6]), recipe),
        "ple_gate": stage("ple_gate", t(5, 32), t(5, 32), streams=4),
        "block_mean": stage("block_mean", t(18, 1, 8, axes=("cell", "head", "dim")), ratio=4),
        "index_scores": stage(
            "index_scores", t(5, 3, 8), t(6, 1, 8, axes=("block", "head", "dim")), np.arange(15, 20), ratio=4, scale=8**-0.5
        ),
        "selector_scores": stage(
            "selector_scores",
            t(1, 20, axes=("row", "vocab")),
            chosen([3, 7, 11]),
            t(1, 8),
            Tensor(np.array([5.0]), ("row",)),
            w(20, 8),
            w(20, 8),
        ),
        "sink_attention": stage(
            "sink_attention", t(5, 6, 8), t(29, 2, 8), t(29, 2, 8), w(6, axes=("head",)), visible=window, scale=8**-0.5
        ),
    }


CALLS = calls()


def suspect(call: Stage, c: np.ndarray) -> Suspect | None:
    y = Noise(F32).apply(call)
    where = Judge(F32, 10_000).judge(call, y, c).ratio > 1
    return Suspect(call, y, c, where) if where.any() else None


def mistaken(call: Stage) -> list[tuple[str, str, np.ndarray]]:
    """(kind, text, values in f32) of every mistake the module supposes when all values are wrong."""
    y = Noise(F32).apply(call)
    # A stream of its own: what is planted does not depend on which tests ran before.
    wrong = y.data + np.random.default_rng(11).standard_normal(y.data.shape)
    everything = Suspect(call, y, wrong, np.ones(y.data.shape, bool))
    made = []
    with np.errstate(all="ignore"):
        for h in _specific(everything):
            try:
                value = Noise(F32).apply(h.stage)
            except (ValueError, IndexError):
                continue
            value = value if h.after is None else h.after(value)
            if value.data.shape == y.data.shape and np.isfinite(value.data).all():
                made.append((h.kind, h.text, value.data.astype(np.float32).astype(np.float64)))
    return made


@pytest.mark.parametrize("name", CALLS)
def test_every_mistake_of_the_module_is_named_when_it_is_made(name):
    call, seen = CALLS[name], 0
    for kind, text, c in mistaken(call):
        s = suspect(call, c)
        if s is None or not np.ptp(c):
            continue
        found = explain(Judge(F32, 10_000), s)
        assert found, (kind, text, "nothing explains it")
        first = found[0]
        # Two mistakes may make the same values: then either may stand first, and the other is a tie.
        assert first.ratio <= 1 and (kind in {e.kind for e in found if e.tie or e is first}), (
            kind,
            text,
            [(e.kind, e.text, e.tie) for e in found],
        )
        seen += 1
    assert seen, "no mistake could be planted"


def test_every_operation_with_values_has_a_module():
    """What is chosen has its own rules (`parity.explain.choices`); what an id stands for is read from a table."""
    chosen_elsewhere = {"argmax", "choose", "select", "select_cells", "to_target", "l2_norm"}
    assert set(OPS) - set(SOURCES) <= chosen_elsewhere
    assert {c.op.name for c in CALLS.values()} | {"given", "cells"} == set(SOURCES)


def test_noise_is_not_explained():
    for name, call in CALLS.items():
        y = Noise(F32).apply(call)
        c = y.data + 1e-3 * np.abs(y.data).max() * np.random.default_rng(5).standard_normal(y.data.shape)
        s = suspect(call, c)
        assert s is not None
        assert not explain(Judge(F32, 10_000), s), (name, explain(Judge(F32, 10_000), s))


def test_a_suspect_of_some_rows_leaves_the_others_alone():
    call = CALLS["linear"]
    y = Noise(F32).apply(call)
    wrong = y.data.copy()
    wrong[2] *= 1.01
    s = suspect(call, wrong)
    assert s is not None and s.rows.tolist() == [2]
    assert explain(Judge(F32, 10_000), s)[0].text == "the result times 1.01"
    assert replace(s, where=s.where).only("row", [1]).rows.tolist() == []
