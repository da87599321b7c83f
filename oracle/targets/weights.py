"""The parameters of a Llama-style target, by role."""

from __future__ import annotations

from dataclasses import dataclass

from oracle.drafters.weights import LayerWeights
from oracle.recipes import Rope
from oracle.weights import Weight


@dataclass(frozen=True)
class TargetGeometry:
    """The sizes of one target checkpoint and the parameters of its forward."""

    family: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    eps: float
    rope: Rope
    attn_scale: float
    context_length: int | None = None
    tied_embedding: bool = False


@dataclass(frozen=True, eq=False)
class TargetWeights:
    """``embedding [vocab, dim]`` (axes ``("vocab", "in")``), the layers, ``norm [dim]``, ``head [vocab, in]`` (the embedding when tied)."""

    embedding: Weight
    layers: tuple[LayerWeights, ...]
    norm: Weight
    head: Weight
