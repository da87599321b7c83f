"""The metadata that `make_artifact` writes: GGUF keys and ``config.json`` objects, as the published tools write them.

Sources: `specs/dflash-generic.md` section 18, `specs/muse-glimmer.md` section 4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oracle.artifacts import muse
from oracle.artifacts.heads import MARKOV_TYPE
from oracle.artifacts.sizes import TARGET_BLOCK_COUNT
from oracle.artifacts.writers import Typed

if TYPE_CHECKING:
    from oracle.artifacts.make_models import Model

DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64"}


def _u32(value: int) -> Typed:
    return Typed("u32", value)


def _sizes(arch: str, model: Model) -> dict[str, Typed]:
    return {
        f"{arch}.block_count": _u32(model.layers),
        f"{arch}.context_length": _u32(model.context_length),
        f"{arch}.embedding_length": _u32(model.hidden),
        f"{arch}.feed_forward_length": _u32(model.intermediate),
        f"{arch}.attention.head_count": _u32(model.heads),
        f"{arch}.attention.head_count_kv": _u32(model.kv_heads),
        f"{arch}.attention.key_length": _u32(model.head_dim),
        f"{arch}.attention.value_length": _u32(model.head_dim),
        f"{arch}.attention.layer_norm_rms_epsilon": Typed("f32", model.eps),
        f"{arch}.rope.freq_base": Typed("f32", model.theta),
    }


def vocabulary(size: int) -> dict[str, Typed]:
    """Numbered tokens: the vocabulary of a file that carries no tokenizer."""
    return {
        "tokenizer.ggml.model": Typed("string", "gpt2"),
        "tokenizer.ggml.tokens": Typed("array of string", [f"<{n}>" for n in range(size)]),
        # Nothing merges; llama.cpp refuses a byte-level vocabulary without the list.
        "tokenizer.ggml.merges": Typed("array of string", []),
        "tokenizer.ggml.eos_token_id": _u32(1),
    }


def draft_keys(family: str, model: Model) -> dict[str, Typed]:
    """Metadata of a drafter GGUF; taps are stored one-based (`specs/dflash-generic.md` section 7)."""
    keys = {"general.architecture": Typed("string", "dflash"), "general.name": Typed("string", f"seeded {family} drafter")}
    keys |= _sizes("dflash", model)
    keys["dflash.block_size"] = _u32(model.block_size)
    keys["dflash.target_layers"] = Typed("array of i32", [t + 1 for t in model.tap_ids])
    if model.target_layers is not None:
        keys[TARGET_BLOCK_COUNT] = _u32(model.target_layers)
    if model.window is not None:
        keys["dflash.attention.sliding_window"] = _u32(model.window)
        keys["dflash.attention.sliding_window_pattern"] = Typed("array of bool", model.sliding)
    if model.is_causal is not None:
        keys["dflash.attention.causal"] = Typed("bool", model.is_causal)
    for key, value, default in (
        ("dflash.embedding_scale", model.embed_scale, 1.0),
        ("dflash.logit_scale", model.output_multiplier, 1.0),
        ("dflash.final_logit_softcapping", model.softcap, None),
    ):
        if value != default:
            keys[key] = Typed("f32", value)
    keys |= _head_keys(model)
    return keys | vocabulary(model.vocab) | {"tokenizer.ggml.mask_token_id": _u32(model.mask_token_id)}


def target_keys(arch: str, model: Model) -> dict[str, Typed]:
    """Metadata of a target GGUF of architecture ``arch``."""
    keys = {"general.architecture": Typed("string", arch), "general.name": Typed("string", f"seeded {arch} target")}
    return (
        keys
        | _sizes(arch, model)
        | {f"{arch}.vocab_size": _u32(model.vocab), f"{arch}.rope.dimension_count": _u32(model.head_dim)}
        | vocabulary(model.vocab)
    )


def hf_config(model: Model, stored: str) -> dict[str, Any]:
    """What the ``config.json`` of every family holds: sizes, dtype and ends."""
    return {
        "hidden_size": model.hidden,
        "intermediate_size": model.intermediate,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": model.eps,
        "max_position_embeddings": model.context_length,
        "dtype": DTYPES[stored],
        "bos_token_id": 0,
        "eos_token_id": 1,
    }


def draft_config(family: str, model: Model, stored: str) -> dict[str, Any]:
    """``config.json`` of a drafter; taps are zero-based."""
    config = hf_config(model, stored)
    layer_types = ["sliding_attention" if s else "full_attention" for s in model.sliding]
    inner: dict[str, Any] = {"mask_token_id": model.mask_token_id, "target_layer_ids": list(model.tap_ids)}
    if family == muse.FAMILY and model.naming == "published":
        return config | {
            "architectures": ["MuseGlimmerAssistantModel"],
            "model_type": muse.MODEL_TYPE,
            "rope_parameters": {"rope_type": "default", "rope_theta": model.theta},
            "layer_types": layer_types,
            "sliding_window": model.window,
            "block_size": model.block_size,
            "vocab_size": model.vocab,
        } | inner
    config |= {
        "architectures": ["DFlashDraftModel"],
        "model_type": muse.MODEL_TYPE if family == muse.FAMILY else "qwen3",
        "rope_theta": model.theta,
        "vocab_size": model.vocab,
        "num_target_layers": model.target_layers,
        "layer_types": layer_types,
        "block_size": model.block_size,
        "attention_bias": model.attention_bias,
        "dflash_config": inner,
    }
    if model.window is not None:
        config |= {"sliding_window": model.window, "use_sliding_window": True}
    if model.is_causal is not None:
        config["is_causal"] = model.is_causal
    scales = (
        ("input_embedding_scale", model.embed_scale, 1.0),
        ("output_multiplier", model.output_multiplier, 1.0),
        ("final_logit_softcapping", model.softcap, None),
    )
    inner |= {key: value for key, value, default in scales if value != default}
    _describe_heads(model, config, inner)
    return config


_DFLASH2 = {"conv_kernel_size": "conv_kernel", "conv_group_size": "conv_group", "selector_rank": "selector_rank"}
_DFLASH2["selector_top_k"] = "selector_top_k"


def _head_keys(model: Model) -> dict[str, Typed]:
    """GGUF keys of DFlash 2 and DSpark parts."""
    keys = {f"dflash.{key}": _u32(getattr(model, name)) for key, name in _DFLASH2.items() if getattr(model, name)}
    if model.markov_rank and model.markov != "vanilla":
        keys[MARKOV_TYPE] = Typed("string", model.markov)
    if model.confidence != "none":
        keys["dflash.has_confidence_head"] = Typed("bool", True)
    if model.markov_rank or model.confidence != "none":
        keys["dflash.sample_from_anchor"] = Typed("bool", model.sample_from_anchor)
    return keys


def _describe_heads(model: Model, config: dict[str, Any], inner: dict[str, Any]) -> None:
    """The same in a config: DFlash 2's beside the taps, DSpark's at the top level."""
    inner |= {key: getattr(model, name) for key, name in _DFLASH2.items() if getattr(model, name)}
    if model.conv_kernel and model.selector_rank:
        config["architectures"] = ["DFlash2DraftModel"]
    if model.markov_rank:
        config |= {"markov_rank": model.markov_rank, "markov_head_type": model.markov}
    if model.confidence != "none":
        config |= {"enable_confidence_head": True, "confidence_head_with_markov": model.confidence == "markov"}
    if model.markov_rank or model.confidence != "none":
        config["sample_from_anchor"] = model.sample_from_anchor
    if model.draft_vocab:
        config["draft_vocab_size"] = model.draft_vocab


def target_config(model: Model, stored: str) -> dict[str, Any]:
    """``config.json`` of a ``LlamaForCausalLM`` target."""
    config = hf_config(model, stored) | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": model.vocab,
        "tie_word_embeddings": model.tied,
        "attention_bias": False,
        "mlp_bias": False,
    }
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": model.theta}
    if model.llama3_scaling is not None:
        factor, low, high, original = model.llama3_scaling
        rope |= {"rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high}
        rope["original_max_position_embeddings"] = original
    return config | {"rope_parameters": rope}
