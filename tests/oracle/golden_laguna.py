"""The tiny Laguna target and drafter of `specs/laguna.md` sections 5.4 and 5.5, built from their generator."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracle.artifacts.ropes import yarn_factors
from oracle.drafters.dialect import Dialect, Geometry
from oracle.drafters.weights import DrafterWeights, LayerWeights
from oracle.models import Drafter, Target
from oracle.recipes import Rope
from oracle.targets.laguna import LagunaGeometry, LagunaLayer, LagunaWeights
from oracle.targets.moe import Mixture, parts
from oracle.tensor import Array, Axes
from oracle.weights import Weight

VOCAB, HIDDEN, INTER, DIM, KV, WINDOW, EXPERTS, MOE = 32, 16, 24, 8, 2, 6, 4, 8
HEADS, SLIDING, SPARSE = (2, 4, 2, 4), (False, True, False, True), (False, True, True, True)
TAPS, MASK = (1, 3), 31
PROMPT = [3, 17, 9, 25, 4, 12, 30, 7, 18, 2, 21, 11]


class Generator:
    """The 64-bit linear congruential generator of section 5.4; values are products of two float32."""

    def __init__(self, seed: int) -> None:
        self.state = seed

    def values(self, scale: float, *shape: int) -> Array:
        out = np.empty(int(np.prod(shape)), np.float32)
        for i in range(len(out)):
            self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
            out[i] = np.float32(2 * ((self.state >> 40) / 2**24) - 1) * np.float32(scale)
        return out.astype(np.float64).reshape(shape)


class Model:
    """Named float64 tensors, drawn in the order they are asked for; every norm is 1 until `spread_norms`."""

    def __init__(self, seed: int) -> None:
        self.random, self.tensors = Generator(seed), dict[str, Array]()

    def draw(self, name: str, scale: float, *shape: int) -> None:
        self.tensors[name] = self.random.values(scale, *shape)

    def norms(self, **sizes: int) -> None:
        self.tensors |= {name.replace("__", "."): np.ones(size) for name, size in sizes.items()}

    def spread_norms(self, seed: int) -> None:
        """Every norm weight 1 + u/4, one generator over their full names in lexicographic order."""
        random = Generator(seed)
        for name in sorted(n for n, t in self.tensors.items() if n.endswith("norm") or "aux_hidden_norms" in n):
            self.tensors[name] = 1 + random.values(0.25, *self.tensors[name].shape)

    def weight(self, name: str, *axes: str, shape: tuple[int, ...] | None = None) -> Weight:
        values = self.tensors[name]
        return Weight.of(values.reshape(shape or values.shape), tuple(axes), "f64", name)


def target_tensors(seed: int | None) -> Model:
    """The target's tensors by role; ``seed`` of the norms, or None for norms of 1."""
    t = Model(0x1347)
    t.draw("embedding", 0.5, VOCAB, HIDDEN)
    t.draw("head", 0.3, VOCAB, HIDDEN)
    t.norms(norm=HIDDEN)
    for i, heads in enumerate(HEADS):
        p = f"layers.{i}."
        for name, rows in (("q", heads * DIM), ("k", KV * DIM), ("v", KV * DIM)):
            t.draw(p + name, 0.3, rows, HIDDEN)
        t.draw(p + "o", 0.3, HIDDEN, heads * DIM)
        t.draw(p + "attn_gate", 0.3, heads, HIDDEN)
        if SPARSE[i]:
            t.draw(p + "router", 0.5, EXPERTS, HIDDEN)
            t.draw(p + "bias", 0.2, EXPERTS)
            for name, shape in (("gate", (MOE, HIDDEN)), ("up", (MOE, HIDDEN)), ("down", (HIDDEN, MOE))):
                t.draw(f"{p}expert_{name}", 0.3, EXPERTS, *shape)
        width = MOE if SPARSE[i] else INTER
        for name, shape in (("gate", (width, HIDDEN)), ("up", (width, HIDDEN)), ("down", (HIDDEN, width))):
            t.draw(p + name, 0.3, *shape)
        names = {"input_layernorm": HIDDEN, "post_attention_layernorm": HIDDEN, "self_attn.q_norm": DIM, "self_attn.k_norm": DIM}
        t.tensors |= {f"{p}{name}": np.ones(size) for name, size in names.items()}
    # The specification's full names decide the order of the draws of the norms.
    t.tensors = {n if not n.endswith("norm") else f"model.{n}": v for n, v in t.tensors.items()}
    if seed is not None:
        t.spread_norms(seed)
    return t


