"""The DeepSpec drafter of Qwen3.8-Flash-Next: exactly 58 tensors, an anchor row that predicts as well, everything else refused.

Source: `specs/qwen38-flash-next.md` 3.1 (configuration), 4.1 to 4.3 (tensors, loader rules, keys and the two writers).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from oracle.artifacts.container import Container, fail, name_list, show
from oracle.artifacts.fields import LARGEST_DIM, LARGEST_HEADS, LARGEST_LAYERS, Fields, shortest
from oracle.artifacts.muse import Description
from oracle.artifacts.roles import Role, drafter_roles
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
    warn,
)
from oracle.drafters.dialect import NO_MASK, Dialect, Geometry
from oracle.recipes import Rope

FAMILY = "qwen38-flash-next"
LAYERS, TAPS, TENSORS, LARGEST_BLOCK, LARGEST_DEPTH, LONGEST_TAPS = 5, 5, 58, 128, 64, 64
RELEASE_HIDDEN, RELEASE_TAPS, EPS, RELEASE_THETA = 2560, (3, 15, 23, 35, 43), 1e-6, 1e7
FOREIGN = (
    (("selector", "conv_base", "conv_proj"), "a DFlash 2 part"),
    (("markov", "conf_proj", "confidence_head", "d2t", "t2d"), "a DSpark part"),
    (("token_embd", "embed_tokens"), "an embedding of its own; it comes from the target"),
    (("lm_head",), "a head of its own; it comes from the target"),
)
# Other names under which a GGUF may hold the same value (section 4.3).
ALIASES = {
    "dflash.embedding_length": ("qwen3.embedding_length", "qwen3_dflash.embedding_length"),
    "dflash.block_count": ("qwen3.block_count", "qwen3_dflash.block_count"),
    "dflash.attention.head_count": ("qwen3.attention.head_count",),
    "dflash.attention.head_count_kv": ("qwen3.attention.head_count_kv",),
    "dflash.attention.key_length": ("qwen3.attention.key_length",),
    "dflash.feed_forward_length": ("qwen3.feed_forward_length",),
    "dflash.vocab_size": ("qwen3.vocab_size",),
    "dflash.rope.frequency_base": ("qwen3.rope.freq_base", "qwen3.rope.frequency_base"),
    "dflash.target_layers": ("target_layers",),
}
LAYOUT_KEYS = ("sample_from_anchor", "query_zero_predicts_next")


def describe(container: Container, names: set[str]) -> Description:
    """Read and check the metadata of a DeepSpec drafter; ``names``: the tensor names, without ``model.``."""
    _refuse_foreign(container, names)
    made = _from_gguf(container) if container.kind == "gguf" else _from_config(container)
    made = replace(made, roles=_named(container, made.geometry, names))
    if len(names) > TENSORS:
        extra = names - {r.name for r in made.roles.values()}
        fail(container.path, f"{len(names)} tensors; expected the {TENSORS} of this family, without {name_list(extra)}")
    return made


def _named(container: Container, g: Geometry, names: set[str]) -> dict[str, Role]:
    """Every role under the name that the file has: a tensor may carry either container's name, but not both (section 4.2)."""
    own, other = ("gguf", "hf") if container.kind == "gguf" else ("hf", "gguf")
    roles, others = drafter_roles(g, own), drafter_roles(g, other)
    for key, role in others.items():
        twice = sorted({role.name, roles[key].name}) if role.name != roles[key].name else []
        if twice and names >= set(twice):
            fail(container.path, f"tensors {name_list(twice)}: two names of one tensor; keep one of them")
    return {key: others[key] if others[key].name in names else role for key, role in roles.items()}


def alias(keys: Fields, key: str) -> str:
    """The name under which the file holds ``key``: its own or one of `ALIASES`; two that differ are refused."""
    found = [name for name in (key, *ALIASES.get(key, ())) if keys.has(name)]
    for name in found[1:]:
        keys.used.add(name)
        if not np.array_equal(keys.values[name], keys.values[found[0]]):
            keys.refuse(name, f"the value of {found[0]}, {show(keys.values[found[0]])}", "they are two names of one thing; keep one")
    return found[0] if found else key


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
    sizes, warnings = _gguf_sizes(container, keys)
    vocab_key = alias(keys, "dflash.vocab_size")
    vocab = keys.integer(vocab_key, 1, LARGEST_DIM) if keys.has(vocab_key) else token_count(keys)
    raw_ids, mask = _writer(container, keys, vocab)
    theta, assumed = _theta(container, keys, "dflash.rope.frequency_base" if raw_ids else "dflash.rope.freq_base")
    listed = keys.integers(alias(keys, "dflash.target_layers"), 0 if raw_ids else 1, LARGEST_LAYERS, LONGEST_TAPS)
    taps = tuple(t - (not raw_ids) for t in listed)
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
    return Description(geometry, dialect, {}, (*warnings, *assumed, *_taps(container, geometry)))


