"""The DFlash drafter, once, for every family: context encoder, context keys and values, block forward.

Source: `specs/dflash-generic.md` section 2; the family's switches are in its `Dialect`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.drafters.dialect import Dialect, Geometry
from oracle.drafters.heads import draft
from oracle.drafters.weights import DrafterWeights, LayerWeights
from oracle.recipes import Visible
from oracle.tape import Machine
from oracle.tensor import Tensor, concatenate
from oracle.transformer import Cells, decoder_layer
from oracle.weights import Weight


class ContextError(ValueError):
    """Rows appended or a block placed where the context does not allow it."""


@dataclass
class Context:
    """Committed rows only: per layer the keys (after norm and rope) and values, and every cell's absolute position.

    ``length`` counts all rows ever committed; a sink/window ring keeps fewer cells than that. ``exposed``: positions that a rotating
    cache (W_CACHE) still holds, oldest first.
    """

    layers: list[Cells] = field(default_factory=list)
    positions: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    length: int = 0
    exposed: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def layer(self, index: int) -> Cells | None:
        return self.layers[index] if self.layers and len(self.positions) else None

    def truncate(self, length: int) -> None:
        """Forget the rows from position ``length`` on. `ContextError` if the rows before it are no longer all there."""
        if length > self.length or length < 0:
            raise ContextError(f"cannot truncate a context of {self.length} rows to {length}")
        if len(self.positions) < self.length and length < self.length:
            raise ContextError(f"a ring that has evicted rows cannot be truncated from {self.length} to {length} rows")
        self.keep(self.positions < length)
        self.exposed = self.exposed[self.exposed < length]
        self.length = length

    def keep(self, cells: NDArray[np.bool_]) -> None:
        """Keep the chosen cells, in order."""
        index = np.flatnonzero(cells)
        self.layers = [(_take(k, index), _take(v, index)) for k, v in self.layers]
        self.positions = self.positions[index]

    def extend(self, layers: list[Cells], positions: NDArray[np.int64]) -> None:
        joined = self.layers and len(self.positions)
        self.layers = (
            [(concatenate([a[0], b[0]]), concatenate([a[1], b[1]])) for a, b in zip(self.layers, layers, strict=True)] if joined else layers
        )
        self.positions = np.concatenate([self.positions, positions])
        self.length += len(positions)

    def rotate(self, rows: int, window: int) -> None:
        """A rotating cache of W - 1 rows after ``rows`` were committed: W - 2 of what it held and all new ones, of which it takes at
        most W - 1 (`specs/laguna.md` 3.4, row B, and stage D0)."""
        taken = self.positions[len(self.positions) - min(rows, window - 1) :]
        self.exposed = np.concatenate([self.exposed[max(len(self.exposed) - (window - 2), 0) :], taken])


def _take(t: Tensor, index: NDArray[np.intp]) -> Tensor:
    def part(x: object) -> object:
        return x[index] if isinstance(x, np.ndarray) and x.ndim == t.data.ndim else x

    return Tensor(t.data[index], t.axes, part(t.var), part(t.acc), part(t.half))  # type: ignore[arg-type]


def append(m: Machine, w: DrafterWeights, g: Geometry, d: Dialect, context: Context, features: Tensor, start: int) -> None:
    """Commit rows at positions ``start …``: features [row, taps * target hidden]. A lower start overwrites (rejected rows)."""
    width = len(g.tap_ids) * g.target_hidden
    if features.data.ndim != 2 or features.data.shape[1] != width:
        raise ContextError(
            f"features have shape {features.data.shape}, expected [rows, {width}] ({len(g.tap_ids)} taps of {g.target_hidden})"
        )
    if not len(features.data):
        raise ContextError("no feature rows: a commit has at least the anchor's")
    if start > context.length:
        raise ContextError(f"rows appended at {start} would leave a gap: the context holds {context.length} rows")
    if start < context.length:
        context.truncate(start)
    taps = m.given("taps", features)
    if d.tap_norm:
        taps = m.rms_norm("tap_norm", taps, w.tap_norm, eps=d.eps, groups=len(g.tap_ids))
    ctx = m.rms_norm("ctx", m.linear("fc", taps, w.fc), w.hidden_norm, eps=d.eps)
    pos = m.positions(start, len(features.data))
    context.extend([context_cells(m.at(f"L{i}.ctx"), layer, ctx, pos, d) for i, layer in enumerate(w.layers)], pos)
    if d.window_rule == "W_CACHE":
        assert d.window is not None
        context.rotate(len(pos), d.window)


def context_cells(m: Machine, w: LayerWeights, ctx: Tensor, pos: NDArray[np.int64], d: Dialect) -> Cells:
    """Keys and values of committed rows for one layer: ctx [row, dim] -> (k, v) [row, head, dim].

    No input norm, unless the dialect says so.
    """
    if d.ctx_layernorm:
        ctx = m.rms_norm("xn", ctx, w.input_norm, eps=d.eps)
    k = m.linear("k_raw", ctx, w.k, w.k_bias)
    if w.k_norm is not None:
        k = m.rms_norm("k_norm", k, w.k_norm, eps=d.eps)
    return m.rope("k_rope", k, pos, d.rope), m.linear("v", ctx, w.v, w.v_bias)


@dataclass(frozen=True)
class Block:
    """One proposal: ``hidden [row, dim]`` after the final norm, ``logits [row, vocab]``, ``pick [row]`` of every row.

    ``drafts [row]``: the proposed token ids, one per drafted row, after selector, Markov head or reduced vocabulary where the
    drafter has one. ``confidence [row, dim]`` (one value each) or None.
    """

    hidden: Tensor
    logits: Tensor
    pick: Tensor
    drafts: Tensor
    confidence: Tensor | None = None


def propose(
    m: Machine,
    w: DrafterWeights,
    g: Geometry,
    d: Dialect,
    context: Context,
    ids: NDArray[np.int64],
    position: int,
    embedding: Weight,
    head: Weight,
) -> Block:
    """One block forward: ids [row] (anchor and masks) at ``position …``; the context is read, then a ring evicts.

    The block's own keys and values are thrown away (section 2.7).
    """
    if not 1 <= len(ids) <= g.block_size:
        raise ContextError(f"a block of {len(ids)} rows: this drafter takes 1 to {g.block_size}")
    if position < context.length:
        raise ContextError(f"the block starts at {position}, inside the {context.length} committed rows")
    pos = m.positions(position, len(ids))
    cells = np.concatenate([context.positions, pos])
    x = m.gather("embed", embedding, ids, scale=d.embed_scale)
    for i, layer in enumerate(w.layers):
        visible = Visible("none", d.causal[i], None, pos, cells, len(context.positions))
        if g.sliding[i]:
            visible = windowed(visible, d, context)
        scope, past = m.at(f"L{i}"), context.layer(i)
        how: dict[str, Any] = {"gate": d.attn_gate, "conv": d.conv, "sinks": d.sinks}
        x, _ = decoder_layer(scope, layer, x, past, pos, visible, eps=d.eps, rope=d.rope, scale=d.attn_scale, **how)
    hidden = m.rms_norm("final_norm", x, w.norm, eps=d.eps)
    logits = output(m, hidden, w.head or head, d.output_multiplier, d.softcap)
    if d.window_rule == "SINK_RING":
        evict(context, d)
    pick = m.argmax("pick", logits)
    drafts, confidence = draft(m, w, g, d, ids[:1], hidden, logits, pick)
    return Block(hidden, logits, pick, drafts, confidence)


def windowed(all_cells: Visible, d: Dialect, context: Context) -> Visible:
    """What a sliding layer sees; under W_CACHE that depends on how the context was appended (`specs/laguna.md` 3.4, row B)."""
    if d.window_rule != "W_CACHE":
        return replace(all_cells, rule=d.window_rule, window=d.window)
    held = context.exposed
    if not len(held):
        return replace(all_cells, rule="W_RING", window=1)
    # W_RING shows one row less than its width. A commit larger than the cache leaves a gap before its last rows.
    whole = held[-1] - held[0] + 1 == len(held)
    gaps = None if whole else np.isin(all_cells.k_pos, held) | (np.arange(len(all_cells.k_pos)) >= all_cells.block_start)
    return replace(all_cells, rule="W_RING", window=int(all_cells.q_pos[0] - held[0]) + 1, held=gaps)


def output(m: Machine, hidden: Tensor, head: Weight, multiplier: float, cap: float | None) -> Tensor:
    """Logits: the head, then the multiplier, then the cap; one stage where there is neither."""
    if multiplier == 1.0 and cap is None:
        return m.linear("logits", hidden, head)
    return m.softcap("logits", m.linear("head", hidden, head), scale=multiplier, cap=cap)


def evict(context: Context, d: Dialect) -> None:
    """SINK_RING: keep the first ``sink`` and the last ``window`` committed rows (`specs/muse-glimmer.md` 5.2)."""
    assert d.window is not None
    if context.length > d.sink + d.window:
        context.keep((context.positions < d.sink) | (context.positions >= context.length - d.window))
