"""Write seeded Qwen3.8-Flash-Next artifacts: the DeepSpec drafter and a target small enough to run, tables and experts included.

Sources: `specs/qwen38-flash-next.md` 1.10 (what a small configuration must have), 3.1 (the released drafter), 4.3 (keys).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from oracle import ngrams
from oracle.artifacts.blocks import PLAIN
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
        values: dict[str, Any] = {n: getattr(self, n) for n in names}
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
            ngram_origin=ngrams.Origin(self.ngram_base, SEED, DIVISOR) if self.ple_layers else None,
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
        write_gguf(out / "draft.gguf", draft_keys(g, EPS, model.theta), plan(recipe, drafter_roles(g, "gguf")))
        return out / "draft.gguf"
    write_folder(out / "drafter", draft_config(g, EPS, model.theta, recipe.weights), plan(recipe, drafter_roles(g, "hf")))
    return out / "drafter"


def write_qwen38_target_gguf(out: Path, model: Qwen38Model, recipe: Recipe) -> Path:
    """Write ``target.gguf`` in llama.cpp's layout; returns it. Quantised formats are encodings of f32."""
    from oracle.artifacts.make_gguf import write_as_gguf

    plain = recipe.weights if recipe.weights in PLAIN else "f32"
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out) as place:
        folder = write_qwen38_target(Path(place), model, replace(recipe, weights=plain, norms=plain))
        return write_as_gguf(folder, out / "target.gguf", replace(recipe, norms="f32"))


def write_qwen38_target(out: Path, model: Qwen38Model, recipe: Recipe) -> Path:
    """Write ``target/`` under the published names; returns it."""
    g = model.target()
    roles = target_roles(g)
    planned = plan(recipe, roles, added=dict.fromkeys(CENTRED, -1.0))
    tensors = [published(p, role) for p, role in zip(planned, roles.values(), strict=True)]
    write_folder(out / "target", target_config(g, recipe.weights), tensors)
    return out / "target"


def published(planned: PlannedTensor, role: Role) -> PlannedTensor:
    """Name and shape in a text-only checkpoint: a convolution has a middle axis of one, experts stay apart."""
    shape = planned.shape
    if role.name.endswith("conv1d.weight"):
        shape = (shape[0], 1, shape[1])
    elif role.axes[0] == "expert" and len(role.shape) == 3:
        shape = role.shape
    return replace(planned, name=role.name if role.name == HEAD else f"model.{role.name}", shape=shape)


def draft_keys(g: Geometry, eps: float, theta: float) -> dict[str, Typed]:
    """Keys of a drafter's GGUF as the engine's own tool writes them (section 4.3): raw tap ids, flags as text, theta in f64."""
    sizes = {
        "embedding_length": g.hidden,
        "block_count": g.layers,
        "attention.head_count": g.heads,
        "attention.head_count_kv": g.kv_heads,
        "attention.key_length": g.head_dim,
        "feed_forward_length": g.intermediate,
        "vocab_size": g.vocab,
        "block_size": g.block_size,
        "mask_token_id": g.mask_token_id,
        "context_length": g.context_length,
        "target_block_count": g.target_layers,
        "markov_rank": 0,
    }
    flags = {"sample_from_anchor": "true", "attention.causal": "false", "has_confidence_head": "false"}
    keys = {"general.architecture": Typed("string", "dflash"), "general.name": Typed("string", f"seeded {FAMILY} drafter")}
    keys |= {f"dflash.{k}": Typed("u32", v) for k, v in sizes.items() if v is not None}
    keys |= {f"dflash.{k}": Typed("string", v) for k, v in flags.items()}
    if eps != EPS:
        keys["dflash.attention.layer_norm_rms_epsilon"] = Typed("f32", eps)
    keys["dflash.target_layers"] = Typed("array of u32", list(g.tap_ids))
    return keys | {"dflash.rope.frequency_base": Typed("f64", theta)}


def draft_config(g: Geometry, eps: float, theta: float, stored: str) -> dict[str, Any]:
    """``config.json`` of a drafter (section 3.1)."""
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": g.hidden,
        "intermediate_size": g.intermediate,
        "num_hidden_layers": g.layers,
        "num_attention_heads": g.heads,
        "num_key_value_heads": g.kv_heads,
        "head_dim": g.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": eps,
        "rope_theta": theta,
        "vocab_size": g.vocab,
        "max_position_embeddings": g.context_length,
        "attention_bias": False,
        "dtype": DTYPES[stored],
        "block_size": g.block_size,
        "num_target_layers": g.target_layers,
        "markov_rank": 0,
        "enable_confidence_head": False,
        "dflash_config": {"mask_token_id": g.mask_token_id, "target_layer_ids": list(g.tap_ids), "query_zero_predicts_next": True},
    }
    return {k: v for k, v in config.items() if v is not None}


def target_config(g: Qwen38Geometry, stored: str) -> dict[str, Any]:
    """``config.json`` of a text-only target (section 1.1); ``stored``: the format of its matrices."""
    config = {
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
        "max_position_embeddings": g.context_length,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": g.rope.theta, "partial_rotary_factor": g.rope.dim / g.head_dim},
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
        "layer_types": ["full_attention" if s else "linear_attention" for s in g.sparse],
        "num_experts": g.experts,
        "num_experts_per_tok": g.experts_per_token,
        "moe_intermediate_size": g.intermediate,
        "shared_expert_intermediate_size": g.shared_intermediate,
        "norm_topk_prob": True,
        "hc_count": g.streams,
        "hc_lowrank": g.hc_rank,
        "bos_token_id": 0,
        "eos_token_id": END,
        "dtype": DTYPES[stored],
    }
    at = [n for n, recipe in enumerate(g.ngrams) if recipe is not None]
    config["ple_layer_ids"] = [n + 1 for n in at]
    if at:
        recipe, origin = g.ngrams[at[0]], g.ngram_origin
        assert recipe is not None and origin is not None
        config |= {"ple_embed_dim": g.ple_dim, "ple_conv_kernel_size": g.ple_taps, "ngram_size": recipe.size}
        config |= {"heads_per_ngram": recipe.per_size, "ngram_vocab_size_base": origin.base, "seed": origin.seed}
        config |= {"make_ngram_vocab_size_divisible_by": origin.divisor, "split_ngram_parts": 1, "eos_token_id": recipe.end}
    return config
