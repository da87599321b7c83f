"""The Laguna target in GGUF, architecture ``laguna``: keys and names as llama.cpp writes and reads them.

Source: `specs/laguna.md` 1.1 to 1.4. Nothing is permuted or shifted; the experts of a layer are one tensor per projection.
``router_logit_softcapping`` and ``tie_word_embeddings`` in a config have these places: a key that llama.cpp does not read for this
architecture, and a file without ``output.weight``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from oracle.artifacts.container import Container, fail
from oracle.artifacts.fields import LARGEST_CONTEXT, LARGEST_DIM, LARGEST_HEADS, LARGEST_LAYERS, Fields, shortest
from oracle.artifacts.roles import GGUF_LAYER, GGUF_TARGET, NORMS, Role, layer_roles
from oracle.artifacts.ropes import THETA, stretched, yarn_attention_factor
from oracle.artifacts.sizes import LARGEST_HEAD_DIM, context_length, finish_gguf, vocabulary_rows, warn
from oracle.artifacts.writers import Typed
from oracle.recipes import Rope, Yarn
from oracle.targets.laguna import LagunaGeometry

ARCH = "laguna"
LARGEST_EXPERTS = 4096
SIGMOID = 2
PERIOD = 4
# Two f32 roundings of the same factor: beyond this the keys contradict each other.
SAME = 1e-6
SHARED = {"gate": "ffn_gate_shexp.weight", "up": "ffn_up_shexp.weight", "down": "ffn_down_shexp.weight"}
EXPERTS = {"expert_gate": "ffn_gate_exps.weight", "expert_up": "ffn_up_exps.weight", "expert_down": "ffn_down_exps.weight"}


def target_roles(g: LagunaGeometry, per_element: tuple[bool, ...] = ()) -> dict[str, Role]:
    """Every tensor of the target by key (``embedding``, ``3.router``, ``3.expert_up`` …)."""
    made = {
        "embedding": Role(GGUF_TARGET["embedding"], (g.vocab, g.hidden), ("vocab", "in")),
        "norm": Role(GGUF_TARGET["norm"], (g.hidden,), ("dim",)),
    }
    if not g.tied_embedding:
        made["head"] = Role(GGUF_TARGET["head"], (g.vocab, g.hidden), ("vocab", "in"))
    for n in range(g.layers):
        prefix, heads = f"blk.{n}.", g.layer_heads[n]
        shaped = replace(g, heads=heads, intermediate=g.shared_intermediate if g.sparse[n] else g.intermediate)
        names = GGUF_LAYER | (SHARED if g.sparse[n] else {})
        one = layer_roles(shaped, names, prefix, ("q", "k", "v", "o", "gate", "up", "down", *NORMS))
        element = bool(per_element) and per_element[n]
        rows, axes = (heads * g.head_dim, ("dim", "in")) if element else (heads, ("head", "in"))
        one["attn_gate"] = Role(f"{prefix}attn_gate.weight", (rows, g.hidden), axes)
        made |= {f"{n}.{part}": role for part, role in (one | (_experts(g, prefix) if g.sparse[n] else {})).items()}
    return made


def _experts(g: LagunaGeometry, prefix: str) -> dict[str, Role]:
    wide, narrow = (g.experts, g.moe_intermediate, g.hidden), (g.experts, g.hidden, g.moe_intermediate)
    shapes = {"expert_gate": wide, "expert_up": wide, "expert_down": narrow}
    made = {
        "router": Role(f"{prefix}ffn_gate_inp.weight", (g.experts, g.hidden), ("expert", "in")),
        "bias": Role(f"{prefix}exp_probs_b.bias", (g.experts,), ("expert",)),
    }
    return made | {part: Role(prefix + EXPERTS[part], s, ("expert", "dim", "in"), s) for part, s in shapes.items()}


def read_target(container: Container) -> tuple[LagunaGeometry, list[str]]:
    """The geometry that the keys describe and what to warn about; `ArtifactError` names the key that is wrong."""
    keys = Fields(container, container.metadata)
    key = f"{ARCH}.".__add__
    keys.must_be("general.architecture", ARCH)
    layers = keys.integer(key("block_count"), 1, LARGEST_LAYERS)
    sizes = _sizes(keys, layers)
    sliding, window = _sliding(keys, layers)
    full, near, yarn, warnings = _ropes(container, keys, sizes["head_dim"], any(sliding))
    dense = keys.integer(key("leading_dense_block_count"), 0, layers)
    used = dense < layers
    experts = keys.integer(key("expert_count"), 1 if used else 0, LARGEST_EXPERTS, **({} if used else {"default": 0}))
    _fixed(keys)
    geometry = LagunaGeometry(
        ARCH,
        **sizes,
        vocab=vocabulary_rows(container, keys, ARCH, GGUF_TARGET["embedding"]),
        eps=keys.number(key("attention.layer_norm_rms_epsilon"), 1e-12, 1e-1),
        rope=full,
        attn_scale=sizes["head_dim"] ** -0.5,
        context_length=context_length(keys, key("context_length")),
        tied_embedding=GGUF_TARGET["head"] not in container.tensors,
        layer_heads=_layer_heads(keys, layers, sizes["kv_heads"]),
        sliding=sliding,
        sparse=tuple(n >= dense for n in range(layers)),
        window=window,
        sliding_rope=near,
        experts=experts,
        experts_per_token=keys.integer(key("expert_used_count"), 1, experts) if used else 0,
        moe_intermediate=keys.integer(key("expert_feed_forward_length"), 1, LARGEST_DIM) if used else 0,
        shared_intermediate=keys.integer(key("expert_shared_feed_forward_length"), 1, LARGEST_DIM) if used else 0,
        routed_scale=keys.number(key("expert_weights_scale"), 1e-6, 1e6, default=1.0),
        router_cap=keys.number(key("router_logit_softcapping"), 0.0, 1e6, default=0.0) or None,
        yarn=yarn,
    )
    for unused in ("expert_used_count", "expert_feed_forward_length", "expert_shared_feed_forward_length"):
        keys.ignore(key(unused))
    return geometry, warnings + finish_gguf(keys)


def _fixed(keys: Fields) -> None:
    """Keys with one supported value."""
    key = f"{ARCH}.".__add__
    if keys.integer(key("expert_gating_func"), 0, 16, default=SIGMOID) != SIGMOID:
        keys.refuse(key("expert_gating_func"), f"{SIGMOID} (sigmoid)")
    keys.must_be(key("expert_weights_norm"), True)
    keys.must_be(key("expert_shared_count"), 1)
    keys.must_be(key("attention.scale"), shortest(float(keys.values.get(key("attention.key_length"), 1)) ** -0.5))
    for absent in ("attn_logit_softcapping", "final_logit_softcapping", "expert_group_count"):
        keys.must_be(key(absent), 0, 0.0)


def _sizes(keys: Fields, layers: int) -> dict[str, int]:
    """Sizes by their `TargetGeometry` names; ``heads`` is the first layer's count, and shapes nothing."""
    key = f"{ARCH}.".__add__
    sizes: dict[str, int] = {
        "hidden": keys.integer(key("embedding_length"), 1, LARGEST_DIM),
        "intermediate": keys.integer(key("feed_forward_length"), 1, LARGEST_DIM),
        "layers": layers,
        "kv_heads": keys.integer(key("attention.head_count_kv"), 1, LARGEST_HEADS),
        "head_dim": keys.integer(key("attention.key_length"), 2, LARGEST_HEAD_DIM),
    }
    keys.must_be(key("attention.value_length"), sizes["head_dim"])
    if sizes["head_dim"] % 2:
        keys.refuse(key("attention.key_length"), "an even number")
    return sizes | {"heads": _layer_heads(keys, layers, sizes["kv_heads"])[0]}


