"""From tensor names to roles: the exact set of names a family has, their shapes and axes.

Source: `specs/dflash-generic.md` section 18, `specs/muse-glimmer.md` section 4.1. Shapes are in NumPy order, output
axes first; the weights' axes are those of `oracle.drafters.weights`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.artifacts import blocks
from oracle.artifacts.container import ArtifactError, Container, StoredTensor, fail, name_list, show
from oracle.drafters.dialect import Geometry
from oracle.drafters.weights import DrafterWeights, LayerWeights, MarkovWeights, SelectorWeights
from oracle.targets.weights import TargetGeometry, TargetWeights
from oracle.tensor import Axes
from oracle.weights import Weight

MATRICES = ("q", "k", "v", "o", "gate", "up", "down")
NORMS = ("input_norm", "post_norm", "q_norm", "k_norm")
BIASES = ("q_bias", "k_bias", "v_bias", "o_bias")

HF_LAYER = {
    "input_norm": "input_layernorm.weight",
    "post_norm": "post_attention_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "o_bias": "self_attn.o_proj.bias",
    "sinks": "self_attn.sinks",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
}
GGUF_LAYER = {
    "input_norm": "attn_norm.weight",
    "post_norm": "ffn_norm.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "o": "attn_output.weight",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    "q_bias": "attn_q.bias",
    "k_bias": "attn_k.bias",
    "v_bias": "attn_v.bias",
    "o_bias": "attn_output.bias",
    "sinks": "attn_sinks.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
}
GGUF_DRAFTER = {"fc": "fc.weight", "hidden_norm": "enc.output_norm.weight", "norm": "output_norm.weight"}
HF_DRAFTER = {"fc": "fc.weight", "hidden_norm": "hidden_norm.weight", "norm": "norm.weight"}
MUSE_DRAFTER = {"fc": "encoder.fc.weight", "hidden_norm": "encoder.output_norm_enc.weight", "norm": "norm.weight"}
GGUF_TARGET = {"embedding": "token_embd.weight", "norm": "output_norm.weight", "head": "output.weight"}
HF_TARGET = {"embedding": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight"}


@dataclass(frozen=True)
class Role:
    """One tensor a family has: its ``name`` in the file, its logical ``shape`` and ``axes``, and its shape ``stored`` if it is neither
    a matrix [out, in] nor a vector."""

    name: str
    shape: tuple[int, ...]
    axes: Axes
    stored: tuple[int, ...] | None = None

    @property
    def flat(self) -> tuple[int, ...]:
        """The shape in the file: output axes merged, so a bias [head, dim] is a vector."""
        if self.stored is not None:
            return self.stored
        return (math.prod(self.shape[:-1]), self.shape[-1]) if self.axes[-1] == "in" else (math.prod(self.shape),)


def layer_roles(g: Geometry | TargetGeometry, names: dict[str, str], prefix: str, parts: Iterable[str]) -> dict[str, Role]:
    """The roles ``parts`` of one layer, named ``prefix`` + ``names[part]``."""
    h, i, d = g.hidden, g.intermediate, g.head_dim
    heads, kv = (g.heads, d), (g.kv_heads, d)
    shapes: dict[str, tuple[tuple[int, ...], Axes]] = {
        "q": ((*heads, h), ("head", "dim", "in")),
        "k": ((*kv, h), ("head", "dim", "in")),
        "v": ((*kv, h), ("head", "dim", "in")),
        "o": ((h, g.heads * d), ("dim", "in")),
        "gate": ((i, h), ("dim", "in")),
        "up": ((i, h), ("dim", "in")),
        "down": ((h, i), ("dim", "in")),
        "input_norm": ((h,), ("dim",)),
        "post_norm": ((h,), ("dim",)),
        "q_norm": ((d,), ("dim",)),
        "k_norm": ((d,), ("dim",)),
        "q_bias": (heads, ("head", "dim")),
        "k_bias": (kv, ("head", "dim")),
        "v_bias": (kv, ("head", "dim")),
        "o_bias": ((h,), ("dim",)),
        "sinks": ((g.heads,), ("head",)),
    }
    return {part: Role(prefix + names[part], *shapes[part]) for part in parts}


def drafter_roles(g: Geometry, style: str, biases: bool = False, head: dict[str, str] | None = None) -> dict[str, Role]:
    """Every tensor of a drafter, by key (``fc``, ``norm``, ``3.q`` ...). ``style``: ``gguf`` or ``hf``; ``head``: its outer names."""
    outer = head or (GGUF_DRAFTER if style == "gguf" else HF_DRAFTER)
    roles = {
        "fc": Role(outer["fc"], (g.hidden, len(g.tap_ids) * g.target_hidden), ("dim", "in")),
        "hidden_norm": Role(outer["hidden_norm"], (g.hidden,), ("dim",)),
        "norm": Role(outer["norm"], (g.hidden,), ("dim",)),
    }
    names, stem = (GGUF_LAYER, "blk") if style == "gguf" else (HF_LAYER, "layers")
    for layer in range(g.layers):
        parts = (*MATRICES, *NORMS, *(BIASES if biases else ()))
        roles |= {f"{layer}.{part}": r for part, r in layer_roles(g, names, f"{stem}.{layer}.", parts).items()}
    return roles


def target_roles(g: TargetGeometry, style: str) -> dict[str, Role]:
    """Every tensor of a Llama-style target, by key; no ``head`` when the embedding is tied."""
    outer = GGUF_TARGET if style == "gguf" else HF_TARGET
    roles = {
        "embedding": Role(outer["embedding"], (g.vocab, g.hidden), ("vocab", "in")),
        "norm": Role(outer["norm"], (g.hidden,), ("dim",)),
    }
    if not g.tied_embedding:
        roles["head"] = Role(outer["head"], (g.vocab, g.hidden), ("vocab", "in"))
    names, stem = (GGUF_LAYER, "blk") if style == "gguf" else (HF_LAYER, "model.layers")
    for layer in range(g.layers):
        parts = (*MATRICES, "input_norm", "post_norm")
        roles |= {f"{layer}.{part}": r for part, r in layer_roles(g, names, f"{stem}.{layer}.", parts).items()}
    return roles


def rename(container: Container, prefix: str) -> dict[str, StoredTensor]:
    """The tensors of ``container`` with an optional ``prefix`` stripped: all carry it or none does."""
    having = [n for n in container.tensors if n.startswith(prefix)]
    if having and len(having) != len(container.tensors):
        rest = name_list(container.tensors.keys() - set(having))
        fail(container.path, f"{len(having)} tensors carry the prefix {prefix!r} and others do not ({rest}); expected one naming style")
    return {n.removeprefix(prefix): t for n, t in container.tensors.items()}


def take(container: Container, tensors: dict[str, StoredTensor], roles: dict[str, Role]) -> dict[str, Weight]:
    """A weight for every role; the tensors must be exactly those of ``roles``."""
    wanted = {r.name for r in roles.values()}
    if wanted - tensors.keys():
        extra = tensors.keys() - wanted
        fail(
            container.path,
            f"missing tensors: {name_list(wanted - tensors.keys())}" + (f"; unknown ones are present: {name_list(extra)}" if extra else ""),
        )
    if tensors.keys() - wanted:
        fail(
            container.path,
            f"tensors that this family does not know: {name_list(tensors.keys() - wanted)}; "
            "dropping one would make another model, choose the right --family",
        )
    return {key: weight(tensors[role.name], role) for key, role in roles.items()}


def weight(tensor: StoredTensor, role: Role) -> Weight:
    """``tensor`` as the `Weight` that ``role`` describes; `ArtifactError` on another shape or an undecodable format."""
    what = f"tensor {show(tensor.name)}"
    if tensor.shape != role.flat:
        fail(tensor.path, f"{what} has the shape {list(tensor.shape)}; the configuration asks for {list(role.flat)}")
    if not blocks.readable(tensor.stored):
        fail(tensor.path, f"{what} is stored as {tensor.stored}; expected one of {', '.join(blocks.DECODABLE)}, convert it")
    raw = tensor.raw
    rows = math.prod(role.shape[:-1])
    if len(role.shape) > 1 and raw.shape[0] != rows and raw.size % rows == 0:
        # A bias [head, dim] is one row in the file and one row per head here.
        raw = raw.reshape(rows, -1)
    try:
        return Weight(raw, role.axes, role.shape, tensor.stored, f"{tensor.path.name}:{tensor.name}")
    except ValueError as error:
        raise ArtifactError(f"{tensor.path}: {what}: {error}") from None


def layer_weights(weights: dict[str, Weight], layer: int) -> LayerWeights:
    """The parts of ``layer`` out of ``weights`` keyed ``3.q``."""
    prefix = f"{layer}."
    parts: dict[str, Any] = {k.removeprefix(prefix): w for k, w in weights.items() if k.startswith(prefix)}
    return LayerWeights(**parts)


def drafter_weights(weights: dict[str, Weight], layers: int, target_ids: NDArray[np.int64] | None = None) -> DrafterWeights:
    """`DrafterWeights` out of weights keyed as `drafter_roles` keys them."""

    def part(make: type, name: str) -> Any:
        found = {k.removeprefix(name): w for k, w in weights.items() if k.startswith(name)}
        return make(**found) if found else None

    return DrafterWeights(
        weights["fc"],
        weights["hidden_norm"],
        tuple(layer_weights(weights, n) for n in range(layers)),
        weights["norm"],
        weights.get("tap_norm"),
        selector=part(SelectorWeights, "selector."),
        markov=part(MarkovWeights, "markov."),
        confidence=weights.get("confidence"),
        confidence_bias=weights.get("confidence_bias"),
        head=weights.get("head"),
        target_ids=target_ids,
    )


@dataclass(frozen=True, eq=False)
class TargetParts:
    """A target as a family's reader found it: sizes and parameters, mapped weights, the formats in use, what to warn about."""

    geometry: TargetGeometry
    weights: TargetWeights
    formats: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def formats_of(weights: Iterable[Weight]) -> tuple[str, ...]:
    """The weight formats in use, sorted."""
    return tuple(sorted({w.stored for w in weights}))
