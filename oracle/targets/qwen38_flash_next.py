"""The Qwen3.8-Flash-Next target: hyper-connected streams, gated delta nets, indexed sparse attention, experts, hashed n-grams.

Source: `specs/qwen38-flash-next.md` section 1; its stages S0 to S11 in order. Norms marked 1 + w there take ``offset=1``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oracle.ngrams import NGrams
from oracle.recipes import Visible
from oracle.tape import Machine
from oracle.targets.moe import routed
from oracle.targets.qwen38_state import DeltaState, Mixing, SparseState, State, Trail
from oracle.targets.qwen38_weights import DeltaWeights, HyperWeights, PleWeights, Qwen38Geometry, Qwen38Layer, Qwen38Weights, SparseWeights
from oracle.targets.state import Output
from oracle.tensor import Tensor

__all__ = ["Output", "Qwen38Geometry", "Qwen38Weights", "Selection", "State", "window"]

L2_EPS = 1e-6


@dataclass(frozen=True, eq=False)
class Selection:
    """Which cells each row attends to, as the indexer chose them: ``chosen [row, cell]``, 1 or 0.

    ``undecided [row]``: rows whose choice could be another, or None.
    """

    chosen: NDArray[np.float64]
    undecided: NDArray[np.bool_] | None = None

    def matrix(self) -> NDArray[np.bool_]:
        """Visibility as bool [row, cell]."""
        return np.asarray(self.chosen > 0.5)


def selection(cells: Tensor) -> Selection:
    """Of a choice of cells [row, cell]."""
    return Selection(cells.data, None if cells.exact else np.asarray((cells.variance() > 0).any(1)))


def window(m: Machine, w: Qwen38Weights, g: Qwen38Geometry, ids: NDArray[np.int64], state: State, taps: Sequence[int] = ()) -> Output:
    """Process ids [row] after ``state``, at positions ``state.length …``.

    A tap of layer t is what the *next* layer's attention reads, the contraction of the streams as they leave t (section 2.1).
    """
    pos = m.positions(state.length, len(ids))
    before = _tokens_before(state, g)
    x = m.replicate("streams", m.gather("embed", w.embedding, ids), copies=g.streams)
    layers: list[Mixing] = []
    trails: list[tuple[int, Trail]] = []
    tapped: dict[int, Tensor] = {}
    for i, layer in enumerate(w.layers):
        scope, ngrams = m.at(f"L{i}"), g.ngrams[i]
        if layer.ple is not None and ngrams is not None:
            trail = dict(state.ple)[i] if state.length else _empty_trail(m, g.ple_reach(ngrams), g.streams * g.hidden)
            x, trail = ngram_half(scope, layer.ple, x, ids, before, trail, ngrams, g)
            trails.append((i, trail))
        mixed, inject = hyper_read(scope.at("attn_hc"), layer.attn_hc, x, g)
        tapped[i - 1] = mixed
        past = state.layers[i] if state.length else None
        out, mixing = _mix(scope, layer, mixed, past, pos, g)
        layers.append(mixing)
        assert inject is not None
        x = scope.hc_write("h_attn", x, out, inject)
        x = experts_half(scope, layer, x, g)
    final, _ = hyper_read(m.at("final_hc"), w.final, x, g)
    tapped[g.layers - 1] = final
    logits = m.linear("logits", final, w.head)
    after = State(tuple(layers), tuple(trails), np.concatenate([before, ids]), state.length + len(ids), len(ids))
    return Output(logits, m.argmax("pick", logits), tuple(tapped[t] for t in taps), after)


def _tokens_before(state: State, g: Qwen38Geometry) -> NDArray[np.int64]:
    """The ids that n-grams of the first rows look back at; end marks before the first token."""
    longest = max((n.size for n in g.ngrams if n is not None), default=1) - 1
    if state.tokens is None:
        end = next((n.end for n in g.ngrams if n is not None), 0)
        return np.full(longest, end, np.int64)
    return state.tokens[len(state.tokens) - longest :]


def _empty_trail(m: Machine, reach: int, *channels: int) -> Trail:
    axes = ("row", "dim") if len(channels) == 1 else ("row", "head", "dim")
    return Trail(m.lift(np.zeros((reach, *channels)), axes), reach)


def hyper_read(m: Machine, w: HyperWeights, x: Tensor, g: Qwen38Geometry) -> tuple[Tensor, Tensor | None]:
    """S3: streams x [row, stream * dim] -> (their contraction [row, dim], the write strengths [row, stream] or None)."""
    xn = m.rms_norm("xn", x, w.norm, eps=g.eps, offset=1.0, groups=g.streams)
    low = m.silu("low", m.linear("low_raw", xn, w.down), scale=1 / g.streams)
    mixed = m.hc_read("hc_read", xn, m.linear("mix", low, w.up), streams=g.streams)
    if w.inject is None:
        return mixed, None
    return mixed, m.squash("inject", m.linear("inject_raw", xn, w.inject), scale=1 / g.streams, gain=2.0)


def _mix(
    m: Machine, layer: Qwen38Layer, x: Tensor, past: Mixing | None, pos: NDArray[np.int64], g: Qwen38Geometry
) -> tuple[Tensor, Mixing]:
    """S4: the layer's mixer."""
    if isinstance(layer.mixer, DeltaWeights):
        if past is None:
            past = _empty_delta(m, g)
        assert isinstance(past, DeltaState)
        return delta_net(m, layer.mixer, x, past, g)
    assert past is None or isinstance(past, SparseState)
    return sparse_attention(m, layer.mixer, x, past, pos, g)