def _gguf_sizes(container: Container, keys: Fields) -> tuple[dict[str, int], list[str]]:
    """Sizes by their `Geometry` names, and what to warn about: a head width that is left out is hidden / heads."""

    def size(key: str, largest: int) -> int:
        value: int = keys.integer(alias(keys, f"dflash.{key}"), 1, largest)
        return value

    sizes = {
        "hidden": size("embedding_length", LARGEST_DIM),
        "intermediate": size("feed_forward_length", LARGEST_DIM),
        "layers": size("block_count", LARGEST_DEPTH),
        "heads": size("attention.head_count", LARGEST_HEADS),
        "kv_heads": size("attention.head_count_kv", LARGEST_HEADS),
    }
    width, warnings = alias(keys, "dflash.attention.key_length"), []
    derived, rest = divmod(sizes["hidden"], sizes["heads"])
    if not keys.has(width) and not rest:
        text = f"key {width} is absent: a head width of hidden / heads = {derived} is assumed, which is not the released one"
        warnings.append(warn(container, text))
    sizes["head_dim"] = keys.integer(width, 2, LARGEST_HEAD_DIM, **({} if rest else {"default": derived}))
    keys.must_be("dflash.attention.value_length", sizes["head_dim"])
    if sizes["heads"] % sizes["kv_heads"]:
        keys.refuse(alias(keys, "dflash.attention.head_count_kv"), f"a divisor of the {sizes['heads']} query heads")
    if sizes["head_dim"] % 2:
        keys.refuse(width, f"an even number (hidden / heads is {derived})")
    return sizes, warnings


def _theta(container: Container, keys: Fields, key: str) -> tuple[float, list[str]]:
    """(theta, what to warn about); a number of any width, the released one where there is none."""
    name = alias(keys, key) if keys.has(key) else alias(keys, "dflash.rope.frequency_base")
    keys.used.add(name)
    if not keys.has(name):
        return RELEASE_THETA, [warn(container, f"key {key} is absent: theta {RELEASE_THETA:g} is assumed")]
    value = keys.values[name]
    if not isinstance(value, int | float) or isinstance(value, bool) or not THETA[0] <= value <= THETA[1]:
        keys.refuse(name, f"a number from {THETA[0]:g} to {THETA[1]:g}")
    return (shortest(value) if container.kinds[name] == "f32" else float(value)), []


def _writer(container: Container, keys: Fields, vocab: int) -> tuple[bool, int]:
    """(tap ids are stored raw, mask token): one writer stores raw ids and ``rope.frequency_base``, the other adds one.

    The keys that tell the writers apart may not be mixed: the taps would silently be one layer off.
    """
    raw = [k for k in ("dflash.rope.frequency_base", "dflash.mask_token_id") if keys.has(k)]
    raised = [k for k in ("dflash.rope.freq_base", "tokenizer.ggml.mask_token_id") if keys.has(k)]
    if bool(raw) == bool(raised):
        found = f"both {raw[0]} and {raised[0]}" if raw else "neither dflash.rope.frequency_base nor dflash.rope.freq_base"
        advice = "dflash.target_layers holds raw ids beside the former and ids plus one beside the latter"
        fail(container.path, f"{found}: cannot tell who wrote the file; {advice}, keep the keys of one writer")
    key = "dflash.mask_token_id" if raw else "tokenizer.ggml.mask_token_id"
    return bool(raw), keys.integer(key, 0, vocab - 1, default=NO_MASK)


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
    sizes = read_config_sizes(config, required=True, deepest=LARGEST_DEPTH)
    vocab = config.integer("vocab_size", 1, LARGEST_DIM)
    rope = read_rope(config, sizes["head_dim"], RELEASE_THETA)
    eps = config.number("rms_norm_eps", 1e-12, 1e-1, default=EPS)
    config.must_be("hidden_act", "silu")
    config.ignore("sliding_window")
    block = at("block_size").integer("block_size", 1, LARGEST_BLOCK)
    mask = at("mask_token_id").integer("mask_token_id", 0, vocab - 1, default=NO_MASK)
    taps = at("target_layer_ids").integers("target_layer_ids", 0, LARGEST_LAYERS, LONGEST_TAPS)
    layers = at("num_target_layers").integer("num_target_layers", max(taps) + 1, LARGEST_LAYERS, default=None)
    context = context_length(config, "max_position_embeddings")
    inner.finish()
    warnings = tuple(finish_config(config))
    geometry = replace(_geometry(container, sizes, vocab, block, mask, taps, context), target_layers=layers)
    warnings += _taps(container, geometry)
    return Description(geometry, _dialect(geometry, eps, rope), {}, warnings)


def _missing(container: Container, key: str, expected: str) -> NoReturn:
    fail(container.metadata_path, f"missing key {key}: expected {expected}")


def _geometry(
    container: Container, sizes: dict[str, int], vocab: int, block: int, mask: int, taps: tuple[int, ...], context: int | None
) -> Geometry:
    if sizes["layers"] != LAYERS or len(taps) != TAPS:
        fail(container.metadata_path, f"{sizes['layers']} layers and {len(taps)} taps; family {FAMILY} has {LAYERS} layers and {TAPS} taps")
    if list(taps) != sorted(taps):
        fail(container.metadata_path, f"taps {show(list(taps))}: expected strictly rising target layers")
    made: dict[str, Any] = {"vocab": vocab, "block_size": block, "mask_token_id": mask, "tap_ids": taps, "context_length": context}
    return Geometry(**(made | sizes), target_hidden=sizes["hidden"], sliding=(False,) * LAYERS)


def _taps(container: Container, g: Geometry) -> tuple[str, ...]:
    return tuple(released_taps(container, g.tap_ids, RELEASE_TAPS)) if g.hidden == RELEASE_HIDDEN else ()


def _dialect(g: Geometry, eps: float, rope: Rope) -> Dialect:
    return Dialect(FAMILY, eps, rope, g.head_dim**-0.5, anchor_layout="predict_next", causal=(False,) * LAYERS)
