"""Seeded Laguna models: the drafter's and the target's folders, with the keys their published configurations have.

Source: `specs/laguna.md` 1.1, 1.2, 3.1 and 3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from oracle.artifacts import laguna, laguna_draft_gguf, laguna_target
from oracle.artifacts.blocks import PLAIN
from oracle.artifacts.descriptions import DTYPES, vocabulary
from oracle.artifacts.ropes import stretched
from oracle.artifacts.seeds import Recipe, plan
from oracle.artifacts.writers import Typed, write_folder, write_gguf
from oracle.drafters.dialect import Geometry
from oracle.recipes import Rope, Yarn
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
    gguf = container == "gguf" or weights not in PLAIN
    if gguf and size == "release" and role == "target":
        raise ValueError("a Laguna target of release size is written as a SafeTensors folder")
    model = replace((TARGETS if role == "target" else DRAFTERS)[size], **changes)
    recipe = Recipe(seed, weights, "f32" if gguf else weights, size == "release", model.vocab // 3)
    if role == "target":
        yield _either(write_target, out / "target.gguf", model, recipe) if gguf else write_target(out, model, recipe)
        return
    if gguf and size == "release":
        g = model.geometry()
        write_gguf(out / "draft.gguf", draft_keys(g, model.eps, model.theta), plan(recipe, laguna_draft_gguf.roles(g)))
        yield out / "draft.gguf"
        return
    yield _either(write_drafter, out / "draft.gguf", model, recipe) if gguf else write_drafter(out, model, recipe)
    if size != "release":
        same: dict[str, Any] = {"hidden": model.hidden, "vocab": model.vocab, "layers": model.target_layers}
        plain = weights if weights in PLAIN else "bf16"
        yield write_target(out, replace(TARGETS[size], **same), replace(recipe, weights=plain, norms=plain))


def _either(write: Callable[[Path, Model, Recipe], Path], goal: Path, model: Model, recipe: Recipe) -> Path:
    """The GGUF of what ``write`` makes as a folder; quantised formats are encodings of f32."""
    from oracle.artifacts.make_gguf import write_as_gguf

    plain = recipe.weights if recipe.weights in PLAIN else "f32"
    goal.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=goal.parent) as place:
        return write_as_gguf(write(Path(place), model, replace(recipe, weights=plain, norms=plain)), goal, recipe)


def target_geometry(model: Model) -> LagunaGeometry:
    """The geometry that the loader must find: more query heads on sliding layers than on full ones, a dense first layer."""
    width = int(model.head_dim * YARN["partial_rotary_factor"])
    yarn = Yarn(YARN["factor"], YARN["original_max_position_embeddings"], YARN["beta_fast"], YARN["beta_slow"])
    sizes = {n: getattr(model, n) for n in ("hidden", "intermediate", "layers", "heads", "kv_heads", "head_dim", "vocab", "eps")}
    return LagunaGeometry(
        laguna.FAMILY,
        **sizes,
        rope=stretched(YARN["rope_theta"], width, yarn, YARN["attention_factor"]),
        yarn=yarn,
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


def _sizes(g: Geometry | LagunaGeometry, eps: float, stored: str) -> dict[str, Any]:
    """The keys that every config has."""
    return {
        "hidden_size": g.hidden,
        "intermediate_size": g.intermediate,
        "num_hidden_layers": g.layers,
        "num_attention_heads": g.heads,
        "num_key_value_heads": g.kv_heads,
        "head_dim": g.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": eps,
        "max_position_embeddings": g.context_length,
        "dtype": DTYPES[stored],
        "bos_token_id": 0,
        "eos_token_id": 1,
        "model_type": laguna.FAMILY,
        "vocab_size": g.vocab,
        "attention_bias": False,
    }


def _rope(rope: Rope, head_dim: int, yarn: Yarn | None = None) -> dict[str, Any]:
    table: dict[str, Any] = {"rope_type": "default", "rope_theta": rope.theta, "partial_rotary_factor": rope.dim / head_dim}
    if yarn is not None:
        table |= {"rope_type": "yarn", "factor": yarn.factor, "original_max_position_embeddings": yarn.original}
        table |= {"beta_fast": yarn.fast, "beta_slow": yarn.slow, "attention_factor": rope.attention_factor}
    return table


def target_config(g: LagunaGeometry, stored: str, gating: str = "per-head") -> dict[str, Any]:
    """``config.json`` of a target whose matrices are ``stored``."""
    config = _sizes(g, g.eps, stored) | {
        "architectures": [laguna_target.ARCHITECTURE],
        "tie_word_embeddings": g.tied_embedding,
        "gating": gating,
        "num_attention_heads_per_layer": list(g.layer_heads),
        "layer_types": [laguna_target.LAYER_TYPES[s] for s in g.sliding],
        "mlp_layer_types": ["sparse" if s else "dense" for s in g.sparse],
        "rope_parameters": {"full_attention": _rope(g.rope, g.head_dim, g.yarn)},
        "num_experts": g.experts,
        "moe_routed_scaling_factor": g.routed_scale,
        "moe_router_logit_softcapping": g.router_cap or 0.0,
        "moe_apply_router_weight_on_input": False,
    }
    if g.window is not None:
        config["sliding_window"] = g.window
        config["rope_parameters"]["sliding_attention"] = _rope(g.sliding_rope, g.head_dim)
    if any(g.sparse):
        config |= {"num_experts_per_tok": g.experts_per_token, "moe_intermediate_size": g.moe_intermediate}
        config["shared_expert_intermediate_size"] = g.shared_intermediate
    return config


def write_target(out: Path, model: Model, recipe: Recipe) -> Path:
    """``target/`` in ``out``; ``naming`` packed: experts in one tensor, as Transformers keeps them."""
    g, packed = target_geometry(model), model.naming == "packed"
    write_folder(out / "target", target_config(g, recipe.weights), plan(recipe, laguna_target.roles(g, packed, packed)))
    return out / "target"


def draft_config(g: Geometry, eps: float, theta: float, stored: str) -> dict[str, Any]:
    """``config.json`` of a drafter whose matrices are ``stored``."""
    inner: dict[str, Any] = {"block_size": g.block_size, "mask_token_id": g.mask_token_id, "target_layer_ids": list(g.tap_ids)}
    if g.target_layers is not None:
        inner["num_target_layers"] = g.target_layers
    return _sizes(g, eps, stored) | {
        "architectures": [laguna.MARKER],
        "draft_vocab_size": g.vocab,
        "rope_theta": theta,
        "sliding_window": g.window,
        "layer_types": ["sliding_attention"] * g.layers,
        "gating": "per-head",
        "num_experts": 0,
        "dflash_config": inner | {"causal": True},
    }


def draft_keys(g: Geometry, eps: float, theta: float) -> dict[str, Typed]:
    """Keys of a drafter's GGUF: those of the generic drafter, causal, with the width of the taps (`laguna_draft_gguf`)."""
    sizes = {
        "block_count": g.layers,
        "context_length": g.context_length,
        "embedding_length": g.hidden,
        "feed_forward_length": g.intermediate,
        "attention.head_count": g.heads,
        "attention.head_count_kv": g.kv_heads,
        "attention.key_length": g.head_dim,
        "attention.value_length": g.head_dim,
        "attention.sliding_window": g.window,
        "block_size": g.block_size,
        "target_block_count": g.target_layers,
        "target_hidden_size": g.target_hidden,
    }
    made = {k: Typed("u32", v) for k, v in sizes.items() if v is not None}
    made |= {"attention.layer_norm_rms_epsilon": Typed("f32", eps), "rope.freq_base": Typed("f32", theta)}
    made |= {"attention.causal": Typed("bool", True), "attention.sliding_window_pattern": Typed("array of bool", g.sliding)}
    made["target_layers"] = Typed("array of i32", [t + 1 for t in g.tap_ids])
    keys = {"general.architecture": Typed("string", "dflash")} | {f"dflash.{k}": v for k, v in made.items()}
    return keys | vocabulary(g.vocab) | {"tokenizer.ggml.mask_token_id": Typed("u32", g.mask_token_id)}


def write_drafter(out: Path, model: Model, recipe: Recipe) -> Path:
    """``drafter/`` in ``out``; ``naming`` split: q, k and v apart."""
    g = model.geometry()
    config = draft_config(g, model.eps, model.theta, recipe.weights)
    write_folder(out / "drafter", config, plan(recipe, laguna.roles(g, fused=model.naming != "split")))
    return out / "drafter"
