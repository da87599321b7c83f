"""A small seeded drafter and target in float32, with every part a layer can have: biases, head norms, two kinds of layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from oracle.drafters.dialect import Dialect, Geometry
from oracle.drafters.weights import DrafterWeights, LayerWeights, MarkovWeights, SelectorWeights
from oracle.models import Drafter, Target
from oracle.recipes import Rope
from oracle.targets.weights import TargetGeometry, TargetWeights
from oracle.tensor import Array, Axes
from oracle.weights import Weight

HIDDEN, INTER, LAYERS, HEADS, KV, DIM, TAPS, VOCAB, BLOCK = 24, 32, 3, 4, 2, 8, 2, 40, 5
MASK = VOCAB - 1
IDS = np.array([3] + [MASK] * (BLOCK - 1))

# One changed value of every switch of the dialect, from the default of `drafter`.
SWITCHES: dict[str, dict[str, Any]] = {
    "eps": {"eps": 1e-3},
    "rope": {"rope": Rope(2e4, DIM)},
    "rope style": {"rope": Rope(1e4, DIM, "interleaved")},
    "attn_scale": {"attn_scale": 0.4},
    "causal": {"causal": (True,) * LAYERS},
    "causal of one layer": {"causal": (False, False, True)},
    "window": {"window": 5},
    "embed_scale": {"embed_scale": 2.0},
    "output_multiplier": {"output_multiplier": 0.2},
    "softcap": {"softcap": 5.0},
    "tap_norm": {"tap_norm": True},
    "ctx_layernorm": {"ctx_layernorm": True},
    "attn_gate": {"attn_gate": "softplus"},
    "kind of attn_gate": {"attn_gate": "sigmoid"},
    "conv": {"conv": True},
}

# What is chosen after the logits: these switches change no stage before them.
HEADS_OF_A_DRAFTER: dict[str, dict[str, Any]] = {
    "selector": {"selector": True},
    "markov": {"markov": "vanilla"},
    "gated markov": {"markov": "gated"},
    "recurrent markov": {"markov": "rnn"},
    "confidence": {"confidence": "hidden"},
    "confidence with markov": {"markov": "gated", "confidence": "markov"},
    "every row drafted": {"markov": "rnn", "confidence": "hidden", "anchor_layout": "predict_next"},
}
TAPS_OF_CONV, GROUP, RANK, TOP = 2, 4, 6, 5


class _Seeded:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def matrix(self, axes: Axes, *shape: int) -> Weight:
        return Weight.of(self.rng.standard_normal(shape) / np.sqrt(shape[-1]), axes)

    def vector(self, n: int, around: float = 1.0) -> Weight:
        return Weight.of(around + 0.3 * self.rng.standard_normal(n), ("dim",))

    def bias(self, heads: int) -> Weight:
        return Weight.of(0.2 * self.rng.standard_normal((heads, DIM)), ("head", "dim"))

    def layer(self, biased: bool, head_norms: bool) -> LayerWeights:
        heads, flat = ("head", "dim", "in"), ("dim", "in")
        parts: dict[str, Any] = {"input_norm": self.vector(HIDDEN), "post_norm": self.vector(HIDDEN)}
        parts |= {"q": self.matrix(heads, HEADS, DIM, HIDDEN)} | {n: self.matrix(heads, KV, DIM, HIDDEN) for n in ("k", "v")}
        parts |= {"o": self.matrix(flat, HIDDEN, HEADS * DIM), "down": self.matrix(flat, HIDDEN, INTER)}
        parts |= {n: self.matrix(flat, INTER, HIDDEN) for n in ("gate", "up")}
        parts |= {"attn_gate": self.matrix(("head", "in"), HEADS, HIDDEN)}
        if head_norms:
            parts |= {n: self.vector(DIM) for n in ("q_norm", "k_norm")}
        if biased:
            parts |= {"q_bias": self.bias(HEADS), "k_bias": self.bias(KV), "v_bias": self.bias(KV), "o_bias": self.vector(HIDDEN, 0.0)}
        return LayerWeights(**parts)

    def conv(self) -> dict[str, Weight]:
        parts = {}
        for part in ("attn_conv", "mlp_conv"):
            parts[f"{part}_base"] = self.matrix(("side", "tap", "dim"), 2, TAPS_OF_CONV, HIDDEN)
            parts[f"{part}_kernel"] = self.matrix(("side", "tap", "group", "in"), 2, TAPS_OF_CONV, HIDDEN // GROUP, HIDDEN)
        return parts

    def markov(self) -> MarkovWeights:
        books = (self.matrix(("vocab", "in"), VOCAB, RANK) for _ in range(2))
        gate, joint = self.matrix(("dim", "in"), RANK, HIDDEN + RANK), self.matrix(("part", "dim", "in"), 3, RANK, 2 * RANK + HIDDEN)
        bias = Weight.of(0.2 * self.rng.standard_normal((3, RANK)), ("part", "dim"))
        return MarkovWeights(*books, gate, self.vector(RANK, 0.0), joint, bias)

    def selector(self) -> SelectorWeights:
        books = (self.matrix(("vocab", "in"), VOCAB, RANK) for _ in range(2))
        return SelectorWeights(*books, self.matrix(("dim", "in"), RANK, HIDDEN))


def drafter(seed: int = 1, *, biased: bool = False, head_norms: bool = True, **switches: Any) -> Drafter:
    """Layers 0 and 1 slide, layer 2 does not; ``switches`` are fields of the dialect."""
    make = _Seeded(seed)
    layers = tuple(make.layer(biased, head_norms) for _ in range(LAYERS))
    ends = (make.matrix(("dim", "in"), HIDDEN, TAPS * HIDDEN), make.vector(HIDDEN))
    weights = DrafterWeights(*ends, layers, make.vector(HIDDEN), make.vector(TAPS * HIDDEN))
    sliding = (True, True, False)
    dialect = Dialect("qwen3", 1e-6, Rope(1e4, DIM), DIM**-0.5, causal=(False,) * LAYERS)
    geometry = Geometry(
        HIDDEN, INTER, LAYERS, HEADS, KV, DIM, VOCAB, BLOCK, MASK, (0, 1), HIDDEN, sliding=sliding,
        conv_kernel=TAPS_OF_CONV, conv_group=GROUP, selector_rank=RANK, selector_top_k=TOP, markov_rank=RANK,
    )  # fmt: skip
    more = _Seeded(seed + 100)
    convolved = tuple(replace(layer, **more.conv()) for layer in weights.layers) if switches.get("conv") else weights.layers
    wide = switches.get("confidence") == "markov"
    weights = replace(
        weights, layers=convolved, selector=more.selector(), markov=more.markov(),
        confidence=more.matrix(("dim", "in"), 1, HIDDEN + (RANK if wide else 0)), confidence_bias=more.vector(1, 0.0),
    )  # fmt: skip
    return Drafter(geometry, replace(dialect, **switches), weights)


def target(seed: int = 2, *, biased: bool = False, head_norms: bool = False) -> Target:
    make = _Seeded(seed)
    layers = tuple(make.layer(biased, head_norms) for _ in range(LAYERS))
    embedding, head = (make.matrix(("vocab", "in"), VOCAB, HIDDEN) for _ in range(2))
    geometry = TargetGeometry("llama", HIDDEN, INTER, LAYERS, HEADS, KV, DIM, VOCAB, 1e-5, Rope(1e4, DIM), DIM**-0.5)
    return Target(geometry, TargetWeights(embedding, layers, make.vector(HIDDEN), head))


def features(rows: int, seed: int = 3) -> Array:
    """Taps of ``rows`` positions that float32 holds, [row, taps * dim]."""
    values = np.random.default_rng(seed).standard_normal((rows, TAPS * HIDDEN))
    return values.astype(np.float32).astype(np.float64)


EMBEDDING, HEAD = (_Seeded(4).matrix(("vocab", "in"), VOCAB, HIDDEN), _Seeded(5).matrix(("vocab", "in"), VOCAB, HIDDEN))
