"""The Llama-style target against its textbook form: one token at a time, a growing list of keys and values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from oracle.models import Target
from oracle.tape import Record
from oracle.weights import Weight
from tests.oracle import models


def normed(x: np.ndarray, w: Weight | None, eps: float) -> np.ndarray:
    return x if w is None else w.array() * x / math.sqrt(float(np.mean(x * x)) + eps)


def biased(y: np.ndarray, b: Weight | None) -> np.ndarray:
    return y if b is None else y + b.array()


def turned(x: np.ndarray, position: int, theta: float) -> np.ndarray:
    """One head rotated: halves pair up."""
    n = len(x) // 2
    angle = [position * theta ** (-2 * i / len(x)) for i in range(n)]
    c, s = np.cos(angle), np.sin(angle)
    return np.concatenate([x[:n] * c - x[n:] * s, x[n:] * c + x[:n] * s])


def textbook(t: Target, ids: list[int]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Logits [row, vocab] and the residual after every layer, [row, dim] each."""
    g, w = t.geometry, t.weights
    keys, values = ([[] for _ in w.layers] for _ in range(2))
    logits, residuals = [], [[] for _ in w.layers]
    for position, token in enumerate(ids):
        x = w.embedding.array()[token]
        for i, layer in enumerate(w.layers):
            xn = normed(x, layer.input_norm, g.eps)
            q, k, v = (
                biased(m.array() @ xn, b)
                for m, b in ((layer.q, layer.q_bias), (layer.k, layer.k_bias), (layer.v, layer.v_bias))
            )
            keys[i].append([turned(normed(h, layer.k_norm, g.eps), position, g.rope.theta) for h in k])
            values[i].append(v)
            heads = []
            for h in range(g.heads):
                mine = h // (g.heads // g.kv_heads)
                query = turned(normed(q[h], layer.q_norm, g.eps), position, g.rope.theta)
                weights = [math.exp(g.attn_scale * float(query @ key[mine])) for key in keys[i]]
                heads.append(sum(e * value[mine] for e, value in zip(weights, values[i], strict=True)) / sum(weights))
            x = x + biased(layer.o.array() @ np.concatenate(heads), layer.o_bias)
            xn = normed(x, layer.post_norm, g.eps)
            gate = layer.gate.array() @ xn
            x = x + layer.down.array() @ (gate / (1 + np.exp(-gate)) * (layer.up.array() @ xn))
            residuals[i].append(x)
        logits.append(w.head.array() @ normed(x, w.norm, g.eps))
    return np.array(logits), [np.array(r) for r in residuals]


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("head_norms", [False, True])
def test_a_window_is_the_textbook_decoder(biases, head_norms):
    t, ids = models.target(biased=biases, head_norms=head_norms), [3, 17, 3, 38, 0, 21]
    logits, residuals = textbook(t, ids)
    found = t.window(ids, taps=(2, 0))
    assert np.abs(found.logits - logits).max() < 1e-11
    assert np.abs(found.features - np.concatenate([residuals[2], residuals[0]], 1)).max() < 1e-11
    assert found.pick.tolist() == logits.argmax(1).tolist()


def test_a_tap_is_the_complete_residual_after_its_layer():
    t, tape = models.target(), Record()
    found = t.window([1, 2, 3], taps=(1,), tape=tape)
    assert found.features.tolist() == tape["target.L1.h_mlp"].data.tolist()
    assert t.window([1, 2, 3]).features.shape == (3, 0)


def test_ids_outside_the_vocabulary_are_refused():
    with pytest.raises(ValueError, match="token id 40 is outside"):
        models.target().window([1, 40])