def _layer_heads(keys: Fields, layers: int, kv: int) -> tuple[int, ...]:
    """Query heads per layer: an array, or one number for all."""
    name = f"{ARCH}.attention.head_count"
    one = keys.container.kinds.get(name) == "u32"
    found = (keys.integer(name, 1, LARGEST_HEADS),) * layers if one else keys.counts(name, 1, LARGEST_HEADS, layers)
    if any(n % kv for n in found):
        keys.refuse(name, f"a multiple of the {kv} kv heads in every layer")
    return found


def _sliding(keys: Fields, layers: int) -> tuple[tuple[bool, ...], int | None]:
    """Which layers slide and by what: no window, no sliding layer; an array, a period counted from a full first layer, or period 4."""
    name = f"{ARCH}.attention.sliding_window_pattern"
    window = keys.window(f"{ARCH}.attention.sliding_window")
    if window is None:
        keys.must_be(name, 0)
        return (False,) * layers, None
    if keys.has(name) and keys.container.kinds.get(name) != "u32":
        sliding = keys.flags(name, layers)
    else:
        period = keys.integer(name, 2, LARGEST_LAYERS, default=PERIOD)
        sliding = tuple(n % period != 0 for n in range(layers))
    return sliding, window if any(sliding) else None


def _ropes(container: Container, keys: Fields, head_dim: int, any_sliding: bool) -> tuple[Rope, Rope, Yarn | None, list[str]]:
    """(full, sliding, what full is stretched by, warnings)."""
    key = f"{ARCH}.rope.".__add__
    theta = keys.number(key("freq_base"), *THETA)
    width = _width(keys, key("dimension_count"), head_dim)
    near = Rope(1e4, head_dim)
    if any_sliding:
        near = Rope(keys.number(key("freq_base_swa"), *THETA, default=theta), _width(keys, key("dimension_count_swa"), head_dim))
    else:
        keys.ignore(key("freq_base_swa"), key("dimension_count_swa"))
    kind = keys.text(key("scaling.type"), "none")
    if kind not in ("none", "yarn"):
        keys.refuse(key("scaling.type"), "'none' or 'yarn'", "other scalings are not supported")
    if kind == "none":
        keys.must_be(key("scaling.factor"), 1.0)
        keys.must_be(key("scaling.attn_factor"), 1.0)
        return Rope(theta, width), near, None, []
    full, yarn, warnings = _yarn(container, keys, theta, width)
    return full, near, yarn, warnings