def _layer(t: Model, p: str, heads: int, kv: int, prefix: str = "") -> dict[str, Any]:
    head: Axes = ("head", "dim", "in")
    made = {n: t.weight(p + n, *head, shape=(c, DIM, HIDDEN)) for n, c in (("q", heads), ("k", kv), ("v", kv))}
    made |= {n: t.weight(p + n, "dim", "in") for n in ("o", "gate", "up", "down")} | {"attn_gate": t.weight(p + "attn_gate", "head", "in")}
    norms = {
        "input_norm": "input_layernorm",
        "post_norm": "post_attention_layernorm",
        "q_norm": "self_attn.q_norm",
        "k_norm": "self_attn.k_norm",
    }
    return made | {role: t.weight(f"{prefix}{p}{name}", "dim") for role, name in norms.items()}


def _mixture(t: Model, p: str) -> Mixture:
    experts = {n: parts(t.weight(f"{p}expert_{n}", "expert", "dim", "in"), EXPERTS) for n in ("gate", "up", "down")}
    return Mixture(t.weight(p + "router", "expert", "in"), **experts, bias=t.weight(p + "bias", "expert"))


def geometry() -> LagunaGeometry:
    rope = Rope(5e5, DIM // 2, "neox", yarn_factors(5e5, DIM // 2, 32, 64, 64, 1), 1.3465735902799727)
    return LagunaGeometry(
        "laguna", HIDDEN, INTER, 4, HEADS[0], KV, DIM, VOCAB, 1e-6, rope, DIM**-0.5, layer_heads=HEADS, sliding=SLIDING, sparse=SPARSE,
        window=WINDOW, sliding_rope=Rope(1e4, DIM), experts=EXPERTS, experts_per_token=2, moe_intermediate=MOE, shared_intermediate=MOE,
        routed_scale=2.5,
    )  # fmt: skip


def target(seed: int | None) -> Target:
    """G1 (``seed`` None, norms 1) or G2 (norms of seed 0x2222)."""
    t, layers = target_tensors(seed), []
    for i, heads in enumerate(HEADS):
        p = f"layers.{i}."
        layers.append(LagunaLayer(**_layer(t, p, heads, KV, "model."), mixture=_mixture(t, p) if SPARSE[i] else None))
    ends = (t.weight("model.norm", "dim"), t.weight("head", "vocab", "in"))
    return Target(geometry(), LagunaWeights(t.weight("embedding", "vocab", "in"), tuple(layers), *ends))


def drafter_tensors(seed: int | None) -> Model:
    t = Model(0x1351)
    t.draw("fc", 0.3, HIDDEN, 2 * HIDDEN)
    for i in range(2):
        p = f"layers.{i}."
        t.draw(p + "qkv", 0.3, 4 * DIM, HIDDEN)
        t.draw(p + "o", 0.3, HIDDEN, 2 * DIM)
        t.draw(p + "attn_gate", 0.3, 2, HIDDEN)
        for name, shape in (("gate", (INTER, HIDDEN)), ("up", (INTER, HIDDEN)), ("down", (HIDDEN, INTER))):
            t.draw(p + name, 0.3, *shape)
        fused = t.tensors.pop(p + "qkv")
        t.tensors |= {p + "q": fused[: 2 * DIM], p + "k": fused[2 * DIM : 3 * DIM], p + "v": fused[3 * DIM :]}
        names = {"input_layernorm": HIDDEN, "post_attention_layernorm": HIDDEN, "self_attn.q_norm": DIM, "self_attn.k_norm": DIM}
        t.tensors |= {f"{p}{name}": np.ones(size) for name, size in names.items()}
    t.tensors |= {"aux_hidden_norms.0": np.ones(HIDDEN), "aux_hidden_norms.1": np.ones(HIDDEN)}
    t.norms(hidden_norm=HIDDEN, norm=HIDDEN)
    if seed is not None:
        t.spread_norms(seed)
    return t


def dialect() -> Dialect:
    switches = {"tap_norm": True, "ctx_layernorm": True, "attn_gate": "softplus"}
    return Dialect("laguna", 1e-6, Rope(1e4, DIM), DIM**-0.5, causal=(True, True), window_rule="W_LT", window=WINDOW, **switches)  # type: ignore[arg-type]


def drafter(seed: int | None) -> Drafter:
    """G1 (``seed`` None) or G2 (norms of seed 0x3333)."""
    t = drafter_tensors(seed)
    layers = tuple(LayerWeights(**_layer(t, f"layers.{i}.", 2, 1)) for i in range(2))
    aux = np.concatenate([t.tensors[f"aux_hidden_norms.{i}"] for i in range(2)])
    weights = DrafterWeights(
        t.weight("fc", "dim", "in"), t.weight("hidden_norm", "dim"), layers, t.weight("norm", "dim"), Weight.of(aux, ("dim",), "f64")
    )
    g = Geometry(HIDDEN, INTER, 2, 2, 1, DIM, VOCAB, 4, MASK, TAPS, HIDDEN, 4, sliding=(True, True), window=WINDOW, window_source="file")
    return Drafter(g, dialect(), weights)
