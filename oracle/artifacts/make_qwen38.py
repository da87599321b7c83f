"""Write seeded Qwen3.8-Flash-Next artifacts: the DeepSpec drafter and a target small enough to run, tables and experts included.

Sources: `specs/qwen38-flash-next.md` 1.10 (what a small configuration must have), 3.1 (the released drafter), 4.3 (keys).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from oracle import ngrams
from oracle.artifacts.descriptions import DTYPES
from oracle.artifacts.qwen38 import EPS, FAMILY, LAYERS
from oracle.artifacts.qwen38_roles import HEAD, target_roles
from oracle.artifacts.qwen38_target import ARCHITECTURE
from oracle.artifacts.roles import Role, drafter_roles
from oracle.artifacts.seeds import Recipe, plan
from oracle.artifacts.writers import PlannedTensor, Typed, write_folder, write_gguf
from oracle.drafters.dialect import Geometry
from oracle.recipes import Rope
from oracle.targets.qwen38_weights import Qwen38Geometry

SEED, NGRAM, DIVISOR, END = 1234, 3, 16, 1
CENTRED = ("hc_norm", "q_norm", "k_norm", "index_q_norm", "index_k_norm", "key_norm", "query_norm", "conv_norm")


@dataclass(frozen=True)
class Qwen38Model:
    """Everything that can vary; sizes without a prefix are the drafter's, and ``hidden`` and ``vocab`` the target's as well."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    mask_token_id: int
    tap_ids: tuple[int, ...]
    target_layers: int
    block_size: int = 7
    theta: float = 1e7
    context_length: int = 4096
    target_heads: int = 6
    target_kv_heads: int = 2
    target_head_dim: int = 16
    hc_rank: int = 16
    key_heads: int = 2
    value_heads: int = 6
    key_dim: int = 16
    value_dim: int = 16
    output_gate: str = "sigmoid"
    index_heads: int = 3
    index_dim: int = 12
    index_budget: int = 8
    index_ratio: int = 4
    experts: int = 8
    experts_per_token: int = 3
    target_intermediate: int = 32
    shared_intermediate: int = 48
    ple_layers: tuple[int, ...] = (1,)
    per_ngram: int = 2
    ngram_base: int = 50

    def geometry(self) -> Geometry:
        """The drafter's geometry that a loader must find in the file."""
        names = {f.name for f in fields(Geometry)} & {f.name for f in fields(self)}
        values: dict[str, Any] = {n: getattr(self, n) for n in names} | {"target_layers": None}
        return Geometry(**values, layers=LAYERS, target_hidden=self.hidden, sliding=(False,) * LAYERS)

    def target(self) -> Qwen38Geometry:
        """The target's geometry that a loader must find in the file; every fourth layer is sparse attention."""
        layers = range(self.target_layers)
        made = {n: ngrams.make(self.vocab, NGRAM, self.per_ngram, self.ngram_base, SEED, i, END) for i, n in enumerate(self.ple_layers)}
        own = {f.name for f in fields(Qwen38Geometry)} & {f.name for f in fields(self)}
        values: dict[str, Any] = {n: getattr(self, n) for n in own}
        outer = {n: getattr(self, f"target_{n}") for n in ("intermediate", "layers", "heads", "kv_heads", "head_dim")}
        return Qwen38Geometry(
            **(values | outer),
            family=FAMILY,
            eps=EPS,
            rope=Rope(self.theta, self.target_head_dim // 2),
            attn_scale=self.target_head_dim**-0.5,
            streams=4,
            sparse=tuple(n % 4 == 3 for n in layers),
            conv_taps=4,
            ngrams=tuple(made.get(n) for n in layers),
            ngram_rows=tuple(ngrams.table_rows(made[n], DIVISOR) if n in made else 0 for n in layers),
            ple_dim=self.hidden,
            ple_taps=4,
        )


MODELS = {
    "tiny": Qwen38Model(256, 512, 8, 2, 32, 500, 496, (0, 2, 3, 4, 6), 8),
    "small": Qwen38Model(512, 1536, 12, 4, 64, 4096, 4090, (1, 3, 5, 8, 10), 12, target_head_dim=32, index_dim=24, experts=16),
    "release": Qwen38Model(2560, 7680, 24, 2, 256, 248320, 248077, (3, 15, 23, 35, 43), 48, context_length=262144),
}


def changed(size: str, overrides: dict[str, Any]) -> Qwen38Model:
    """The model of ``size`` with fields of `Qwen38Model` overridden; ValueError names a field that does not exist."""
    known = [f.name for f in fields(Qwen38Model)]
    for name in overrides:
        if name not in known:
            raise ValueError(f"override {name!r}: expected one of {', '.join(known)}")
    return replace(MODELS[size], **overrides)


def write_qwen38_drafter(out: Path, model: Qwen38Model, recipe: Recipe, kind: str) -> Path:
    """Write ``draft.gguf`` (raw tap ids, as the engine's own tool does) or ``drafter/``; returns it."""
    g = model.geometry()
    if kind == "gguf":
        write_gguf(out / "draft.gguf", _keys(model), plan(recipe, drafter_roles(g, "gguf")))
        return out / "draft.gguf"
    write_folder(out / "drafter", _draft_config(model, recipe.weights), plan(recipe, drafter_roles(g, "hf")))
    return out / "drafter"


def write_qwen38_target(out: Path, model: Qwen38Model, recipe: Recipe) -> Path:
    """Write ``target/`` under the published names; returns it."""
    roles = target_roles(model.target())
    planned = plan(recipe, roles, added=dict.fromkeys(CENTRED, -1.0))
    tensors = [_published(p, role) for p, role in zip(planned, roles.values(), strict=True)]
    write_folder(out / "target", _target_config(model, recipe.weights), tensors)
    return out / "target"


def _published(planned: PlannedTensor, role: Role) -> PlannedTensor:
    """Name and shape in a text-only checkpoint: a convolution has a middle axis of one, experts stay apart."""
    shape = planned.shape
    if role.name.endswith("conv1d.weight"):
        shape = (shape[0], 1, shape[1])
    elif role.axes[0] == "expert" and len(role.shape) == 3:
        shape = role.shape
    return replace(planned, name=role.name if role.name == HEAD else f"model.{role.name}", shape=shape)


def _keys(model: Qwen38Model) -> dict[str, Typed]:
    sizes = {
        "embedding_length": model.hidden,
        "block_count": LAYERS,
        "attention.head_count": model.heads,
        "attention.head_count_kv": model.kv_heads,
        "attention.key_length": model.head_dim,
        "feed_forward_length": model.intermediate,
        "vocab_size": model.vocab,
        "block_size": model.block_size,
        "mask_token_id": model.mask_token_id,
        "context_length": model.context_length,
        "markov_rank": 0,
    }
    flags = {"sample_from_anchor": "true", "attention.causal": "false", "has_confidence_head": "false"}
    keys = {"general.architecture": Typed("string", "dflash"), "general.name": Typed("string", f"seeded {FAMILY} drafter")}
    keys |= {f"dflash.{k}": Typed("u32", v) for k, v in sizes.items()} | {f"dflash.{k}": Typed("string", v) for k, v in flags.items()}
    keys["dflash.target_layers"] = Typed("array of u32", list(model.tap_ids))
    return keys | {"dflash.rope.frequency_base": Typed("f64", model.theta)}


def _draft_config(model: Qwen38Model, stored: str) -> dict[str, Any]:
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": model.hidden,
        "intermediate_size": model.intermediate,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": EPS,
        "rope_theta": model.theta,
        "vocab_size": model.vocab,
        "max_position_embeddings": model.context_length,
        "attention_bias": False,
        "dtype": DTYPES[stored],
        "block_size": model.block_size,
        "markov_rank": 0,
        "enable_confidence_head": False,
        "dflash_config": {
            "mask_token_id": model.mask_token_id,
            "target_layer_ids": list(model.tap_ids),
            "query_zero_predicts_next": True,
        },
    }


