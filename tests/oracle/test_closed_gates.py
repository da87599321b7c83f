"""A gate that is nearly closed leaves float32's normal range: an absolute error, which the rules know."""

from __future__ import annotations

import numpy as np
import pytest

from oracle.tensor import Axes, Tensor
from tests.oracle.calls import HEADS, ROWS, declared, f32, measure, stage


def closed(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Logits about where a sigmoid becomes subnormal, and far beyond."""
    return f32(-rng.uniform(80, 120, shape))


def small(rng: np.random.Generator, axes: Axes, *shape: int) -> Tensor:
    return Tensor(f32(rng.standard_normal(shape) * 10.0 ** rng.uniform(-4, 1, shape)), axes)


def joint(rng: np.random.Generator) -> Tensor:
    parts = np.stack([closed(rng, 40, 16), np.zeros((40, 16)), np.zeros((40, 16))], 1)
    return Tensor(parts, ("row", "part", "dim"))


CALLS = {
    "gate sigmoid": lambda rng: stage("gate", small(rng, HEADS, 40, 2, 8), Tensor(closed(rng, 40, 2, 8), HEADS), kind="sigmoid"),
    "gate softplus": lambda rng: stage("gate", small(rng, HEADS, 40, 2, 8), Tensor(closed(rng, 40, 2, 8), HEADS), kind="softplus"),
    "stream_gate": lambda rng: stage("stream_gate", small(rng, ROWS, 40, 8), Tensor(closed(rng, 40, 2), ("row", "stream"))),
    "swiglu": lambda rng: stage("swiglu", Tensor(closed(rng, 40, 16), ROWS), small(rng, ROWS, 40, 16)),
    "silu": lambda rng: stage("silu", Tensor(closed(rng, 40, 16), ROWS)),
    "squash": lambda rng: stage("squash", Tensor(closed(rng, 40, 16), ROWS), scale=1.0, gain=2.0),
    "sigmoid": lambda rng: stage("sigmoid", Tensor(closed(rng, 40, 16), ROWS)),
    "hc_read": lambda rng: stage("hc_read", small(rng, ROWS, 40, 16), Tensor(closed(rng, 40, 16), ROWS), streams=2),
    "markov_state": lambda rng: stage("markov_state", small(rng, ROWS, 40, 16), joint(rng)),
}


@pytest.mark.parametrize("name", CALLS)
def test_errors_of_a_closed_gate_are_within_their_rule(name: str) -> None:
    for seed in range(4):
        m = measure(declared("sequential"), CALLS[name](np.random.default_rng(seed)))
        assert m.z.max() <= 8
        assert m.reach(declared("sequential"), m.worst(m.error.size)).max() <= 1
