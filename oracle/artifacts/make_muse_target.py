"""Write a seeded Muse Glimmer target: GGUF as llama.cpp's converter leaves it, or a folder under the published names.

Source: `specs/muse-glimmer.md` section 1.7. One seed gives one model in both: the layers' norms are drawn with their 1 in.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from oracle.artifacts.descriptions import hf_config, target_keys
from oracle.artifacts.muse_target import ARCHITECTURE, FAMILY, LAYER_TYPES, MODEL_TYPE, PLACEHOLDERS, POST_NORM_EPS, QK_SCALE, roles
from oracle.artifacts.seeds import Recipe, plan
from oracle.artifacts.writers import PlannedTensor, Typed, write_folder, write_gguf
from oracle.recipes import Rope
from oracle.targets.muse_glimmer import MuseGeometry

if TYPE_CHECKING:
    from oracle.artifacts.make_models import Model

CENTRED = ("input_norm", "post_norm", "post_attn_norm", "post_mlp_norm")


def full_every_fourth(layers: int) -> tuple[bool, ...]:
    """Which layers slide: all but every fourth, counted backward from the last (section 1.2)."""
    return tuple((layers - 1 - i) % 4 != 0 for i in range(layers))


def write_muse_target(out: Path, model: Model, recipe: Recipe, kind: str) -> Path:
    """Write ``target.gguf`` or ``target/`` into ``out``; returns it."""
    g = _geometry(model, kind)
    if kind == "safetensors":
        planned = plan(recipe, roles(g, "hf"), added=dict.fromkeys(CENTRED, -1.0))
        write_folder(out / "target", config(model, recipe.weights), planned)
        return out / "target"
    wanted = roles(g, "gguf")
    heads = {k: r for k, r in wanted.items() if k.endswith(("q_norm", "k_norm"))}
    planned = plan(recipe, {k: r for k, r in wanted.items() if k not in heads}, {"q": g.heads, "k": g.kv_heads})
    planned += [_constant(role.name, g.head_dim, g.qk_scale if key.endswith("q_norm") else 1.0) for key, role in heads.items()]
    write_gguf(out / "target.gguf", keys(model), planned)
    return out / "target.gguf"


def _geometry(model: Model, kind: str) -> MuseGeometry:
    """The geometry that a loader must find in the file."""
    gguf = kind == "gguf"
    sizes: dict[str, Any] = {n: getattr(model, n) for n in ("hidden", "intermediate", "layers", "heads", "kv_heads", "head_dim", "vocab")}
    assert model.window is not None and model.softcap is not None
    return MuseGeometry(
        FAMILY,
        **sizes,
        eps=model.eps,
        rope=Rope(model.theta, model.head_dim, "interleaved" if gguf else "neox"),
        attn_scale=model.head_dim**-0.5,
        context_length=model.context_length,
        post_norm_eps=POST_NORM_EPS,
        sliding=model.sliding,
        roped=model.sliding,
        window=model.window,
        norm_offset=0.0 if gguf else 1.0,
        qk_scale=QK_SCALE,
        output_multiplier=model.output_multiplier,
        softcap=model.softcap,
        placeholders=tuple(p for p in PLACEHOLDERS if p < model.vocab),
    )


def _constant(name: str, width: int, value: float) -> PlannedTensor:
    return PlannedTensor(name, (width,), "f32", lambda: iter([np.full(width, value, "<f4").view(np.uint8)[None]]))


def keys(model: Model) -> dict[str, Typed]:
    """Metadata of a GGUF, as llama.cpp's converter writes it (section 1.7)."""
    return target_keys(FAMILY, model) | {
        f"{FAMILY}.attention.sliding_window": Typed("u32", model.window),
        f"{FAMILY}.attention.sliding_window_pattern": Typed("array of bool", model.sliding),
        f"{FAMILY}.logit_scale": Typed("f32", model.output_multiplier),
        f"{FAMILY}.final_logit_softcapping": Typed("f32", model.softcap),
    }


def config(model: Model, stored: str) -> dict[str, Any]:
    """``config.json`` of the multimodal wrapper with the text model inside."""
    text = hf_config(model, stored)
    dtype = text.pop("dtype")
    text["hidden_activation"] = text.pop("hidden_act")
    text |= {
        "model_type": "muse_glimmer_text",
        "vocab_size": model.vocab,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.theta},
        "layer_types": [LAYER_TYPES[0] if s else LAYER_TYPES[1] for s in model.sliding],
        "layer_rope_theta": [model.theta if s else 0 for s in model.sliding],
        "sliding_window": model.window,
        "qk_scale_factor": QK_SCALE,
        "output_multiplier": model.output_multiplier,
        "final_logit_softcapping": model.softcap,
        "post_norm_eps": POST_NORM_EPS,
    }
    video, image = PLACEHOLDERS
    top = {"architectures": [ARCHITECTURE], "model_type": MODEL_TYPE, "dtype": dtype, "image_token_id": image, "video_token_id": video}
    return top | {"text_config": text}
