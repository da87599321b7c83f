"""The Muse Glimmer target: its GGUF and the text part of the published SafeTensors.

Source: `specs/muse-glimmer.md` sections 1.1, 1.2 and 1.7. GGUF files fold the 1 of the layers' norms in and permute the rows of
q and k for interleaved pairs; SafeTensors files keep centred norms and pair halves. Both are one model.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from oracle.artifacts.container import Container, StoredTensor, fail, name_list, show
from oracle.artifacts.fields import LARGEST_DIM, LARGEST_LAYERS, WINDOWS, Fields
from oracle.artifacts.roles import GGUF_LAYER, GGUF_TARGET, HF_LAYER, MATRICES, Role, TargetParts, formats_of, layer_roles, take
from oracle.artifacts.ropes import THETA, read_rope
from oracle.artifacts.sizes import context_length, finish_config, finish_gguf, read_config_sizes, read_gguf_sizes, vocabulary_rows
from oracle.recipes import Rope
from oracle.targets.muse_glimmer import MuseGeometry, MuseLayer, MuseWeights
from oracle.weights import Weight

FAMILY = "muse-glimmer"
MODEL_TYPE = "muse_glimmer"
ARCHITECTURE = "MuseGlimmerForConditionalGeneration"
DEFAULT_THETA = 500000.0
POST_NORM_EPS = 1e-8
PLACEHOLDERS = (200091, 200092)
QK_SCALE = 3.87
PREFIX = "model.language_model."
VISION = ("model.vision_tower.", "model.vision_adapter.", "model.vision_projection.")
LAYER_TYPES = ("sliding_attention", "full_attention")

LEGACY = ("post_attn_norm.weight", "post_ffn_norm.weight")
OWN_GGUF = {"attn_gate": "attn_gate.weight", "post_attn_norm": "post_attention_norm.weight", "post_mlp_norm": "post_ffw_norm.weight"}
OWN_HF = {
    "post_norm": "pre_feedforward_layernorm.weight",
    "attn_gate": "self_attn.gate_proj.weight",
    "post_attn_norm": "post_attention_layernorm.weight",
    "post_mlp_norm": "post_feedforward_layernorm.weight",
}
HF_OUTER = {"embedding": f"{PREFIX}embed_tokens.weight", "norm": f"{PREFIX}norm.weight", "head": "lm_head.weight"}


def roles(g: MuseGeometry, style: str) -> dict[str, Role]:
    """Every tensor of the target by key (``embedding``, ``3.post_attn_norm`` …); ``style``: ``gguf`` or ``hf``."""
    gguf = style == "gguf"
    outer, names = (GGUF_TARGET, GGUF_LAYER | OWN_GGUF) if gguf else (HF_OUTER, HF_LAYER | OWN_HF)
    made = {
        "embedding": Role(outer["embedding"], (g.vocab, g.hidden), ("vocab", "in")),
        "norm": Role(outer["norm"], (g.hidden,), ("dim",)),
        "head": Role(outer["head"], (g.vocab, g.hidden), ("vocab", "in")),
    }
    parts = (*MATRICES, "input_norm", "post_norm", *(("q_norm", "k_norm") if gguf else ()))
    for layer in range(g.layers):
        prefix = f"blk.{layer}." if gguf else f"{PREFIX}layers.{layer}."
        made |= {f"{layer}.{part}": role for part, role in layer_roles(g, names, prefix, parts).items()}
        made[f"{layer}.attn_gate"] = Role(prefix + names["attn_gate"], (g.heads * g.head_dim, g.hidden), ("dim", "in"))
        made |= {f"{layer}.{part}": Role(prefix + names[part], (g.hidden,), ("dim",)) for part in ("post_attn_norm", "post_mlp_norm")}
    return made


def read(container: Container) -> TargetParts:
    """The target in ``container``, checked and mapped; `ArtifactError` names what is wrong."""
    return _from_gguf(container) if container.kind == "gguf" else _from_config(container)


def _from_gguf(container: Container) -> TargetParts:
    keys = Fields(container, container.metadata)
    key = f"{FAMILY}.".__add__
    keys.must_be("general.architecture", FAMILY)
    sizes: dict[str, Any] = read_gguf_sizes(keys, FAMILY, required=True)
    vocab = vocabulary_rows(container, keys, FAMILY, GGUF_TARGET["embedding"])
    theta = keys.number(key("rope.freq_base"), *THETA)
    if keys.number(key("rope.freq_base_swa"), *THETA, default=theta) != theta:
        keys.refuse(key("rope.freq_base_swa"), f"the same value as {key('rope.freq_base')} = {theta:g}: only sliding layers rotate")
    if keys.integer(key("rope.dimension_count"), 2, LARGEST_DIM, default=sizes["head_dim"]) != sizes["head_dim"]:
        keys.refuse(key("rope.dimension_count"), f"the head width {sizes['head_dim']}")
    keys.must_be(key("rope.scaling.type"), "none")
    # llama.cpp and Muser hold this constant in code; sglang reads it, so another value would be another model in each.
    if keys.number(key("attention.post_norm_rms_epsilon"), 0.0, 1.0, default=POST_NORM_EPS) != POST_NORM_EPS:
        keys.refuse(key("attention.post_norm_rms_epsilon"), f"{POST_NORM_EPS:g}")
    sliding = _pattern(keys, key("attention.sliding_window_pattern"), sizes["layers"])
    geometry = MuseGeometry(
        FAMILY,
        **sizes,
        vocab=vocab,
        eps=keys.number(key("attention.layer_norm_rms_epsilon"), 1e-12, 1e-1),
        rope=Rope(theta, sizes["head_dim"], "interleaved"),
        attn_scale=sizes["head_dim"] ** -0.5,
        context_length=context_length(keys, key("context_length")),
        post_norm_eps=POST_NORM_EPS,
        sliding=sliding,
        roped=sliding,
        window=keys.integer(key("attention.sliding_window"), *WINDOWS),
        norm_offset=0.0,
        qk_scale=_stored_scale(container, sizes),
        output_multiplier=keys.number(key("logit_scale"), 1e-6, 1e6),
        softcap=_softcap(keys, key("final_logit_softcapping")),
        placeholders=tuple(p for p in PLACEHOLDERS if p < vocab),
    )
    warnings = finish_gguf(keys)
    found = take(container, container.tensors, roles(geometry, "gguf"))
    return _parts(geometry, found, warnings)


def _softcap(fields: Fields, key: str) -> float:
    """The cap, which has no default: engines that fall back disagree between none, 20 and 30 (section 1.7)."""
    cap: float = fields.number(key, 1e-3, 1e6)
    return cap


def _pattern(keys: Fields, key: str, layers: int) -> tuple[bool, ...]:
    """Which layers slide: one bool per layer, or a period whose last layer is full, counted from the first layer (section 1.2)."""
    if keys.container.kinds.get(key) != "u32":
        return keys.flags(key, layers)
    period = keys.integer(key, 2, LARGEST_LAYERS)
    return tuple(i % period < period - 1 for i in range(layers))


def _stored_scale(container: Container, sizes: dict[str, int]) -> float:
    """The query scale, which the file keeps as constant norm weights; the key's are ones (section 1.7)."""
    width = sizes["head_dim"]
    scales = {_constant(container, f"blk.{layer}.attn_q_norm.weight", width) for layer in range(sizes["layers"])}
    ones = {_constant(container, f"blk.{layer}.attn_k_norm.weight", width) for layer in range(sizes["layers"])}
    if len(scales) != 1 or ones != {1.0}:
        fail(
            container.path,
            f"tensors blk.N.attn_q_norm.weight and blk.N.attn_k_norm.weight: expected one constant for all q and 1 for all k, "
            f"found {sorted(scales)} and {sorted(ones)}",
        )
    scale = float(str(np.float32(scales.pop())))
    if problem := _wrong_scale(scale, width):
        fail(container.path, f"tensor 'blk.0.attn_q_norm.weight': {problem}")
    return scale