def _empty_delta(m: Machine, g: Qwen38Geometry) -> DeltaState:
    reach = g.conv_taps - 1
    keys, values = (_empty_trail(m, reach, *c) for c in ((g.key_heads, g.key_dim), (g.value_heads, g.value_dim)))
    start = m.lift(np.zeros((g.value_heads, g.key_dim, g.value_dim)), ("head", "key", "dim"))
    return DeltaState(keys, keys, values, start)


def delta_net(m: Machine, w: DeltaWeights, x: Tensor, past: DeltaState, g: Qwen38Geometry) -> tuple[Tensor, DeltaState]:
    """Section 1.6: x [row, dim] -> ([row, dim], the states after every row)."""
    raw = {"q": m.linear("q_raw", x, w.q), "k": m.linear("k_raw", x, w.k), "v": m.linear("v_raw", x, w.v)}

    def convolved(name: str, trail: Trail, weight: object) -> Tensor:
        return m.silu(name, m.short_conv(f"{name}_conv", raw[name], trail.history, weight))

    q = m.l2_norm("q_norm", convolved("q", past.q, w.q_conv), eps=L2_EPS, scale=g.key_dim**-0.5)
    k = m.l2_norm("k_norm", convolved("k", past.k, w.k_conv), eps=L2_EPS)
    v = convolved("v", past.v, w.v_conv)
    beta = m.sigmoid("beta", m.linear("beta_raw", x, w.beta))
    decay = m.decay("decay", m.linear("decay_raw", x, w.decay), w.a_log, w.dt_bias)
    start = past.last
    after = m.delta_state("delta_state", start, k, v, decay, beta)
    read = m.rms_norm("delta_norm", m.delta_read("delta_read", after, q), w.norm, eps=g.eps)
    z = m.linear("attn_gate", x, w.z)
    gated = m.gate("attn_gated", read, z, kind="sigmoid") if g.output_gate == "sigmoid" else m.swiglu("attn_gated", z, read)
    trails = (past.q.extended(raw["q"]), past.k.extended(raw["k"]), past.v.extended(raw["v"]))
    return m.linear("o", gated, w.o), DeltaState(*trails, start, after)


