"""The generic z-lab drafter: SafeTensors folders of ``DFlashDraftModel`` and GGUF files of architecture ``dflash``.

Source: `specs/dflash-generic.md` sections 4 to 9 and 18; the meaning of a key is that of the published package.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from oracle.artifacts.container import Container
from oracle.artifacts.fields import BLOCK_SIZES, LARGEST_DIM, LARGEST_LAYERS, WINDOWS, Fields
from oracle.artifacts.heads import Heads, head_roles, read_config_heads, read_gguf_heads, sink_roles
from oracle.artifacts.muse import Description
from oracle.artifacts.roles import drafter_roles
from oracle.artifacts.ropes import THETA, read_rope
from oracle.artifacts.sizes import (
    context_length,
    finish_config,
    finish_gguf,
    read_config_sizes,
    read_gguf_sizes,
    target_block_count,
    token_count,
)
from oracle.drafters.dialect import Dialect, Geometry
from oracle.recipes import Rope

FAMILY = "qwen3"
ARCHITECTURES = ("DFlashDraftModel", "DFlash2DraftModel")
LAYER_TYPES = ("full_attention", "sliding_attention")
DEFAULT_BLOCK = 16
DEFAULT_THETA = 10000.0
DEFAULT_WINDOW_LAYERS = 28
SCALE = (1e-6, 1e6)


@dataclass(frozen=True)
class _Switches:
    """Dialect values as read, before they are put into a `Dialect`."""

    eps: float
    rope: Rope
    causal: tuple[bool, ...]
    attn_scale: float | None = None
    embed_scale: float = 1.0
    output_multiplier: float = 1.0
    softcap: float | None = None
    heads: Heads = field(default_factory=Heads)


def describe(container: Container, names: set[str]) -> Description:
    """Read and check the metadata of a generic drafter; ``names``: the tensor names, without ``model.``."""
    return _from_gguf(container, names) if container.kind == "gguf" else _from_config(container, names)


def resolve_causal(sliding: tuple[bool, ...], *declared: bool | None) -> tuple[bool, ...]:
    """Per layer: the first declared value, else sliding layers are causal and full ones bidirectional (section 6)."""
    for value in declared:
        if value is not None:
            return (value,) * len(sliding)
    return sliding


def _from_config(container: Container, names: set[str]) -> Description:
    config = Fields(container, container.metadata)
    named = config.values.get("architectures")
    config.ignore("architectures")
    if not isinstance(named, list) or len(named) != 1 or named[0] not in ARCHITECTURES:
        known = " or ".join(f"['{a}']" for a in ARCHITECTURES)
        config.refuse("architectures", known, "other drafter architectures are not supported by this version")
    config.must_be("model_type", "qwen3")
    inner = config.child("dflash_config")
    sizes = read_config_sizes(config, required=True)
    vocab = config.integer("vocab_size", 1, LARGEST_DIM)
    target_layers = config.integer("num_target_layers", 1, LARGEST_LAYERS, default=None)
    sliding, window = _sliding(config, sizes["layers"])
    biases = config.flag("attention_bias", False)
    rope = read_rope(config, sizes["head_dim"], DEFAULT_THETA)
    config.must_be("hidden_act", "silu")
    cap = _either(inner, config, "final_logit_softcapping").number("final_logit_softcapping", 0.0, SCALE[1], default=None)
    switches = _Switches(
        config.number("rms_norm_eps", 1e-12, 1e-1),
        rope,
        resolve_causal(sliding, config.flag("is_causal", None), inner.flag("causal", None)),
        embed_scale=_either(inner, config, "input_embedding_scale").number("input_embedding_scale", *SCALE, default=1.0),
        output_multiplier=_either(inner, config, "output_multiplier").number("output_multiplier", *SCALE, default=1.0),
        softcap=cap or None,
        heads=read_config_heads(config, inner, sizes["hidden"], vocab),
    )
    if named == [ARCHITECTURES[1]] and not {"conv", "selector"} <= switches.heads.switches.keys():
        wanted = "['DFlashDraftModel'], because conv_kernel_size, conv_group_size, selector_rank and selector_top_k are not all there"
        config.refuse("architectures", wanted)
    taps = _either(inner, config, "target_layer_ids").integers("target_layer_ids", 0, (target_layers or LARGEST_LAYERS) - 1, LARGEST_LAYERS)
    geometry = Geometry(
        **sizes,
        vocab=vocab,
        block_size=_either(inner, config, "block_size").integer("block_size", *BLOCK_SIZES, default=DEFAULT_BLOCK),
        mask_token_id=_either(inner, config, "mask_token_id").integer("mask_token_id", 0, vocab - 1),
        tap_ids=taps,
        target_hidden=sizes["hidden"],
        target_layers=target_layers,
        sliding=sliding,
        window=window,
        window_source="none" if window is None else "file",
        context_length=context_length(config, "max_position_embeddings"),
        **switches.heads.sizes,
    )
    config.ignore("tie_word_embeddings")
    inner.finish()
    warnings = tuple(finish_config(config))
    roles = drafter_roles(geometry, "hf", biases) | head_roles(geometry, switches.heads, "hf", names)
    sinks = sink_roles(container, geometry, names, "hf")
    return Description(geometry, replace(_dialect(geometry, switches), sinks=bool(sinks)), roles | sinks, warnings)


def _either(inner: Fields, config: Fields, key: str) -> Fields:
    """Where ``key`` is read: ``dflash_config`` first, then the top level, as the published package does."""
    config.ignore(key)
    return inner if inner.has(key) else config


def _sliding(config: Fields, layers: int) -> tuple[tuple[bool, ...], int | None]:
    """Which layers slide, and the window if any does: ``layer_types``, else the layers from ``max_window_layers`` on."""
    window = config.integer("sliding_window", *WINDOWS, default=None)
    use = config.flag("use_sliding_window", None)
    first = config.integer("max_window_layers", 0, 1 << 20, default=DEFAULT_WINDOW_LAYERS)
    if config.has("layer_types"):
        sliding = tuple(t == "sliding_attention" for t in config.words("layer_types", LAYER_TYPES, layers))
    else:
        sliding = tuple(bool(use) and n >= first for n in range(layers))
    if not any(sliding):
        return sliding, None
    if use is False:
        config.refuse("use_sliding_window", "true, because layer_types has sliding layers")
    if window is None:
        config.refuse("sliding_window", f"a whole number from {WINDOWS[0]} to {WINDOWS[1]}, because some layers slide")
    return sliding, window


def _from_gguf(container: Container, names: set[str]) -> Description:
    keys = Fields(container, container.metadata)
    if keys.text("general.architecture") != "dflash":
        keys.refuse("general.architecture", "'dflash'")
    sizes = read_gguf_sizes(keys, "dflash", required=False)
    vocab = token_count(keys)
    sliding, window = _gguf_sliding(keys, sizes["layers"])
    keys.must_be("dflash.rope.dimension_count", sizes["head_dim"])
    keys.must_be("dflash.vocab_size", vocab)
    keys.must_be("dflash.attention.value_scale", 1.0)
    keys.must_be("dflash.hidden_activation", "silu")
    keys.must_be("dflash.rope.scaling.type", "none")
    cap = keys.number("dflash.final_logit_softcapping", 0.0, SCALE[1], default=None)
    switches = _Switches(
        keys.number("dflash.attention.layer_norm_rms_epsilon", 1e-12, 1e-1),
        Rope(keys.number("dflash.rope.freq_base", *THETA, default=DEFAULT_THETA), sizes["head_dim"]),
        resolve_causal(sliding, keys.flag("dflash.attention.causal", None)),
        attn_scale=keys.number("dflash.attention.scale", *SCALE, default=None),
        embed_scale=keys.number("dflash.embedding_scale", *SCALE, default=1.0),
        output_multiplier=keys.number("dflash.logit_scale", *SCALE, default=1.0),
        softcap=cap or None,
        heads=read_gguf_heads(keys, names, container, sizes["hidden"], vocab),
    )
    taps = tuple(t - 1 for t in keys.integers("dflash.target_layers", 1, LARGEST_LAYERS, LARGEST_LAYERS))
    geometry = Geometry(
        **sizes,
        vocab=vocab,
        block_size=keys.integer("dflash.block_size", *BLOCK_SIZES, default=DEFAULT_BLOCK),
        mask_token_id=keys.integer("tokenizer.ggml.mask_token_id", 0, vocab - 1),
        tap_ids=taps,
        target_hidden=sizes["hidden"],
        target_layers=target_block_count(keys, taps),
        sliding=sliding,
        window=window,
        window_source="none" if window is None else "file",
        context_length=context_length(keys, "dflash.context_length"),
        **switches.heads.sizes,
    )
    finish_gguf(keys)
    biases = any(name.endswith("attn_q.bias") for name in names)
    roles = drafter_roles(geometry, "gguf", biases) | head_roles(geometry, switches.heads, "gguf", names)
    sinks = sink_roles(container, geometry, names, "gguf")
    return Description(geometry, replace(_dialect(geometry, switches), sinks=bool(sinks)), roles | sinks)


def _gguf_sliding(keys: Fields, layers: int) -> tuple[tuple[bool, ...], int | None]:
    pattern, width = "dflash.attention.sliding_window_pattern", "dflash.attention.sliding_window"
    window = keys.window(width)
    if window is None and not keys.has(pattern):
        return (False,) * layers, None
    sliding = keys.flags(pattern, layers)
    if any(sliding) and window is None:
        keys.refuse(width, f"a u32 from {WINDOWS[0]} to {WINDOWS[1]}, because some layers slide")
    return sliding, window if any(sliding) else None


def _dialect(g: Geometry, s: _Switches) -> Dialect:
    values: dict[str, Any] = {"embed_scale": s.embed_scale, "output_multiplier": s.output_multiplier, "softcap": s.softcap}
    values |= s.heads.switches
    scale = g.head_dim**-0.5 if s.attn_scale is None else s.attn_scale
    rule = "none" if g.window is None else "W_LT"
    return Dialect(FAMILY, s.eps, s.rope, scale, causal=s.causal, window_rule=rule, window=g.window, **values)