def _constant(container: Container, name: str, width: int) -> float:
    """The one value of a vector of ``width`` equal values."""
    tensor: StoredTensor | None = container.tensors.get(name)
    if tensor is None:
        fail(container.path, f"missing tensors: {name!r}")
    if tensor.shape != (width,) or tensor.stored != "f32":
        fail(container.path, f"tensor {name!r}: expected f32 [{width}], found {tensor.stored} {list(tensor.shape)}")
    values = np.ascontiguousarray(tensor.raw).reshape(-1).view("<f4")
    if not (values == values[0]).all() or not 0 < values[0] < 1e6:
        fail(container.path, f"tensor {name!r}: expected one positive constant, found {show(values[:4])} …; this norm has no weight")
    return float(values[0])


def _wrong_scale(scale: float, head_dim: int) -> str | None:
    """What is wrong with a query scale into which the head width was multiplied (section 1.4)."""
    if head_dim > 1 and abs(scale / math.sqrt(head_dim) - QK_SCALE) < 1e-3:
        return f"expected {QK_SCALE}, found {scale:g}, its product with sqrt({head_dim}): attention divides by that root once already"
    return None


def _from_config(container: Container) -> TargetParts:
    top = Fields(container, container.metadata)
    top.must_be("architectures", [ARCHITECTURE])
    top.must_be("model_type", MODEL_TYPE)
    top.must_be("tie_word_embeddings", False)
    text = top.child("text_config")
    if not top.has("text_config"):
        top.refuse("text_config", "the object of the text model")
    geometry = _text_geometry(text, tuple(sorted(top.integer(f"{kind}_token_id", 0, LARGEST_DIM) for kind in ("video", "image"))))
    warnings = finish_config(text)
    top.ignore("text_config", "vision_config", "out_hidden_size", "projector_hidden_size", "projector_hidden_act")
    warnings += finish_config(top)
    tensors, more = _text_tensors(container)
    found = take(container, tensors, roles(geometry, "hf"))
    for layer in range(geometry.layers):
        scale = np.full(geometry.head_dim, geometry.qk_scale)
        # Kept in f32, as engines and GGUF files keep it.
        found[f"{layer}.q_norm"] = Weight.of(scale, ("dim",), "f32", f"{container.metadata_path.name}:qk_scale_factor")
    return _parts(geometry, found, warnings + more)


