"""The Muse Glimmer target that is compared with Transformers: sizes, weights by their published names, and the oracle's reading of them.

Sublayer outputs are a thousandth of the residual, so that the post norms' own eps shows; the embedding is far from rms 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from oracle.models import Target
from oracle.recipes import Rope
from oracle.targets.muse_glimmer import MuseGeometry, MuseLayer, MuseWeights
from oracle.tensor import Array
from oracle.weights import Weight
from tests.peers import random_models as rm

HIDDEN, INTER, HEADS, KV, DIM, VOCAB = 48, 64, 6, 2, 16, 61
WINDOW, EPS, POST_EPS, THETA, QK_SCALE, MULTIPLIER, CAP, SEED = 7, 1e-5, 1e-8, 5e5, 3.87, 0.19611613513818404, 20.0, 5
IMAGE, VIDEO = 59, 60
CHUNKS = (11, 1, 5, 1, 15, 7)
ROWS = sum(CHUNKS)
PREFIX = "model.language_model."
DEPTHS = (10, 12)


@dataclass(frozen=True)
class Result:
    """``logits [row, vocab]`` and ``taps [layer][row, dim]``: the outputs of every layer but the last."""

    logits: Array
    taps: list[Array]


def sliding(layers: int) -> tuple[bool, ...]:
    """Which layers slide: every fourth one, counted backward from the last, is full (`specs/muse-glimmer.md` 1.2)."""
    return tuple((layers - 1 - i) % 4 != 0 for i in range(layers))


def taps(layers: int) -> tuple[int, ...]:
    """All layers whose output Transformers hands out: it replaces that of the last one by the final norm."""
    return tuple(range(layers - 1))


def tensors(layers: int) -> dict[str, Array]:
    """Every tensor of the text model and the head by its published name; norms of the layers centred at 0."""
    shapes: dict[str, tuple[tuple[int, ...], float]] = {
        "self_attn.q_proj": ((HEADS * DIM, HIDDEN), 1.0),
        "self_attn.k_proj": ((KV * DIM, HIDDEN), 1.0),
        "self_attn.v_proj": ((KV * DIM, HIDDEN), 1.0),
        "self_attn.gate_proj": ((HEADS * DIM, HIDDEN), 1.0),
        "self_attn.o_proj": ((HIDDEN, HEADS * DIM), 1e-3),
        "mlp.gate_proj": ((INTER, HIDDEN), 1.0),
        "mlp.up_proj": ((INTER, HIDDEN), 1.0),
        "mlp.down_proj": ((HIDDEN, INTER), 1e-3),
    }
    norms = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
    made = {f"{PREFIX}embed_tokens.weight": 3 * rm.uniform(SEED, "embed", VOCAB, HIDDEN)}
    for layer in range(layers):
        stem = f"{PREFIX}layers.{layer}."
        for name, (shape, scale) in shapes.items():
            made[f"{stem}{name}.weight"] = scale * rm.uniform(SEED, stem + name, *shape) / math.sqrt(shape[1])
        made |= {f"{stem}{name}.weight": 0.3 * rm.uniform(SEED, stem + name, HIDDEN) for name in norms}
    made[f"{PREFIX}norm.weight"] = 1 + 0.3 * rm.uniform(SEED, "norm", HIDDEN)
    made["lm_head.weight"] = 3 * rm.uniform(SEED, "head", VOCAB, HIDDEN)
    return made


def ids() -> list[int]:
    """Token ids [row] that are no placeholders."""
    return [int(v) for v in np.floor((rm.uniform(SEED, "ids", ROWS) / math.sqrt(12) + 0.5) * IMAGE)]


def target(layers: int) -> Target:
    """The oracle's target, its weights in float64."""
    found = tensors(layers)

    def one(name: str, *heads: int) -> Weight:
        values = found[name]
        if heads:
            return Weight.of(values.reshape(*heads, DIM, HIDDEN), ("head", "dim", "in"), "f64", name)
        return Weight.of(values, ("dim", "in") if values.ndim == 2 else ("dim",), "f64", name)

    def layer(stem: str) -> MuseLayer:
        attention, mlp = f"{stem}self_attn.", f"{stem}mlp."
        return MuseLayer(
            input_norm=one(f"{stem}input_layernorm.weight"), post_attn_norm=one(f"{stem}post_attention_layernorm.weight"),
            post_norm=one(f"{stem}pre_feedforward_layernorm.weight"), post_mlp_norm=one(f"{stem}post_feedforward_layernorm.weight"),
            q=one(f"{attention}q_proj.weight", HEADS), k=one(f"{attention}k_proj.weight", KV), v=one(f"{attention}v_proj.weight", KV),
            o=one(f"{attention}o_proj.weight"), attn_gate=one(f"{attention}gate_proj.weight"),
            gate=one(f"{mlp}gate_proj.weight"), up=one(f"{mlp}up_proj.weight"), down=one(f"{mlp}down_proj.weight"),
            q_norm=Weight.of(np.full(DIM, QK_SCALE), ("dim",), "f64"),
        )  # fmt: skip

    geometry = MuseGeometry(
        "muse-glimmer", HIDDEN, INTER, layers, HEADS, KV, DIM, VOCAB, EPS, Rope(THETA, DIM), DIM**-0.5,
        post_norm_eps=POST_EPS, sliding=sliding(layers), roped=sliding(layers), window=WINDOW, norm_offset=1.0, qk_scale=QK_SCALE,
        output_multiplier=MULTIPLIER, softcap=CAP, placeholders=(VIDEO, IMAGE),
    )  # fmt: skip
    table, head = (Weight.of(found[n], ("vocab", "in"), "f64") for n in (f"{PREFIX}embed_tokens.weight", "lm_head.weight"))
    layer_list = tuple(layer(f"{PREFIX}layers.{i}.") for i in range(layers))
    return Target(geometry, MuseWeights(table, layer_list, one(f"{PREFIX}norm.weight"), head))