def sparse_attention(
    m: Machine, w: SparseWeights, x: Tensor, past: SparseState | None, pos: NDArray[np.int64], g: Qwen38Geometry
) -> tuple[Tensor, SparseState]:
    """Section 1.7: x [row, dim] -> ([row, dim], the cells with the rows' own behind them).

    Before the first block of cells is complete there is nothing to select and nothing is scored.
    """
    both = m.linear("q_gate", x, w.q)
    q = m.part("q_raw", both, start=0, stop=g.head_dim)
    q = m.rope("q_rope", m.rms_norm("q_norm", q, w.q_norm, eps=g.eps, offset=1.0), pos, g.rope)
    k = m.rms_norm("k_norm", m.linear("k_raw", x, w.k), w.k_norm, eps=g.eps, offset=1.0)
    own = SparseState(m.rope("k_rope", k, pos, g.rope), m.linear("v", x, w.v), m.linear("index_k_raw", x, w.index_k))
    earlier = [past] if past else []
    keys = m.cells("k_cells", *(s.keys for s in earlier), own.keys)
    values = m.cells("v_cells", *(s.values for s in earlier), own.values)
    index = m.cells("index_cells", *(s.index for s in earlier), own.index)
    visible: Selection | Visible = Visible("none", True, None, pos, np.arange(len(index.data)), 0)
    if len(index.data) >= g.index_ratio:
        visible = selection(index_cells(m, w, x, index, pos, g))
    a = m.attention("attn", q, keys, values, visible=visible, scale=g.attn_scale)
    gated = m.gate("attn_gated", a, m.part("attn_gate", both, start=g.head_dim, stop=2 * g.head_dim), kind="sigmoid")
    return m.linear("o", gated, w.o), past.extended(own) if past else own


def index_cells(m: Machine, w: SparseWeights, x: Tensor, index: Tensor, pos: NDArray[np.int64], g: Qwen38Geometry) -> Tensor:
    """Section 1.7, indexer: raw index keys [cell, 1, dim] -> the cells each row attends to [row, cell], 1 or 0."""
    q = m.rms_norm("index_q_norm", m.linear("index_q_raw", x, w.index_q), w.index_q_norm, eps=g.eps, offset=1.0)
    q = m.rope("index_q", q, pos, g.rope)
    pooled = m.block_mean("index_pooled", index, ratio=g.index_ratio)
    k = m.rms_norm("index_k_norm", pooled, w.index_k_norm, eps=g.eps, offset=1.0)
    k = m.rope("index_k", k, np.arange(len(k.data), dtype=np.int64) * g.index_ratio, g.rope)
    scores = m.index_scores("index_scores", q, k, pos, ratio=g.index_ratio, scale=g.index_dim**-0.5)
    return m.select_cells("index_selected", scores, pos, len(index.data), ratio=g.index_ratio, budget=g.index_budget)


def experts_half(m: Machine, w: Qwen38Layer, x: Tensor, g: Qwen38Geometry) -> Tensor:
    """S6 to S8: routed experts and the gated shared one, written back to the streams x [row, stream * dim]."""
    xn, inject = hyper_read(m.at("mlp_hc"), w.mlp_hc, x, g)
    out = routed(m, w.mixture, xn, k=g.experts_per_token, scores="softmax")
    act = m.swiglu("shared_act", m.linear("shared_gate", xn, w.shared_gate), m.linear("shared_up", xn, w.shared_up))
    shared = m.linear("shared_down", act, w.shared_down)
    shared = m.stream_gate("shared_out", shared, m.linear("shared_router", xn, w.shared_router))
    return m.hc_write("h_mlp", x, m.add("mlp_out", out, shared), inject)


def ngram_half(
    m: Machine,
    w: PleWeights,
    x: Tensor,
    ids: NDArray[np.int64],
    before: NDArray[np.int64],
    trail: Trail,
    ngrams: NGrams,
    g: Qwen38Geometry,
) -> tuple[Tensor, Trail]:
    """S2, section 1.8: streams x [row, stream * dim] -> (x with the n-gram embedding added, the trail of its convolution)."""
    norm = {"eps": g.eps, "offset": 1.0, "groups": g.streams}
    e = m.ngram("ple_embed", w.table, ids, before[len(before) - ngrams.size + 1 :], ngrams)
    key = m.rms_norm("ple_key", m.linear("ple_key_raw", e, w.key), w.key_norm, **norm)
    value = m.linear("ple_value", e, w.value)
    query = m.rms_norm("ple_query", x, w.query_norm, **norm)
    gated = m.stream_gate("ple_gated", value, m.ple_gate("ple_gate", key, query, streams=g.streams))
    near = m.rms_norm("ple_xn", gated, w.conv_norm, **norm)
    conv = m.silu("ple_act", m.short_conv("ple_conv", near, trail.history, w.conv, dilation=ngrams.size))
    return m.add("h_ple", x, m.add("ple", gated, conv)), trail.extended(near)
