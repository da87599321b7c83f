"""The Laguna DFlash drafter: SafeTensors folders of ``DFlashLagunaForCausalLM``, q, k and v apart or fused, and GGUF.

Source: `specs/laguna.md` 3.1, 3.2 and 4 (what is refused, and why).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from oracle.artifacts import laguna_draft_gguf
from oracle.artifacts.container import Container, fail, name_list
from oracle.artifacts.fields import BLOCK_SIZES, LARGEST_DIM, LARGEST_LAYERS, WINDOWS, Fields
from oracle.artifacts.muse import Description
from oracle.artifacts.roles import HF_DRAFTER, HF_LAYER, MATRICES, NORMS, Role, layer_roles
from oracle.artifacts.ropes import THETA
from oracle.artifacts.sizes import context_length, finish_config, read_config_sizes
from oracle.drafters.dialect import Dialect, Geometry
from oracle.recipes import Rope
from oracle.weights import Weight

FAMILY = "laguna"
MARKER = "DFlashLagunaForCausalLM"
DEFAULT_BLOCK = 16
DEFAULT_THETA = 500000.0
DEFAULT_WINDOW = 512
QKV = "self_attn.qkv_proj.weight"
SPLIT = tuple(HF_LAYER[part] for part in ("q", "k", "v"))
HARMLESS = ("num_experts_per_tok", "moe_intermediate_size", "mlp_layer_types", "router_aux_loss_coef", "output_router_logits", "qkv_bias")


def matches(config: dict[str, Any]) -> bool:
    """Whether a config is a Laguna drafter's: its architecture, or the model type with a ``dflash_config`` (section 4, routing)."""
    named = config.get("architectures")
    marked = isinstance(named, list) and MARKER in named
    return marked or (config.get("model_type") == FAMILY and isinstance(config.get("dflash_config"), dict))


def describe(container: Container, names: set[str]) -> Description:
    """Read and check the metadata of a Laguna drafter; ``names``: the tensor names, without ``model.``."""
    if container.kind == "gguf":
        return laguna_draft_gguf.describe(container, dialect)
    config = Fields(container, container.metadata)
    _check_fixed(config)
    inner = config.child("dflash_config")
    sizes = read_config_sizes(config, required=False)
    layers = sizes["layers"]
    vocab = config.integer("vocab_size", 1, LARGEST_DIM)
    config.must_be("draft_vocab_size", vocab)
    window = _window(config, layers)
    inner.must_be("causal", True)
    theta = config.number("rope_theta", *THETA, default=DEFAULT_THETA)
    eps = config.number("rms_norm_eps", 1e-12, 1e-1, default=1e-6)
    target_layers = inner.integer("num_target_layers", 1, LARGEST_LAYERS)
    taps = _taps(config, inner, layers, target_layers)
    geometry = Geometry(
        **sizes,
        vocab=vocab,
        block_size=inner.integer("block_size", *BLOCK_SIZES, default=DEFAULT_BLOCK),
        mask_token_id=inner.integer("mask_token_id", 0, vocab - 1),
        tap_ids=taps,
        target_hidden=_target_hidden(container, sizes["hidden"]),
        target_layers=target_layers,
        sliding=(True,) * layers,
        window=window,
        window_source="file" if config.has("sliding_window") or config.has("sliding_windows") else "default",
        context_length=context_length(config, "max_position_embeddings"),
    )
    inner.finish()
    warnings = tuple(finish_config(config))
    return Description(geometry, dialect(geometry, eps, theta), _roles(container, geometry, names), warnings, rearranged(geometry))


def _check_fixed(config: Fields) -> None:
    """Keys with one supported value (section 4)."""
    config.must_be("model_type", FAMILY)
    named = config.values.get("architectures")
    if named and (not isinstance(named, list) or MARKER not in named):
        config.refuse("architectures", f"a list with {MARKER!r}")
    config.must_be("attention_bias", False)
    config.must_be("qkv_bias", False)
    config.must_be("num_experts", 0)
    config.must_be("hidden_act", "silu")
    config.must_be("is_causal", True)
    if not config.has("gating"):
        config.refuse("gating", "'per-head' or true", "the drafter's attention gate has no default")
    config.must_be("gating", "per-head", True)
    if config.has("rope_parameters") or config.has("rope_scaling"):
        config.refuse(
            "rope_parameters" if config.has("rope_parameters") else "rope_scaling", "no such key", "this drafter has a plain theta"
        )
    config.ignore("architectures", "tie_word_embeddings", "rope_parameters", "rope_scaling", *HARMLESS)


def _window(config: Fields, layers: int) -> int:
    """The one window of all layers; every layer must slide."""
    config.words("layer_types", ("sliding_attention",), layers)
    config.ignore("use_sliding_window")
    if config.has("sliding_windows"):
        listed = config.values["sliding_windows"]
        config.ignore("sliding_windows", "sliding_window")
        whole = isinstance(listed, list) and len(listed) == layers and all(type(w) is int and WINDOWS[0] <= w <= WINDOWS[1] for w in listed)
        if not whole or len(set(listed)) != 1:
            config.refuse("sliding_windows", f"a list of {layers} equal whole numbers from {WINDOWS[0]} to {WINDOWS[1]}, one per layer")
        return int(listed[0])
    window: int = config.integer("sliding_window", *WINDOWS, default=DEFAULT_WINDOW)
    return window


