"""The DeepSpec drafter of Qwen3.8-Flash-Next: exactly 58 tensors, an anchor row that predicts as well, everything else refused.

Source: `specs/qwen38-flash-next.md` 3.1 (configuration), 4.1 to 4.3 (tensors, loader rules, keys and the two writers).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn

from oracle.artifacts.container import Container, fail, name_list, show
from oracle.artifacts.fields import LARGEST_DIM, LARGEST_HEADS, LARGEST_LAYERS, Fields
from oracle.artifacts.muse import Description
from oracle.artifacts.roles import drafter_roles
from oracle.artifacts.ropes import THETA, read_rope
from oracle.artifacts.sizes import (
    LARGEST_HEAD_DIM,
    context_length,
    finish_config,
    finish_gguf,
    read_config_sizes,
    released_taps,
    target_block_count,
    token_count,
)
from oracle.drafters.dialect import Dialect, Geometry
from oracle.recipes import Rope

FAMILY = "qwen38-flash-next"
LAYERS, TAPS, TENSORS, LARGEST_BLOCK = 5, 5, 58, 128
RELEASE_HIDDEN, RELEASE_TAPS, EPS = 2560, (3, 15, 23, 35, 43), 1e-6
FOREIGN = (
    (("selector", "conv_base", "conv_proj"), "a DFlash 2 part"),
    (("markov", "conf_proj", "confidence_head", "d2t", "t2d"), "a DSpark part"),
    (("token_embd", "embed_tokens"), "an embedding of its own; it comes from the target"),
    (("lm_head",), "a head of its own; it comes from the target"),
)
LAYOUT_KEYS = ("sample_from_anchor", "query_zero_predicts_next")


def describe(container: Container, names: set[str]) -> Description:
    """Read and check the metadata of a DeepSpec drafter; ``names``: the tensor names, without ``model.``."""
    _refuse_foreign(container, names)
    made = _from_gguf(container) if container.kind == "gguf" else _from_config(container)
    if len(names) > TENSORS:
        extra = names - {r.name for r in made.roles.values()}
        fail(container.path, f"{len(names)} tensors; expected the {TENSORS} of this family, without {name_list(extra)}")
    return made


def is_true(value: object) -> bool:
    """A flag as this family's writers store it: a bool, a number that is not 0, or the text ``true`` or ``1``."""
    return value in ("true", "1") if isinstance(value, str) else bool(value)


def matches(config: dict[str, Any]) -> bool:
    """Whether a Hugging Face config says that the anchor row predicts, without a Markov head: the mark of this family."""
    inner = config.get("dflash_config")
    parts = [config, inner if isinstance(inner, dict) else {}]
    return any(is_true(p.get("query_zero_predicts_next")) for p in parts)


def _refuse_foreign(container: Container, names: set[str]) -> None:
    for words, what in FOREIGN:
        found = [n for n in names if any(w in n for w in words)]
        if found:
            fail(container.path, f"tensors {name_list(found)}: {what}; family {FAMILY} has exactly {TENSORS} tensors without it")
    if "output.weight" in names:
        fail(container.path, f"tensor 'output.weight': a head of its own; it comes from the target; family {FAMILY} has {TENSORS} tensors")


def _flag(fields: Fields, key: str, wanted: bool) -> None:
    """``key``, where it is present, must say ``wanted`` in one of the ways of `is_true`."""
    fields.used.add(key)
    if fields.has(key) and is_true(fields.values[key]) is not wanted:
        fields.refuse(key, str(wanted).lower(), f"family {FAMILY} supports nothing else")


def _zero(fields: Fields, key: str) -> None:
    """A size of a part that this family does not have."""
    if fields.integer(key, 0, LARGEST_DIM, default=0):
        fields.refuse(key, "0", f"family {FAMILY} has no such part")


