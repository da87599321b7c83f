"""The Muse Glimmer assistant: its GGUF, the published SafeTensors and the development export.

Source: `specs/muse-glimmer.md` sections 3.1 and 4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from oracle.artifacts.container import Container, fail
from oracle.artifacts.fields import BLOCK_SIZES, LARGEST_DIM, Fields
from oracle.artifacts.roles import MUSE_DRAFTER, Role, drafter_roles
from oracle.artifacts.ropes import THETA, read_rope
from oracle.artifacts.sizes import (
    context_length,
    finish_config,
    finish_gguf,
    read_config_sizes,
    read_gguf_sizes,
    released_taps,
    target_block_count,
    token_count,
    warn,
)
from oracle.drafters.dialect import Dialect, Geometry
from oracle.recipes import Rope
from oracle.weights import Weight

FAMILY = "muse-glimmer"
MODEL_TYPE = "muse_glimmer_assistant"
LAYERS = 5
TARGET_LAYERS = 52
DEFAULT_WINDOW = 2048
DEFAULT_BLOCK = 16
DEFAULT_THETA = 500000.0
RELEASE_HIDDEN = 6656
RELEASE_VOCAB = 202048
RELEASE_MASK = 201818
RELEASE_TAPS = (1, 13, 25, 37, 49)
# Rows of the context's start that a ring cache keeps beside its window: a constant of the engine, not of the file (section 5.1).
SINK = 64


@dataclass(frozen=True)
class Description:
    """A drafter as its metadata describes it: sizes, dialect, the tensors it must have, and what to warn about.

    ``rearrange``: from the weights keyed as ``roles`` to those keyed as `drafter_weights` takes them, or None where they are the same.
    """

    geometry: Geometry
    dialect: Dialect
    roles: dict[str, Role]
    warnings: tuple[str, ...] = ()
    rearrange: Callable[[dict[str, Weight]], dict[str, Weight]] | None = None


def context_bound(g: Geometry, sink: int = SINK) -> int:
    """Most bytes of a ring context cache: keys and values of every layer in f32, ``sink`` + window rows (section 5.1)."""
    assert g.window is not None
    return g.layers * 2 * (sink + g.window) * g.kv_heads * g.head_dim * 4


def describe(container: Container, names: set[str]) -> Description:
    """Read and check the metadata of a Muse drafter; ``names``: the tensor names, without ``model.``."""
    return _from_gguf(container) if container.kind == "gguf" else _from_config(container, names)


def _from_gguf(container: Container) -> Description:
    keys = Fields(container, container.metadata)
    if keys.text("general.architecture") != "dflash":
        keys.refuse("general.architecture", "'dflash'")
    sizes = read_gguf_sizes(keys, "dflash", required=True)
    _check_layers(keys, "dflash.block_count", sizes["layers"])
    block = keys.integer("dflash.block_size", *BLOCK_SIZES)
    context = context_length(keys, "dflash.context_length")
    if context is None:
        fail(container.path, "missing key dflash.context_length: expected a u32")
    eps = keys.number("dflash.attention.layer_norm_rms_epsilon", 1e-12, 1e-1)
    theta = keys.number("dflash.rope.freq_base", *THETA)
    taps = tuple(t - 1 for t in keys.integers("dflash.target_layers", 1, TARGET_LAYERS, TARGET_LAYERS))
    vocab = token_count(keys)
    keys.integer("tokenizer.ggml.eos_token_id", 0, (1 << 32) - 1)
    mask = keys.integer("tokenizer.ggml.mask_token_id", 0, vocab - 1)
    keys.must_be("dflash.attention.causal", False)
    keys.must_be("dflash.sample_from_anchor", False)
    keys.must_be("dflash.rope.dimension_count", sizes["head_dim"])
    keys.must_be("dflash.vocab_size", vocab)
    for scale in ("dflash.embedding_scale", "dflash.attention.value_scale"):
        keys.must_be(scale, 1.0)
    if keys.has("dflash.attention.sliding_window_pattern") and not all(keys.flags("dflash.attention.sliding_window_pattern", LAYERS)):
        keys.refuse("dflash.attention.sliding_window_pattern", "true for every layer")
    window, source, warnings = _window(container, keys, "dflash.attention.sliding_window")
    layers = target_block_count(keys, taps, TARGET_LAYERS)
    finish_gguf(keys)
    if sizes["hidden"] == RELEASE_HIDDEN:
        warnings += released_taps(container, taps, RELEASE_TAPS)
    geometry = _geometry(
        sizes,
        vocab=vocab,
        block=block,
        mask=mask,
        taps=taps,
        window=window,
        source=source,
        context=context,
        target_layers=layers,
    )
    return _description(geometry, eps, Rope(theta, geometry.head_dim), drafter_roles(geometry, "gguf"), warnings)


def _from_config(container: Container, names: set[str]) -> Description:
    config = Fields(container, container.metadata)
    _check_architecture(config)
    inner = config.child("dflash_config")
    sizes = read_config_sizes(config, required=True)
    _check_layers(config, "num_hidden_layers", sizes["layers"])
    rope = read_rope(config, sizes["head_dim"], DEFAULT_THETA)
    eps = config.number("rms_norm_eps", 1e-12, 1e-1)
    block = _either(inner, config, "block_size").integer("block_size", *BLOCK_SIZES, default=DEFAULT_BLOCK)
    target_layers = config.integer("num_target_layers", 1, TARGET_LAYERS, default=None)
    last = (target_layers or TARGET_LAYERS) - 1
    taps = _either(inner, config, "target_layer_ids").integers("target_layer_ids", 0, last, TARGET_LAYERS)
    warnings = []
    vocab = config.integer("vocab_size", 1, LARGEST_DIM, default=None)
    if vocab is None:
        vocab = RELEASE_VOCAB
        warnings.append(f"config.json has no vocab_size: the released vocabulary of {RELEASE_VOCAB} is assumed")
    mask = _either(inner, config, "mask_token_id").integer("mask_token_id", 0, vocab - 1)
    if config.has("layer_types"):
        config.words("layer_types", ("sliding_attention",), LAYERS)
    config.must_be("hidden_act", "silu")
    config.must_be("is_causal", False)
    inner.must_be("causal", False)
    config.must_be("attention_bias", False)
    config.must_be("use_sliding_window", True)
    config.ignore("layer_types", "tie_word_embeddings")
    window, source, more = _window(container, config, "sliding_window")
    context = context_length(config, "max_position_embeddings")
    inner.finish()
    warnings += more + finish_config(config)
    if sizes["hidden"] == RELEASE_HIDDEN:
        warnings += released_taps(container, taps, RELEASE_TAPS)
    geometry = _geometry(
        sizes, vocab=vocab, block=block, mask=mask, taps=taps, window=window, source=source, context=context, target_layers=target_layers
    )
    head = MUSE_DRAFTER if MUSE_DRAFTER["fc"] in names or MUSE_DRAFTER["hidden_norm"] in names else None
    return _description(geometry, eps, rope, drafter_roles(geometry, "hf", head=head), warnings)


def _either(inner: Fields, config: Fields, key: str) -> Fields:
    """Where ``key`` is: the nested object of the export, or the flat published config; both is refused."""
    if inner.has(key) and config.has(key) and inner.values[key] != config.values[key]:
        config.refuse(key, f"the same value as dflash_config.{key}")
    config.ignore(key)
    return inner if inner.has(key) else config


def _check_architecture(config: Fields) -> None:
    config.ignore("architectures", "model_type")
    named = config.values.get("architectures") or []
    if config.values.get("model_type") != MODEL_TYPE and "DFlashDraftModel" not in (named if isinstance(named, list) else []):
        config.refuse("architectures", f"['DFlashDraftModel'], or model_type {MODEL_TYPE!r}")


def _check_layers(fields: Fields, key: str, layers: int) -> None:
    if layers != LAYERS:
        fields.refuse(key, f"{LAYERS}: a Muse drafter has exactly {LAYERS} layers")


def _window(container: Container, fields: Fields, key: str) -> tuple[int, str, list[str]]:
    """(window, source, warnings): absent or zero is the released width, said aloud (section 4.1)."""
    window = fields.window(key)
    if window is not None:
        return window, "file", []
    text = f"key {key} is absent or zero: a sliding window of {DEFAULT_WINDOW} is assumed; engines that assume none diverge beyond it"
    return DEFAULT_WINDOW, "default", [warn(container, text)]


def _geometry(
    sizes: dict[str, int], *, vocab: int, block: int, mask: int, taps: tuple[int, ...], window: int, source: str, **more: Any
) -> Geometry:
    return Geometry(
        **sizes,
        vocab=vocab,
        block_size=block,
        mask_token_id=mask,
        tap_ids=taps,
        target_hidden=sizes["hidden"],
        target_layers=more.get("target_layers"),
        sliding=(True,) * LAYERS,
        window=window,
        window_source=source,
        context_length=more["context"],
    )


def _description(geometry: Geometry, eps: float, rope: Rope, roles: dict[str, Role], warnings: list[str]) -> Description:
    dialect = Dialect(
        FAMILY,
        eps,
        rope,
        geometry.head_dim**-0.5,
        causal=(False,) * LAYERS,
        window_rule="W_LE",
        window=geometry.window,
    )
    return Description(geometry, dialect, roles, tuple(warnings))
