"""The sizes and parameters of a Qwen3.8-Flash-Next target, by role (`specs/qwen38-flash-next.md` 1.1 and 1.2)."""

from __future__ import annotations

from dataclasses import dataclass

from oracle.ngrams import NGrams, Origin, Table
from oracle.targets.moe import Mixture
from oracle.targets.weights import TargetGeometry, TargetWeights
from oracle.weights import Weight

OUTPUT_GATES = ("sigmoid", "silu")


@dataclass(frozen=True, kw_only=True)
class Qwen38Geometry(TargetGeometry):
    """The sizes of a checkpoint; ``heads``, ``kv_heads``, ``head_dim`` and ``rope`` are those of the sparse-attention layers.

    ``streams`` residual streams of width ``hidden``, gated through ``hc_rank``. ``sparse[l]``: layer l is sparse attention, else a
    gated delta net with ``key_heads`` and ``value_heads`` of ``key_dim`` and ``value_dim``, convolutions of ``conv_taps`` and an
    output gate (`OUTPUT_GATES`). The indexer has ``index_heads`` of ``index_dim`` (rotated by ``rope`` as well) and selects
    ``index_budget`` cells in blocks of ``index_ratio``. Each layer has ``experts`` of width ``intermediate``, of which
    ``experts_per_token`` are selected, and a shared one of width ``shared_intermediate``. ``ngrams[l]``: the hash of layer l's
    n-gram table of ``ngram_rows[l]`` rows, or None; its embedding is ``ple_dim`` wide, its convolution has ``ple_taps``, dilated by
    the n-gram's length. ``ngram_origin``: what the hashes were made of, or None where the file does not say.
    """

    streams: int
    hc_rank: int
    sparse: tuple[bool, ...]
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_taps: int
    output_gate: str
    index_heads: int
    index_dim: int
    index_budget: int
    index_ratio: int
    experts: int
    experts_per_token: int
    shared_intermediate: int
    ngrams: tuple[NGrams | None, ...]
    ngram_rows: tuple[int, ...]
    ple_dim: int
    ple_taps: int
    ngram_origin: Origin | None = None

    def ple_reach(self, ngrams: NGrams) -> int:
        """Earlier rows that the n-gram embedding's convolution reads."""
        return (self.ple_taps - 1) * ngrams.size


@dataclass(frozen=True, eq=False)
class HyperWeights:
    """One hyper-connection: ``norm [dim]`` (streams * hidden, stored as w of 1 + w), ``down [dim, in]`` to the rank, ``up [dim, in]``
    back, ``inject [stream, in]`` or None for the final read."""

    norm: Weight
    down: Weight
    up: Weight
    inject: Weight | None = None


@dataclass(frozen=True, eq=False)
class DeltaWeights:
    """A gated delta net: ``q, k [head, dim, in]`` over key heads, ``v, z`` over value heads; ``q_conv, k_conv, v_conv [head, dim, in]``
    (in = tap, the oldest first); ``beta, decay [head, in]``, ``a_log, dt_bias [head]``; ``norm [dim]``; ``o [dim, in]``."""

    q: Weight
    k: Weight
    v: Weight
    q_conv: Weight
    k_conv: Weight
    v_conv: Weight
    z: Weight
    beta: Weight
    decay: Weight
    a_log: Weight
    dt_bias: Weight
    norm: Weight
    o: Weight


@dataclass(frozen=True, eq=False)
class SparseWeights:
    """Sparse attention: ``q [head, dim, in]`` (query, then gate), ``k, v [head, dim, in]``, ``o [dim, in]``, ``q_norm, k_norm [dim]``;
    the indexer's ``index_q [head, dim, in]``, ``index_k`` (one head) and norms ``[dim]``. All norms are stored as w of 1 + w."""

    q: Weight
    k: Weight
    v: Weight
    o: Weight
    q_norm: Weight
    k_norm: Weight
    index_q: Weight
    index_k: Weight
    index_q_norm: Weight
    index_k_norm: Weight


@dataclass(frozen=True, eq=False)
class PleWeights:
    """A hashed n-gram embedding: ``table`` of n-gram rows, ``key [dim, in]`` (streams * hidden), ``value [dim, in]``; norms ``[dim]``
    over the streams, stored as w of 1 + w; ``conv [dim, in]`` (in = tap, the oldest first)."""

    table: Table
    key: Weight
    value: Weight
    key_norm: Weight
    query_norm: Weight
    conv_norm: Weight
    conv: Weight


@dataclass(frozen=True, eq=False)
class Qwen38Layer:
    """One layer: its two hyper-connections, its mixer, its routed experts and the shared one (``shared_router [stream, in]``, one row)."""

    attn_hc: HyperWeights
    mlp_hc: HyperWeights
    mixer: DeltaWeights | SparseWeights
    mixture: Mixture
    shared_gate: Weight
    shared_up: Weight
    shared_down: Weight
    shared_router: Weight
    ple: PleWeights | None = None


@dataclass(frozen=True, eq=False)
class Qwen38Weights(TargetWeights):
    """``embedding, head [vocab, in]``, the layers; ``final``: the last hyper-connection read, whose norm is ``norm``."""

    layers: tuple[Qwen38Layer, ...]  # type: ignore[assignment]
    final: HyperWeights
