"""Seeded Laguna models: the drafter's and the target's folders, with the keys their published configurations have.

Source: `specs/laguna.md` 1.1, 1.2, 3.1 and 3.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from oracle.artifacts import laguna, laguna_target
from oracle.artifacts.blocks import PLAIN
from oracle.artifacts.descriptions import hf_config
from oracle.artifacts.ropes import yarn_factors
from oracle.artifacts.seeds import Recipe, plan
from oracle.artifacts.writers import write_folder
from oracle.drafters.dialect import Geometry
from oracle.recipes import Rope
from oracle.targets.laguna import LagunaGeometry

# The rope of the released XS-2.1 model's full layers, on half the head; sliding layers have a plain one.
YARN: dict[str, Any] = {"rope_type": "yarn", "rope_theta": 500000.0, "factor": 32.0, "original_max_position_embeddings": 8192}
YARN |= {"beta_fast": 64.0, "beta_slow": 1.0, "attention_factor": 1.3465735902799727, "partial_rotary_factor": 0.5}
NEAR: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}
ROUTED_SCALE = 2.5


@dataclass(frozen=True)
class Model:
    """Everything that a seeded Laguna can vary; its fields are the names of the overrides.

    ``naming``: ``published``, ``split`` (a drafter's q, k and v apart) or ``packed`` (a target's experts in one tensor each).
    """

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    window: int
    block_size: int = 16
    mask_token_id: int = 12
    tap_ids: tuple[int, ...] = ()
    target_layers: int = 0
    experts: int = 0
    experts_per_token: int = 0
    moe_intermediate: int = 0
    context_length: int = 262144
    eps: float = 1e-6
    theta: float = 500000.0
    naming: str = "published"

    @property
    def sliding(self) -> tuple[bool, ...]:
        """Which layers of a target slide: all but every fourth, counted from the first."""
        return tuple(i % 4 != 0 for i in range(self.layers))

    def geometry(self) -> Geometry:
        """The drafter geometry that the loader must find."""
        names = {f.name for f in fields(Geometry)} & {f.name for f in fields(self)}
        values: dict[str, Any] = {n: getattr(self, n) for n in names}
        return Geometry(**values, target_hidden=self.hidden, sliding=(True,) * self.layers, window_source="file")


_TINY: dict[str, Any] = {"hidden": 256, "intermediate": 512, "heads": 8, "kv_heads": 2, "head_dim": 32, "vocab": 500, "window": 24}
_SMALL: dict[str, Any] = {"hidden": 512, "intermediate": 1536, "heads": 12, "kv_heads": 4, "head_dim": 64, "vocab": 4096, "window": 64}
_XS: dict[str, Any] = {"hidden": 2048, "intermediate": 8192, "kv_heads": 8, "head_dim": 128, "vocab": 100352, "window": 512}
_DRAFTER: dict[str, Any] = {"layers": 3, "tap_ids": (1, 3, 5), "target_layers": 6}
DRAFTERS = {
    "tiny": Model(**_TINY, **_DRAFTER, block_size=8, mask_token_id=496),
    "small": Model(**_SMALL, **_DRAFTER, mask_token_id=4090),
    "release": Model(**_XS, layers=5, heads=64, tap_ids=(1, 13, 25, 33, 39), target_layers=40),
}
TARGETS = {
    "tiny": Model(**_TINY, layers=6, experts=8, experts_per_token=2, moe_intermediate=64),
    "small": Model(**_SMALL, layers=6, experts=16, experts_per_token=4, moe_intermediate=128),
    "release": Model(**_XS, layers=40, heads=48, experts=256, experts_per_token=8, moe_intermediate=512),
}


def make(out: Path, size: str, weights: str, seed: int, container: str | None, role: str | None, changes: dict[str, Any]) -> Iterator[Path]:
    """Write the drafter and a target that it fits, or the target alone; at release size one of the two only. Yields what was written.

    ValueError for an override that does not exist, and for what only a GGUF file holds.
    """
    known = [f.name for f in fields(Model)]
    for name in changes:
        if name not in known:
            raise ValueError(f"override {name!r}: expected one of {', '.join(known)}")
    if container == "gguf" or weights not in PLAIN:
        raise ValueError(f"family laguna is written as SafeTensors folders with weights {', '.join(PLAIN)}; found {container or weights!r}")
    model = replace((TARGETS if role == "target" else DRAFTERS)[size], **changes)
    recipe = Recipe(seed, weights, weights, size == "release", model.vocab // 3)
    if role == "target":
        yield write_target(out, model, recipe)
        return
    yield write_drafter(out, model, recipe)
    if size != "release":
        same: dict[str, Any] = {"hidden": model.hidden, "vocab": model.vocab, "layers": model.target_layers}
        yield write_target(out, replace(TARGETS[size], **same), recipe)


def target_geometry(model: Model) -> LagunaGeometry:
    """The geometry that the loader must find: more query heads on sliding layers than on full ones, a dense first layer."""
    width = int(model.head_dim * YARN["partial_rotary_factor"])
    factors = yarn_factors(YARN["rope_theta"], width, YARN["factor"], YARN["original_max_position_embeddings"], 64.0, 1.0)
    sizes = {n: getattr(model, n) for n in ("hidden", "intermediate", "layers", "heads", "kv_heads", "head_dim", "vocab", "eps")}
    return LagunaGeometry(
        laguna.FAMILY,
        **sizes,
        rope=Rope(YARN["rope_theta"], width, "neox", factors, YARN["attention_factor"]),
        attn_scale=model.head_dim**-0.5,
        context_length=model.context_length,
        layer_heads=tuple(model.heads + (model.kv_heads if s else 0) for s in model.sliding),
        sliding=model.sliding,
        sparse=tuple(n > 0 for n in range(model.layers)),
        window=model.window,
        sliding_rope=Rope(NEAR["rope_theta"], model.head_dim),
        experts=model.experts,
        experts_per_token=model.experts_per_token,
        moe_intermediate=model.moe_intermediate,
        shared_intermediate=model.moe_intermediate,
        routed_scale=ROUTED_SCALE,
    )


def _config(model: Model, stored: str) -> dict[str, Any]:
    """The keys that every family's config has; they read sizes by the names that all models share."""
    sized: Any = model
    return hf_config(sized, stored)