def _taps(config: Fields, inner: Fields, layers: int, target_layers: int) -> tuple[int, ...]:
    taps = inner.integers("target_layer_ids", 0, target_layers - 1, LARGEST_LAYERS)
    if list(taps) != sorted(taps):
        inner.refuse("target_layer_ids", "strictly increasing layers")
    if len(taps) != layers:
        inner.refuse("target_layer_ids", f"{layers} taps, as many as the drafter has layers")
    for where in (config, inner):
        key = "eagle_aux_hidden_state_layer_ids"
        where.ignore(key)
        if where.has(key) and where.values[key] != [t + 1 for t in taps]:
            where.refuse(key, f"{[t + 1 for t in taps]}, one more than each of target_layer_ids")
    return taps


def _target_hidden(container: Container, hidden: int) -> int:
    """The target's width, which only the tap norms tell."""
    name = "aux_hidden_norms.0.weight"
    norm = container.tensors.get(name) or container.tensors.get(f"model.{name}")
    return norm.shape[0] if norm is not None and len(norm.shape) == 1 else hidden


def dialect(g: Geometry, eps: float, theta: float) -> Dialect:
    return Dialect(
        FAMILY,
        eps,
        Rope(theta, g.head_dim),
        g.head_dim**-0.5,
        causal=(True,) * g.layers,
        window_rule="W_LT",
        window=g.window,
        tap_norm=True,
        ctx_layernorm=True,
        attn_gate="softplus",
    )


def roles(g: Geometry, fused: bool = True) -> dict[str, Role]:
    """Every tensor of a Laguna drafter by key; ``fused``: one ``qkv`` per layer, rows of q, then k, then v."""
    outer: dict[str, Role] = {
        "fc": Role(HF_DRAFTER["fc"], (g.hidden, len(g.tap_ids) * g.target_hidden), ("dim", "in")),
        "hidden_norm": Role(HF_DRAFTER["hidden_norm"], (g.hidden,), ("dim",)),
        "norm": Role(HF_DRAFTER["norm"], (g.hidden,), ("dim",)),
    }
    outer |= {f"tap{i}_norm": Role(f"aux_hidden_norms.{i}.weight", (g.target_hidden,), ("dim",)) for i in range(len(g.tap_ids))}
    parts = (*MATRICES, *NORMS)
    for n in range(g.layers):
        prefix = f"layers.{n}."
        one = layer_roles(g, HF_LAYER, prefix, [p for p in parts if not (fused and p in ("q", "k", "v"))])
        if fused:
            one["qkv"] = Role(prefix + QKV, ((g.heads + 2 * g.kv_heads), g.head_dim, g.hidden), ("head", "dim", "in"))
        one["attn_gate"] = Role(f"{prefix}self_attn.g_proj.weight", (g.heads, g.hidden), ("head", "in"))
        outer |= {f"{n}.{part}": role for part, role in one.items()}
    return outer


def _roles(container: Container, g: Geometry, names: set[str]) -> dict[str, Role]:
    """The roles in the form the file has: one form for all layers, and not both in one layer."""
    fused = {n for n in names if n.endswith(QKV)}
    apart = {n for n in names if n.endswith(SPLIT)}
    if fused and apart:
        fail(
            container.path,
            f"q, k and v are both fused ({name_list(fused)}) and apart ({name_list(apart)}); expected one form, remove the other",
        )
    return roles(g, fused=bool(fused))


def rearranged(g: Geometry) -> Callable[[dict[str, Weight]], dict[str, Weight]]:
    """From the file's tensors to the layers' parts: qkv split by rows, the tap norms side by side; nothing big is copied."""

    def rearrange(weights: dict[str, Weight]) -> dict[str, Weight]:
        made = {k: w for k, w in weights.items() if not k.endswith(".qkv") and not k.startswith("tap")}
        for key, w in weights.items():
            if key.endswith(".qkv"):
                made |= _split(w, key.removesuffix("qkv"), g)
        norms = [weights[f"tap{i}_norm"] for i in range(len(g.tap_ids))]
        raw = np.concatenate([n.raw for n in norms], 1)
        made["tap_norm"] = Weight(raw, ("dim",), (len(norms) * g.target_hidden,), norms[0].stored, norms[0].name)
        return made

    return rearrange


def _split(w: Weight, prefix: str, g: Geometry) -> dict[str, Weight]:
    parts, first = {}, 0
    for part, heads in (("q", g.heads), ("k", g.kv_heads), ("v", g.kv_heads)):
        rows = w.raw[first * g.head_dim : (first + heads) * g.head_dim]
        parts[prefix + part] = Weight(rows, w.axes, (heads, g.head_dim, g.hidden), w.stored, f"{w.name}[{part}]")
        first += heads
    return parts
