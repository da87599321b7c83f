"""A small valid Muse Glimmer target in both containers, as editable descriptions (see `artifact_files`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.artifacts.artifact_files import (
    DIM,
    HEADS,
    HIDDEN,
    INTER,
    KV,
    VOCAB,
    Folder,
    Gguf,
    Tensor,
    config_sizes,
    numbers,
    sizes,
    vocabulary,
)

ARCH = "muse-glimmer"
LAYERS = 3
PREFIX = "model.language_model."
SHAPES = {
    "input_norm": [HIDDEN],
    "post_attn_norm": [HIDDEN],
    "post_norm": [HIDDEN],
    "post_mlp_norm": [HIDDEN],
    "q": [HEADS * DIM, HIDDEN],
    "k": [KV * DIM, HIDDEN],
    "v": [KV * DIM, HIDDEN],
    "attn_gate": [HEADS * DIM, HIDDEN],
    "o": [HIDDEN, HEADS * DIM],
    "gate": [INTER, HIDDEN],
    "up": [INTER, HIDDEN],
    "down": [HIDDEN, INTER],
}
GGUF = {
    "input_norm": "attn_norm",
    "post_attn_norm": "post_attention_norm",
    "post_norm": "ffn_norm",
    "post_mlp_norm": "post_ffw_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "attn_gate": "attn_gate",
    "o": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
HF = {
    "input_norm": "input_layernorm",
    "post_attn_norm": "post_attention_layernorm",
    "post_norm": "pre_feedforward_layernorm",
    "post_mlp_norm": "post_feedforward_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "attn_gate": "self_attn.gate_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def constant(value: float) -> bytes:
    return np.full(DIM, value, "<f4").tobytes()


def muse_target_gguf() -> Gguf:
    keys = {"general.architecture": ("string", ARCH)} | sizes(ARCH, LAYERS) | vocabulary()
    keys |= {
        f"{ARCH}.attention.sliding_window": ("u32", 8),
        f"{ARCH}.attention.sliding_window_pattern": ("array of bool", [True, False, True]),
        f"{ARCH}.logit_scale": ("f32", 0.5),
        f"{ARCH}.final_logit_softcapping": ("f32", 20.0),
    }
    shapes = {"token_embd.weight": [VOCAB, HIDDEN], "output_norm.weight": [HIDDEN], "output.weight": [VOCAB, HIDDEN]}
    for layer in range(LAYERS):
        shapes |= {f"blk.{layer}.{GGUF[part]}.weight": shape for part, shape in SHAPES.items()}
    tensors = [Tensor(name, shape[::-1], numbers(*shape)) for name, shape in shapes.items()]
    for layer in range(LAYERS):
        tensors += [Tensor(f"blk.{layer}.attn_{p}_norm.weight", [DIM], constant(v)) for p, v in (("q", 3.87), ("k", 1.0))]
    return Gguf(keys, tensors)


def muse_target_folder() -> Folder:
    text = config_sizes(LAYERS) | {
        "model_type": "muse_glimmer_text",
        "hidden_activation": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "layer_rope_theta": [500000.0, 0, 500000.0],
        "sliding_window": 8,
        "qk_scale_factor": 3.87,
        "output_multiplier": 0.5,
        "final_logit_softcapping": 20.0,
        "post_norm_eps": 1e-8,
    }
    config: dict[str, Any] = {
        "architectures": ["MuseGlimmerForConditionalGeneration"],
        "model_type": "muse_glimmer",
        "image_token_id": 4,
        "video_token_id": 3,
        "text_config": text,
        "vision_config": {"hidden_size": 32},
    }
    shapes = {f"{PREFIX}embed_tokens.weight": [VOCAB, HIDDEN], f"{PREFIX}norm.weight": [HIDDEN], "lm_head.weight": [VOCAB, HIDDEN]}
    for layer in range(LAYERS):
        shapes |= {f"{PREFIX}layers.{layer}.{HF[part]}.weight": shape for part, shape in SHAPES.items()}
    return Folder(config, {name: ["F32", shape, numbers(*shape)] for name, shape in shapes.items()})