def _from_gguf(container: Container) -> Description:
    keys = Fields(container, container.metadata)
    if keys.text("general.architecture") != "dflash":
        keys.refuse("general.architecture", "'dflash'")
    _flag(keys, "dflash.sample_from_anchor", True)
    for key in ("dflash.attention.causal", "dflash.causal", "dflash.has_confidence_head"):
        _flag(keys, key, False)
    for key in ("dflash.markov_rank", "dflash.selector_top_k", "dflash.selector_rank", "dflash.conv_kernel_size"):
        _zero(keys, key)
    sizes = _gguf_sizes(keys)
    vocab = keys.integer("dflash.vocab_size", 1, LARGEST_DIM) if keys.has("dflash.vocab_size") else token_count(keys)
    raw_ids, theta, mask = _writer(container, keys, vocab)
    taps = tuple(t - (not raw_ids) for t in keys.integers("dflash.target_layers", 0 if raw_ids else 1, LARGEST_LAYERS, 64))
    eps = keys.number("dflash.attention.layer_norm_rms_epsilon", 1e-12, 1e-1, default=EPS)
    block = keys.integer("dflash.block_size", 1, LARGEST_BLOCK)
    keys.must_be("dflash.rope.dimension_count", sizes["head_dim"])
    keys.must_be("dflash.attention.value_scale", 1.0)
    keys.must_be("dflash.attention.sliding_window", 0)
    keys.ignore("dflash.rope.dimension_sections", "dflash.source_sha256")
    context = context_length(keys, "dflash.context_length")
    layers = target_block_count(keys, taps)
    finish_gguf(keys)
    geometry = replace(_geometry(container, sizes, vocab, block, mask, taps, context), target_layers=layers)
    dialect = _dialect(geometry, eps, Rope(theta, sizes["head_dim"]))
    return Description(geometry, dialect, drafter_roles(geometry, "gguf"), _taps(container, geometry))


def _gguf_sizes(keys: Fields) -> dict[str, int]:
    """Sizes by their `Geometry` names; the head width is spelled out, hidden / heads would be another number."""
    sizes: dict[str, int] = {
        "hidden": keys.integer("dflash.embedding_length", 1, LARGEST_DIM),
        "intermediate": keys.integer("dflash.feed_forward_length", 1, LARGEST_DIM),
        "layers": keys.integer("dflash.block_count", 1, LARGEST_LAYERS),
        "heads": keys.integer("dflash.attention.head_count", 1, LARGEST_HEADS),
        "kv_heads": keys.integer("dflash.attention.head_count_kv", 1, LARGEST_HEADS),
        "head_dim": keys.integer("dflash.attention.key_length", 2, LARGEST_HEAD_DIM),
    }
    keys.must_be("dflash.attention.value_length", sizes["head_dim"])
    if sizes["heads"] % sizes["kv_heads"]:
        keys.refuse("dflash.attention.head_count_kv", f"a divisor of the {sizes['heads']} query heads")
    if sizes["head_dim"] % 2:
        keys.refuse("dflash.attention.key_length", "an even number")
    return sizes


def _writer(container: Container, keys: Fields, vocab: int) -> tuple[bool, float, int]:
    """(tap ids are stored raw, theta, mask token): one writer stores raw ids and ``rope.frequency_base``, the other adds one.

    The keys that tell the writers apart may not be mixed: the taps would silently be one layer off.
    """
    raw = [k for k in ("dflash.rope.frequency_base", "dflash.mask_token_id") if keys.has(k)]
    raised = [k for k in ("dflash.rope.freq_base", "tokenizer.ggml.mask_token_id") if keys.has(k)]
    if bool(raw) == bool(raised):
        found = f"both {raw[0]} and {raised[0]}" if raw else "neither dflash.rope.frequency_base nor dflash.rope.freq_base"
        advice = "dflash.target_layers holds raw ids beside the former and ids plus one beside the latter"
        fail(container.path, f"{found}: cannot tell who wrote the file; {advice}, keep the keys of one writer")
    if raised:
        theta = keys.number("dflash.rope.freq_base", *THETA)
        return False, theta, keys.integer("tokenizer.ggml.mask_token_id", 0, vocab - 1)
    key = "dflash.rope.frequency_base"
    keys.used.add(key)
    value = keys.values.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not THETA[0] <= value <= THETA[1]:
        keys.refuse(key, f"a number from {THETA[0]:g} to {THETA[1]:g}")
    return True, float(value), keys.integer("dflash.mask_token_id", 0, vocab - 1)  # type: ignore[arg-type]