def _target_config(model: Qwen38Model, stored: str) -> dict[str, Any]:
    g = model.target()
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen4_exp_text",
        "vocab_size": g.vocab,
        "hidden_size": g.hidden,
        "num_hidden_layers": g.layers,
        "num_attention_heads": g.heads,
        "num_key_value_heads": g.kv_heads,
        "head_dim": g.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": g.eps,
        "max_position_embeddings": model.context_length,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": g.rope.theta, "partial_rotary_factor": 0.5},
        "linear_num_key_heads": g.key_heads,
        "linear_num_value_heads": g.value_heads,
        "linear_key_head_dim": g.key_dim,
        "linear_value_head_dim": g.value_dim,
        "linear_conv_kernel_dim": g.conv_taps,
        "output_gate_type": g.output_gate,
        "indexer_n_heads": g.index_heads,
        "indexer_kv_heads": 1,
        "indexer_head_dim": g.index_dim,
        "indexer_budget": g.index_budget,
        "indexer_compress_ratio": g.index_ratio,
        "full_attention_interval": 4,
        "num_experts": g.experts,
        "num_experts_per_tok": g.experts_per_token,
        "moe_intermediate_size": g.intermediate,
        "shared_expert_intermediate_size": g.shared_intermediate,
        "norm_topk_prob": True,
        "hc_count": g.streams,
        "hc_lowrank": g.hc_rank,
        "ple_layer_ids": [n + 1 for n in model.ple_layers],
        "ple_embed_dim": g.ple_dim,
        "ple_conv_kernel_size": g.ple_taps,
        "ngram_size": NGRAM,
        "heads_per_ngram": model.per_ngram,
        "ngram_vocab_size_base": model.ngram_base,
        "make_ngram_vocab_size_divisible_by": DIVISOR,
        "seed": SEED,
        "split_ngram_parts": 1,
        "bos_token_id": 0,
        "eos_token_id": END,
        "dtype": DTYPES[stored],
    }