def _text_geometry(text: Fields, placeholders: tuple[int, ...]) -> MuseGeometry:
    text.must_be("model_type", "muse_glimmer_text")
    sizes: dict[str, Any] = read_config_sizes(text, required=True)
    vocab = text.integer("vocab_size", 1, LARGEST_DIM)
    rope = read_rope(text, sizes["head_dim"], DEFAULT_THETA)
    for key, only in (("hidden_activation", "silu"), ("attention_bias", False), ("tie_word_embeddings", False)):
        text.must_be(key, only)
    sliding = tuple(t == LAYER_TYPES[0] for t in text.words("layer_types", LAYER_TYPES, sizes["layers"]))
    scale = text.number("qk_scale_factor", 1e-3, 1e3)
    if problem := _wrong_scale(scale, sizes["head_dim"]):
        text.refuse("qk_scale_factor", f"{QK_SCALE}", problem)
    return MuseGeometry(
        FAMILY,
        **sizes,
        vocab=vocab,
        eps=text.number("rms_norm_eps", 1e-12, 1e-1),
        rope=rope,
        attn_scale=sizes["head_dim"] ** -0.5,
        context_length=context_length(text, "max_position_embeddings"),
        post_norm_eps=text.number("post_norm_eps", 1e-12, 1e-1),
        sliding=sliding,
        roped=_roped(text, sliding, rope.theta),
        window=text.integer("sliding_window", *WINDOWS),
        norm_offset=1.0,
        qk_scale=scale,
        output_multiplier=text.number("output_multiplier", 1e-6, 1e6),
        softcap=_softcap(text, "final_logit_softcapping"),
        placeholders=tuple(p for p in placeholders if p < vocab),
    )


def _roped(text: Fields, sliding: tuple[bool, ...], theta: float) -> tuple[bool, ...]:
    """Which layers rotate: those whose ``layer_rope_theta`` is not 0; the angle is the global theta's (section 1.2)."""
    key, layers = "layer_rope_theta", len(sliding)
    text.ignore(key)
    values: Any = text.values.get(key)
    if values is None:
        backward = tuple((layers - 1 - i) % 4 != 0 for i in range(layers))
        if sliding != backward:
            text.refuse(key, "a list of one theta per layer, because layer_types is not the pattern that its default assumes")
        return sliding
    if not isinstance(values, list) or len(values) != layers or any(isinstance(v, bool) or v not in (0, theta) for v in values):
        text.refuse(key, f"{layers} numbers, each 0 or the global theta {theta:g}")
    return tuple(v != 0 for v in values)


def _text_tensors(container: Container) -> tuple[dict[str, StoredTensor], list[str]]:
    """The tensors without those of the vision part, and a warning that it is left out; an older naming is refused by its name."""
    legacy = [n for n in container.tensors if n.endswith(LEGACY) or n.startswith("model.layers.")]
    if legacy:
        fail(
            container.path,
            f"tensors of an older export: {name_list(legacy, 3)}; there post_attention_layernorm is the norm before the MLP, here the one "
            f"behind attention; rename them to {PREFIX}layers.N.(input_layernorm, post_attention_layernorm, pre_feedforward_layernorm, "
            "post_feedforward_layernorm)",
        )
    kept = {n: t for n, t in container.tensors.items() if not n.startswith(VISION)}
    left = len(container.tensors) - len(kept)
    return kept, [f"{left} tensors of the vision part are not used: this is the text model"] if left else []


def _parts(g: MuseGeometry, found: dict[str, Weight], warnings: list[str]) -> TargetParts:
    def layer(number: int) -> MuseLayer:
        prefix = f"{number}."
        own: dict[str, Any] = {k.removeprefix(prefix): w for k, w in found.items() if k.startswith(prefix)}
        return MuseLayer(**own)

    weights = MuseWeights(found["embedding"], tuple(layer(n) for n in range(g.layers)), found["norm"], found["head"])
    return TargetParts(g, weights, formats_of(found.values()), tuple(warnings))
