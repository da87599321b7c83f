"""The Laguna target: folders of ``LagunaForCausalLM``, experts one by one as published or packed as Transformers keeps them, and GGUF.

Source: `specs/laguna.md` 1.1 (configuration and what is refused), 1.2 (names), 1.4 (ropes).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from oracle.artifacts import laguna_gguf
from oracle.artifacts.container import Container, fail, show
from oracle.artifacts.fields import LARGEST_CONTEXT, LARGEST_DIM, LARGEST_HEADS, WINDOWS, Fields
from oracle.artifacts.roles import HF_LAYER, HF_TARGET, NORMS, Role, TargetParts, formats_of, layer_roles, take
from oracle.artifacts.ropes import THETA, stretched, yarn_attention_factor
from oracle.artifacts.sizes import context_length, finish_config, read_config_sizes
from oracle.recipes import Rope, Yarn
from oracle.targets.laguna import LagunaGeometry, LagunaLayer, LagunaWeights
from oracle.targets.moe import Mixture, parts
from oracle.weights import Weight

FAMILY = "laguna"
ARCHITECTURE = "LagunaForCausalLM"
LARGEST_EXPERTS = 4096
ATTENTION = ("q", "k", "v", "o")
MLP = ("gate", "up", "down")
LAYER_TYPES = ("full_attention", "sliding_attention")
# The published names, and those of Transformers' own memory, which some tools save.
PUBLISHED = {"bias": "mlp.experts.e_score_correction_bias", "shared": "mlp.shared_expert."}
IN_MEMORY = {"bias": "mlp.gate.e_score_correction_bias", "shared": "mlp.shared_experts."}
PACKED = {"expert_gate_up": "mlp.experts.gate_up_proj", "expert_down": "mlp.experts.down_proj"}


def read(container: Container) -> TargetParts:
    """The target in ``container``, checked and mapped; `ArtifactError` names what is wrong."""
    if container.kind == "gguf":
        geometry, warnings = laguna_gguf.read_target(container)
        wanted = laguna_gguf.target_roles(geometry, gates(container, geometry, "blk.{}.attn_gate.weight"))
    else:
        geometry, warnings = _from_config(container)
        wanted = roles(geometry, *_forms(container, geometry))
    found = take(container, dict(container.tensors), wanted)
    layers = tuple(_layer(geometry, found, n) for n in range(geometry.layers))
    weights = LagunaWeights(found["embedding"], layers, found["norm"], found.get("head", found["embedding"]))
    return TargetParts(geometry, weights, formats_of(found.values()), tuple(warnings))


def _from_config(container: Container) -> tuple[LagunaGeometry, list[str]]:
    config = Fields(container, container.metadata)
    config.must_be("model_type", FAMILY)
    _check_fixed(config)
    sizes = read_config_sizes(config, required=True)
    layers = sizes["layers"]
    sliding = _kinds(config, "layer_types", LAYER_TYPES, layers, (False,) * layers)
    sparse = _kinds(config, "mlp_layer_types", ("dense", "sparse"), layers, tuple(n > 0 for n in range(layers)))
    experts = (
        config.integer("num_experts", 1, LARGEST_EXPERTS) if any(sparse) else config.integer("num_experts", 0, LARGEST_EXPERTS, default=0)
    )
    used = any(sparse)
    cap = config.number("moe_router_logit_softcapping", 0.0, 1e6, default=0.0)
    full, near, yarn = _ropes(config, sizes["head_dim"], any(sliding))
    geometry = LagunaGeometry(
        FAMILY,
        **sizes,
        vocab=config.integer("vocab_size", 1, LARGEST_DIM),
        eps=config.number("rms_norm_eps", 1e-12, 1e-1, default=1e-6),
        rope=full,
        attn_scale=sizes["head_dim"] ** -0.5,
        context_length=context_length(config, "max_position_embeddings"),
        tied_embedding=config.flag("tie_word_embeddings", False),
        layer_heads=_layer_heads(config, sizes),
        sliding=sliding,
        sparse=sparse,
        window=config.integer("sliding_window", *WINDOWS) if any(sliding) else None,
        sliding_rope=near,
        experts=experts,
        experts_per_token=config.integer("num_experts_per_tok", 1, experts) if used else 0,
        moe_intermediate=config.integer("moe_intermediate_size", 1, LARGEST_DIM) if used else 0,
        shared_intermediate=config.integer("shared_expert_intermediate_size", 1, LARGEST_DIM) if used else 0,
        routed_scale=config.number("moe_routed_scaling_factor", 1e-6, 1e6, default=1.0),
        router_cap=cap or None,
        yarn=yarn,
    )
    config.ignore("sliding_window", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size")
    config.ignore("router_aux_loss_coef", "output_router_logits")
    return geometry, finish_config(config)


def _check_fixed(config: Fields) -> None:
    """Keys with one supported value (section 1.1)."""
    config.must_be("hidden_act", "silu")
    config.must_be("attention_bias", False)
    config.must_be("qkv_bias", False)
    config.must_be("moe_apply_router_weight_on_input", False)
    config.must_be("swa_attention_sink_enabled", False)
    config.must_be("moe_router_use_sigmoid", True)
    config.must_be("moe_router_score_func", "sigmoid")
    config.must_be("norm_topk_prob", True)
    config.must_be("decoder_sparse_step", 1)
    # Which of the two it is the gate's rows decide: true has meant both.
    config.must_be("gating", True, "per-head", "per-element")


def _kinds(config: Fields, key: str, choices: tuple[str, str], layers: int, default: tuple[bool, ...]) -> tuple[bool, ...]:
    """Per layer, whether it is of the second kind."""
    return tuple(w == choices[1] for w in config.words(key, choices, layers)) if config.has(key) else default


def _layer_heads(config: Fields, sizes: dict[str, int]) -> tuple[int, ...]:
    key, layers, kv = "num_attention_heads_per_layer", sizes["layers"], sizes["kv_heads"]
    config.ignore(key)
    if not config.has(key):
        return (sizes["heads"],) * layers
    listed = config.values[key]
    whole = isinstance(listed, list) and len(listed) == layers and all(type(n) is int and 1 <= n <= LARGEST_HEADS for n in listed)
    if not whole or any(n % kv for n in listed):
        config.refuse(key, f"a list of {layers} whole numbers from 1 to {LARGEST_HEADS}, each a multiple of the {kv} kv heads")
    return tuple(listed)


def _ropes(config: Fields, head_dim: int, any_sliding: bool) -> tuple[Rope, Rope, Yarn | None]:
    """(full, sliding, what full is stretched by): parameters of a kind of layer win over what stands beside them (section 1.1, notes)."""
    table = config.child("rope_parameters")
    partial = config.number("partial_rotary_factor", 1e-3, 1.0, default=1.0)
    original = table.integer("original_max_position_embeddings", 1, LARGEST_CONTEXT, default=None)
    if not table.values:
        # The defaults of the published configuration class.
        return Rope(5e5, _width(config, head_dim, 0.5)), Rope(1e4, head_dim), None
    full = _rope(table.child("full_attention"), head_dim, partial, original) if table.has("full_attention") else None
    near = _rope(table.child("sliding_attention"), head_dim, partial, original) if table.has("sliding_attention") else None
    table.ignore("full_attention", "sliding_attention", "partial_rotary_factor")
    table.finish()
    if near is None and any_sliding:
        table.refuse("sliding_attention", "an object, because some layers slide")
    one = full or near
    if one is None:
        table.refuse("full_attention", "an object with rope_theta")
    assert one is not None
    (full_rope, yarn), (near_rope, _) = full or one, near or one
    return full_rope, near_rope, yarn


def _rope(table: Fields, head_dim: int, partial: float, original: int | None) -> tuple[Rope, Yarn | None]:
    theta = table.number("rope_theta", *THETA)
    width = _width(table, head_dim, table.number("partial_rotary_factor", 1e-3, 1.0, default=partial))
    kind = table.text("rope_type", table.text("type", "default"))
    if kind not in ("default", "yarn"):
        table.refuse("rope_type", "'default' or 'yarn'", "other scalings are not supported")
    if kind == "default":
        table.ignore("original_max_position_embeddings", "factor", "attention_factor", "beta_fast", "beta_slow")
        table.finish()
        return Rope(theta, width), None
    factor = table.number("factor", 1e-3, 1e6)
    known = {} if original is None else {"default": original}
    length = table.integer("original_max_position_embeddings", 1, LARGEST_CONTEXT, **known)
    yarn = Yarn(factor, length, table.number("beta_fast", 1e-3, 1e6, default=32.0), table.number("beta_slow", 1e-3, 1e6, default=1.0))
    attention = table.number("attention_factor", 1e-3, 1e3, default=yarn_attention_factor(factor))
    table.must_be("truncate", True)
    table.finish()
    return stretched(theta, width, yarn, attention), yarn


def _width(fields: Fields, head_dim: int, partial: float) -> int:
    width = int(head_dim * partial)
    if width < 2 or width % 2:
        fields.refuse("partial_rotary_factor", f"a share of the head width {head_dim} that is even and at least 2")
    return width


def _forms(container: Container, g: LagunaGeometry) -> tuple[bool, bool, tuple[bool, ...]]:
    """(experts packed, names of Transformers' memory, gate per element by layer), as the tensors' names and shapes show."""
    names = container.tensors
    packed = any(n.endswith(PACKED["expert_gate_up"]) for n in names)
    memory = any(IN_MEMORY["shared"] in n for n in names)
    return packed, memory, gates(container, g, "model.layers.{}.self_attn.g_proj.weight")


def gates(container: Container, g: LagunaGeometry, names: str) -> tuple[bool, ...]:
    """Per layer, whether its attention gate is per element, as the rows of the tensor ``names`` tell (section 1.1, notes)."""
    return tuple(_per_element(container, g, n, names.format(n)) for n in range(g.layers))


def _per_element(container: Container, g: LagunaGeometry, layer: int, name: str) -> bool:
    gate, heads = container.tensors.get(name), g.layer_heads[layer]
    rows = heads if gate is None or not gate.shape else gate.shape[0]
    if rows not in (heads, heads * g.head_dim):
        expected = f"{heads} rows (a gate per head) or {heads * g.head_dim} (per element)"
        fail(container.path, f"tensor {show(name)}: expected {expected}, found {rows}")
    return rows != heads


def roles(g: LagunaGeometry, packed: bool = False, memory: bool = False, per_element: tuple[bool, ...] = ()) -> dict[str, Role]:
    """Every tensor of the target by key (``embedding``, ``3.router``, ``3.expert_up.7`` …)."""
    made = {
        "embedding": Role(HF_TARGET["embedding"], (g.vocab, g.hidden), ("vocab", "in")),
        "norm": Role(HF_TARGET["norm"], (g.hidden,), ("dim",)),
    }
    if not g.tied_embedding:
        made["head"] = Role(HF_TARGET["head"], (g.vocab, g.hidden), ("vocab", "in"))
    for n in range(g.layers):
        prefix, heads = f"model.layers.{n}.", g.layer_heads[n]
        own = IN_MEMORY if memory else PUBLISHED
        mlp = {p: f"{own['shared']}{p}_proj.weight" for p in MLP} if g.sparse[n] else {}
        shaped = replace(g, heads=heads, intermediate=g.shared_intermediate if g.sparse[n] else g.intermediate)
        one = layer_roles(shaped, HF_LAYER | mlp, prefix, (*ATTENTION, *MLP, *NORMS))
        element = bool(per_element) and per_element[n]
        rows, axes = (heads * g.head_dim, ("dim", "in")) if element else (heads, ("head", "in"))
        one["attn_gate"] = Role(f"{prefix}self_attn.g_proj.weight", (rows, g.hidden), axes)
        if g.sparse[n]:
            one |= _expert_roles(g, prefix, packed, own["bias"])
        made |= {f"{n}.{part}": role for part, role in one.items()}
    return made


def _expert_roles(g: LagunaGeometry, prefix: str, packed: bool, bias: str) -> dict[str, Role]:
    wide, narrow = (g.moe_intermediate, g.hidden), (g.hidden, g.moe_intermediate)
    made = {
        "router": Role(f"{prefix}mlp.gate.weight", (g.experts, g.hidden), ("expert", "in")),
        "bias": Role(prefix + bias, (g.experts,), ("expert",)),
    }
    if packed:
        shapes = {"expert_gate_up": (g.experts, 2 * wide[0], wide[1]), "expert_down": (g.experts, *narrow)}
        return made | {part: Role(prefix + PACKED[part], s, ("expert", "dim", "in"), s) for part, s in shapes.items()}
    for e in range(g.experts):
        for part, shape in (("gate", wide), ("up", wide), ("down", narrow)):
            made[f"expert_{part}.{e}"] = Role(f"{prefix}mlp.experts.{e}.{part}_proj.weight", shape, ("dim", "in"))
    return made


def _layer(g: LagunaGeometry, found: dict[str, Weight], layer: int) -> LagunaLayer:
    own: dict[str, Any] = {k.removeprefix(f"{layer}."): w for k, w in found.items() if k.startswith(f"{layer}.")}
    if not g.sparse[layer]:
        return LagunaLayer(**own)
    dense = {k: w for k, w in own.items() if not k.startswith(("expert_", "router", "bias"))}
    if "expert_gate_up" in own:
        both, width = own["expert_gate_up"], g.moe_intermediate
        gate, up = parts(both, g.experts, 0, width), parts(both, g.experts, width, 2 * width)
        down = parts(own["expert_down"], g.experts)
    elif "expert_gate" in own:
        gate, up, down = (parts(own[f"expert_{p}"], g.experts) for p in MLP)
    else:
        gate, up, down = (tuple(own[f"expert_{p}.{e}"] for e in range(g.experts)) for p in MLP)
    return LagunaLayer(**dense, mixture=Mixture(own["router"], gate, up, down, own["bias"]))