def _from_config(container: Container) -> Description:
    config = Fields(container, container.metadata)
    config.ignore("architectures", "layer_types", "max_window_layers", "tie_word_embeddings")
    config.must_be("model_type", "qwen3", "qwen3_dflash", "dflash")
    inner = config.child("dflash_config")

    def at(key: str) -> Fields:
        config.ignore(key)
        return inner if inner.has(key) else config

    stated = [key for key in LAYOUT_KEYS if at(key).has(key)]
    for key in stated:
        _flag(at(key), key, True)
    if not stated:
        _missing(container, " or ".join(LAYOUT_KEYS), "true, the layout in which the anchor row predicts the next token")
    for key in ("enable_confidence_head", "has_confidence_head", "is_causal", "causal", "use_sliding_window", "attention_bias"):
        _flag(at(key), key, False)
    for key in ("markov_rank", "selector_top_k", "selector_rank", "conv_kernel_size"):
        _zero(at(key), key)
    if config.has("layer_types") and set(config.words("layer_types", ("full_attention",), LAYERS)) != {"full_attention"}:
        config.refuse("layer_types", "full_attention for every layer")
    sizes = read_config_sizes(config, required=True)
    vocab = config.integer("vocab_size", 1, LARGEST_DIM)
    rope = read_rope(config, sizes["head_dim"], 1e7)
    eps = config.number("rms_norm_eps", 1e-12, 1e-1, default=EPS)
    config.must_be("hidden_act", "silu")
    config.ignore("sliding_window")
    block = at("block_size").integer("block_size", 1, LARGEST_BLOCK)
    mask = at("mask_token_id").integer("mask_token_id", 0, vocab - 1)
    taps = at("target_layer_ids").integers("target_layer_ids", 0, LARGEST_LAYERS, 64)
    layers = at("num_target_layers").integer("num_target_layers", max(taps) + 1, LARGEST_LAYERS, default=None)
    context = context_length(config, "max_position_embeddings")
    inner.finish()
    warnings = tuple(finish_config(config))
    geometry = replace(_geometry(container, sizes, vocab, block, mask, taps, context), target_layers=layers)
    warnings += _taps(container, geometry)
    return Description(geometry, _dialect(geometry, eps, rope), drafter_roles(geometry, "hf"), warnings)


def _missing(container: Container, key: str, expected: str) -> NoReturn:
    fail(container.metadata_path, f"missing key {key}: expected {expected}")


def _geometry(
    container: Container, sizes: dict[str, int], vocab: int, block: int, mask: int, taps: tuple[int, ...], context: int | None
) -> Geometry:
    if sizes["layers"] != LAYERS or len(taps) != TAPS:
        fail(
            container.metadata_path, f"{sizes['layers']} layers and {len(taps)} taps; family {FAMILY} has {LAYERS} layers and {TAPS} taps"
        )
    if list(taps) != sorted(taps):
        fail(container.metadata_path, f"taps {show(list(taps))}: expected strictly rising target layers")
    made: dict[str, Any] = {"vocab": vocab, "block_size": block, "mask_token_id": mask, "tap_ids": taps, "context_length": context}
    return Geometry(**(made | sizes), target_hidden=sizes["hidden"], sliding=(False,) * LAYERS)


def _taps(container: Container, g: Geometry) -> tuple[str, ...]:
    return tuple(released_taps(container, g.tap_ids, RELEASE_TAPS)) if g.hidden == RELEASE_HIDDEN else ()


def _dialect(g: Geometry, eps: float, rope: Rope) -> Dialect:
    return Dialect(FAMILY, eps, rope, g.head_dim**-0.5, anchor_layout="predict_next", causal=(False,) * LAYERS)
