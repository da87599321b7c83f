"""The Laguna target that is compared with Transformers: sizes, tensors by their published names, and the oracle's reading of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from oracle.artifacts.laguna_target import roles
from oracle.artifacts.ropes import yarn_factors
from oracle.models import Target
from oracle.recipes import Rope
from oracle.targets.laguna import LagunaGeometry, LagunaLayer, LagunaWeights
from oracle.targets.moe import Mixture
from oracle.tensor import Array
from oracle.weights import Weight
from tests.peers import random_models as rm

HIDDEN, INTER, KV, DIM, VOCAB = 24, 40, 2, 8, 61
EXPERTS, PER_TOKEN, MOE, SHARED = 12, 3, 10, 14
LAYERS, EPS, WINDOW, SCALE, SEED = 6, 1e-6, 7, 2.5, 8
HEADS = (4, 6, 2, 6, 4, 6)
SLIDING = (False, True, True, False, True, True)
SPARSE = (False, True, True, True, False, True)
THETA, NEAR_THETA, FACTOR, ORIGINAL, FAST, SLOW, ATTENTION = 5e5, 1e4, 32.0, 64, 64.0, 1.0, 1.3465735902799727
PARTIAL = 0.5
CHUNKS = (13, 1, 5, 1, 9, 4, 1)
ROWS = sum(CHUNKS)
TAPS = tuple(range(LAYERS))


@dataclass(frozen=True)
class Variant:
    """What differs between the compared models: the gate's form and the router's cap."""

    name: str
    per_element: bool = False
    cap: float = 0.0

    @property
    def gating(self) -> str:
        return "per-element" if self.per_element else "per-head"


VARIANTS = (Variant("per-head"), Variant("per-element", per_element=True), Variant("router-cap", cap=1.5))


@dataclass(frozen=True)
class Result:
    """``logits [row, vocab]`` and ``taps [layer][row, dim]``: the output of every layer."""

    logits: Array
    taps: list[Array]


def geometry(variant: Variant) -> LagunaGeometry:
    width = int(DIM * PARTIAL)
    rope = Rope(THETA, width, "neox", yarn_factors(THETA, width, FACTOR, ORIGINAL, FAST, SLOW), ATTENTION)
    return LagunaGeometry(
        "laguna", HIDDEN, INTER, LAYERS, HEADS[0], KV, DIM, VOCAB, EPS, rope, DIM**-0.5, layer_heads=HEADS, sliding=SLIDING,
        sparse=SPARSE, window=WINDOW, sliding_rope=Rope(NEAR_THETA, DIM), experts=EXPERTS, experts_per_token=PER_TOKEN,
        moe_intermediate=MOE, shared_intermediate=SHARED, routed_scale=SCALE, router_cap=variant.cap or None,
    )  # fmt: skip


def tensors(variant: Variant) -> dict[str, tuple[str, Array]]:
    """key of `roles` -> (published name, values in the role's logical shape): norms around 1, biases around 0, matrices by width."""
    made = {}
    for key, role in roles(geometry(variant), per_element=(variant.per_element,) * LAYERS).items():
        values = rm.uniform(SEED, role.name, *role.shape)
        part = key.rsplit(".", 1)[-1]
        if part.endswith("norm"):
            values = 1 + 0.2 * values
        elif part == "bias":
            values = 0.3 * values
        elif part == "router":
            values = 1.5 * values / math.sqrt(HIDDEN)
        elif part != "embedding":
            values = values / math.sqrt(role.shape[-1])
        made[key] = (role.name, values)
    return made


def target(variant: Variant) -> Target:
    g = geometry(variant)
    found = roles(g, per_element=(variant.per_element,) * LAYERS)
    w = {key: Weight.of(values, found[key].axes, "f64", name) for key, (name, values) in tensors(variant).items()}
    layers = []
    for n in range(LAYERS):
        own: dict[str, Any] = {k.removeprefix(f"{n}."): v for k, v in w.items() if k.startswith(f"{n}.")}
        dense = {k: v for k, v in own.items() if not k.startswith(("expert_", "router", "bias"))}
        experts = [tuple(own[f"expert_{p}.{e}"] for e in range(EXPERTS)) for p in ("gate", "up", "down")] if SPARSE[n] else []
        layers.append(LagunaLayer(**dense, mixture=Mixture(own["router"], *experts, bias=own["bias"]) if SPARSE[n] else None))
    return Target(g, LagunaWeights(w["embedding"], tuple(layers), w["norm"], w["head"]))


def ids() -> list[int]:
    return [int(i) for i in np.floor((rm.uniform(SEED, "ids", ROWS) / math.sqrt(12) + 0.5) * VOCAB)]


def outputs(made: Target, chunks: tuple[int, ...] = (ROWS,)) -> Result:
    """The oracle over the case's tokens, fed through its state in ``chunks``."""
    state, start, logits, features = None, 0, [], []
    for size in chunks:
        out = made.window(ids()[start : start + size], state, TAPS)
        state, start = out.state, start + size
        logits.append(out.logits)
        features.append(out.features)
    return Result(np.concatenate(logits), np.split(np.concatenate(features), LAYERS, 1))


def difference(mine: Result, theirs: Result) -> float:
    """Largest absolute difference of logits and taps. NaN stays NaN."""
    pairs = [(mine.logits, theirs.logits), *zip(mine.taps, theirs.taps, strict=True)]
    return float(np.max([np.abs(a - b).max() for a, b in pairs]))


def summary(result: Result) -> dict[str, Any]:
    """What a golden file keeps: the mean of every row of logits and taps, and the last row of each."""
    return {
        "logit_means": result.logits.mean(-1).tolist(),
        "tap_means": [t.mean(-1).tolist() for t in result.taps],
        "last_logits": result.logits[-1].tolist(),
        "last_taps": [t[-1].tolist() for t in result.taps],
    }


def summary_difference(mine: dict[str, Any], theirs: dict[str, Any]) -> float:
    assert mine.keys() == theirs.keys()
    return float(np.max([np.abs(np.subtract(mine[k], theirs[k])).max() for k in mine]))


def _geometry(**changes: Any) -> Callable[[Target], Target]:
    return lambda t: replace(t, geometry=replace(t.geometry, **changes))


def _layers(change: Callable[[LagunaLayer], LagunaLayer]) -> Callable[[Target], Target]:
    return lambda t: replace(t, weights=replace(t.weights, layers=tuple(change(layer) for layer in t.weights.layers)))


def _mixture(**changes: Any) -> Callable[[Target], Target]:
    def change(layer: LagunaLayer) -> LagunaLayer:
        return layer if layer.mixture is None else replace(layer, mixture=replace(layer.mixture, **changes))

    return _layers(change)


_FULL = geometry(VARIANTS[0]).rope
WRONG: dict[str, Callable[[Target], Target]] = {
    "window + 1": _geometry(window=WINDOW + 1),
    "window - 1": _geometry(window=WINDOW - 1),
    "no routed scale": _geometry(routed_scale=1.0),
    "one expert less": _geometry(experts_per_token=PER_TOKEN - 1),
    "no selection bias": _mixture(bias=None),
    "no attention factor": _geometry(rope=replace(_FULL, attention_factor=1.0)),
    "no yarn": _geometry(rope=replace(_FULL, factors=None)),
    "sliding layers rotate like full ones": _geometry(sliding_rope=_FULL),
    "eps": _geometry(eps=10 * EPS),
}