def _yarn(container: Container, keys: Fields, theta: float, width: int) -> tuple[Rope, Yarn, list[str]]:
    """The multiplier in force is what llama.cpp makes of the keys: its own ``0.1 ln(factor) + 1``, times ``scaling.attn_factor``.

    ``scaling.yarn_attn_factor``, which the converter copies from the config, is not used by it: where it says the same it gives the
    digits, where it does not that is said aloud (section 1.1, notes: the effective multiplier is what counts).
    """
    key = f"{ARCH}.rope.scaling.".__add__
    yarn = Yarn(
        keys.number(key("factor"), 1e-3, 1e6),
        keys.integer(key("original_context_length"), 1, LARGEST_CONTEXT),
        keys.number(key("yarn_beta_fast"), 1e-3, 1e6, default=32.0),
        keys.number(key("yarn_beta_slow"), 1e-3, 1e6, default=1.0),
    )
    keys.must_be(key("yarn_ext_factor"), 1.0)
    keys.must_be(key("yarn_log_multiplier"), 0.0)
    own = yarn_attention_factor(yarn.factor)
    force = own * keys.number(key("attn_factor"), 1e-3, 1e3, default=1.0)
    said = keys.number(key("yarn_attn_factor"), 1e-3, 1e3, default=force)
    warnings = []
    if abs(said - force) > SAME * force:
        text = f"key {key('yarn_attn_factor')} = {said:g} is not in force: llama.cpp multiplies by {force:.7g} (0.1 ln(factor) + 1)"
        warnings.append(warn(container, text))
    attention = force if force == own or warnings else said
    return stretched(theta, width, yarn, attention), yarn, warnings


def _width(keys: Fields, name: str, head_dim: int) -> int:
    width: int = keys.integer(name, 2, head_dim)
    return width if width % 2 == 0 else int(keys.refuse(name, "an even number"))


def target_keys(container: Container, g: LagunaGeometry) -> dict[str, Typed]:
    """The keys of ``g``; `ArtifactError` about ``container`` for what GGUF has no place for."""
    dense = sum(not s for s in g.sparse)
    if g.sparse != tuple(n >= dense for n in range(g.layers)):
        fail(container.path, "dense layers behind sparse ones have no place in GGUF, which counts leading dense layers")
    if g.sliding_rope.factors is not None:
        fail(container.path, "a stretched rope of sliding layers has no place in GGUF, where they have a plain one")
    sizes: dict[str, Any] = {
        "block_count": g.layers,
        "context_length": g.context_length,
        "embedding_length": g.hidden,
        "feed_forward_length": g.intermediate,
        "vocab_size": g.vocab,
        "attention.head_count_kv": g.kv_heads,
        "attention.key_length": g.head_dim,
        "attention.value_length": g.head_dim,
        "leading_dense_block_count": dense,
        "rope.dimension_count": g.rope.dim,
    }
    numbers = {"attention.layer_norm_rms_epsilon": g.eps, "rope.freq_base": g.rope.theta, "expert_weights_scale": g.routed_scale}
    made = {"attention.head_count": Typed("array of i32", list(g.layer_heads))}
    if g.window is not None:
        sizes |= {"attention.sliding_window": g.window, "rope.dimension_count_swa": g.sliding_rope.dim}
        numbers["rope.freq_base_swa"] = g.sliding_rope.theta
        made["attention.sliding_window_pattern"] = Typed("array of bool", g.sliding)
    if any(g.sparse):
        sizes |= {"expert_count": g.experts, "expert_used_count": g.experts_per_token, "expert_gating_func": SIGMOID}
        sizes |= {"expert_feed_forward_length": g.moe_intermediate, "expert_shared_feed_forward_length": g.shared_intermediate}
        made["expert_weights_norm"] = Typed("bool", True)
    if g.router_cap is not None:
        numbers["router_logit_softcapping"] = g.router_cap
    made |= _yarn_keys(g)
    made |= {k: Typed("u32", v) for k, v in sizes.items() if v is not None} | {k: Typed("f32", v) for k, v in numbers.items()}
    return {"general.architecture": Typed("string", ARCH)} | {f"{ARCH}.{k}": v for k, v in made.items()}


def _yarn_keys(g: LagunaGeometry) -> dict[str, Typed]:
    if g.yarn is None:
        return {}
    made = {"type": Typed("string", "yarn"), "original_context_length": Typed("u32", g.yarn.original)}
    numbers = {"factor": g.yarn.factor, "yarn_beta_fast": g.yarn.fast, "yarn_beta_slow": g.yarn.slow}
    numbers["yarn_attn_factor"] = g.rope.attention_factor
    own = yarn_attention_factor(g.yarn.factor)
    if np.float32(own) != np.float32(g.rope.attention_factor):
        numbers["attn_factor"] = g.rope.attention_factor / own
    return {f"rope.scaling.{k}": v for k, v in (made | {k: Typed("f32", v) for k, v in numbers.items()}).items()}