def write_target(out: Path, model: Model, recipe: Recipe) -> Path:
    """``target/`` in ``out``; ``naming`` packed: experts in one tensor, as Transformers keeps them."""
    g = target_geometry(model)
    config = _config(model, recipe.weights) | {
        "architectures": [laguna_target.ARCHITECTURE],
        "model_type": laguna.FAMILY,
        "vocab_size": model.vocab,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "gating": "per-head",
        "num_attention_heads_per_layer": list(g.layer_heads),
        "layer_types": [laguna_target.LAYER_TYPES[s] for s in g.sliding],
        "mlp_layer_types": ["sparse" if s else "dense" for s in g.sparse],
        "sliding_window": model.window,
        "rope_parameters": {"full_attention": YARN, "sliding_attention": NEAR},
        "num_experts": model.experts,
        "num_experts_per_tok": model.experts_per_token,
        "moe_intermediate_size": model.moe_intermediate,
        "shared_expert_intermediate_size": model.moe_intermediate,
        "moe_routed_scaling_factor": ROUTED_SCALE,
        "moe_router_logit_softcapping": 0.0,
        "moe_apply_router_weight_on_input": False,
    }
    packed = model.naming == "packed"
    write_folder(out / "target", config, plan(recipe, laguna_target.roles(g, packed, packed)))
    return out / "target"


def write_drafter(out: Path, model: Model, recipe: Recipe) -> Path:
    """``drafter/`` in ``out``; ``naming`` split: q, k and v apart."""
    config = _config(model, recipe.weights) | {
        "architectures": [laguna.MARKER],
        "model_type": laguna.FAMILY,
        "vocab_size": model.vocab,
        "draft_vocab_size": model.vocab,
        "rope_theta": model.theta,
        "sliding_window": model.window,
        "layer_types": ["sliding_attention"] * model.layers,
        "gating": "per-head",
        "attention_bias": False,
        "num_experts": 0,
        "dflash_config": {
            "block_size": model.block_size,
            "mask_token_id": model.mask_token_id,
            "num_target_layers": model.target_layers,
            "target_layer_ids": list(model.tap_ids),
            "causal": True,
        },
    }
    write_folder(out / "drafter", config, plan(recipe, laguna.roles(model.geometry(), fused=model.naming != "split")))
    return out / "drafter"