def outputs(made: Target, chunks: tuple[int, ...] = (ROWS,)) -> Result:
    """The oracle's logits and taps of `ids`, fed in windows of ``chunks`` rows."""
    state, logits, features, tokens = None, [], [], ids()
    for size in chunks:
        start = 0 if state is None else state.length
        out = made.window(tokens[start : start + size], state, taps=taps(made.geometry.layers))
        state = out.state
        logits.append(out.logits)
        features.append(out.features)
    return Result(np.concatenate(logits), np.split(np.concatenate(features), made.geometry.layers - 1, 1))


def summary(result: Result) -> dict[str, list[list[float]]]:
    """What a golden file keeps: the mean of every row of logits and taps, and the last row of the logits and of the last tap."""
    stacked = [result.logits, *result.taps]
    return {"row_means": [x.mean(-1).tolist() for x in stacked], "last_rows": [result.logits[-1].tolist(), result.taps[-1][-1].tolist()]}


def difference(mine: Result, theirs: Result) -> float:
    """Largest absolute difference of logits, and of taps in units of the larger of 1 and their largest value."""
    assert len(mine.taps) == len(theirs.taps)
    worst = [np.abs(mine.logits - theirs.logits).max()]
    worst += [np.abs(a - b).max() / max(1.0, np.abs(b).max()) for a, b in zip(mine.taps, theirs.taps, strict=True)]
    return float(np.max(worst))


def _changed(**changes: object) -> Callable[[int], Target]:
    def make(layers: int) -> Target:
        right = target(layers)
        return replace(right, geometry=replace(right.geometry, **changes))  # type: ignore[arg-type]

    return make


def _layer(**changes: object) -> Callable[[int], Target]:
    def make(layers: int) -> Target:
        right = target(layers)
        assert isinstance(right.weights, MuseWeights)
        parts = tuple(
            replace(part, **{k: getattr(part, v) if isinstance(v, str) else v for k, v in changes.items()}) for part in right.weights.layers
        )
        return replace(right, weights=replace(right.weights, layers=parts))

    return make


def counted_forward(layers: int) -> Target:
    """Every fourth layer full, counted from the first: another model unless the depth is a multiple of 4."""
    pattern = tuple(i % 4 != 3 for i in range(layers))
    return _changed(sliding=pattern, roped=pattern)(layers)


# Mistakes of section 9 that other engines make: each must move logits or taps.
WRONG: dict[str, Callable[[int], Target]] = {
    "post norms with eps 1e-5": _changed(post_norm_eps=EPS),
    "norms without their 1": _changed(norm_offset=0.0),
    "window + 1": _changed(window=WINDOW + 1),
    "rope on every layer": lambda n: _changed(roped=(True,) * n)(n),
    "no sliding layer": lambda n: _changed(sliding=(False,) * n)(n),
    "theta 1e4": _changed(rope=Rope(1e4, DIM)),
    "interleaved pairs": _changed(rope=Rope(THETA, DIM, "interleaved")),
    "cap 30": _changed(softcap=30.0),
    "no multiplier": _changed(output_multiplier=1.0),
    "no query scale": _layer(q_norm=None),
    "query scale times sqrt(dim)": _layer(q_norm=Weight.of(np.full(DIM, QK_SCALE * 4), ("dim",), "f64")),
    "post-attention and pre-FFN norms swapped": _layer(post_norm="post_attn_norm", post_attn_norm="post_norm"),
}
