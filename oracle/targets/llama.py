"""The Llama-style target: causal decoder over a window of tokens, dense key/value state, tapped residuals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from oracle.recipes import Visible
from oracle.tape import Machine
from oracle.targets.weights import TargetGeometry, TargetWeights
from oracle.tensor import Tensor, concatenate
from oracle.transformer import Cells, decoder_layer


@dataclass(frozen=True)
class State:
    """Keys and values of the processed tokens, per layer; immutable. ``keep(n)``: the state after the first n tokens."""

    layers: tuple[Cells, ...] = ()
    length: int = 0

    def keep(self, n: int) -> State:
        if not 0 <= n <= self.length:
            raise ValueError(f"a state of {self.length} rows cannot keep {n}")
        return State(tuple((k.rows(0, n), v.rows(0, n)) for k, v in self.layers), n)


@dataclass(frozen=True)
class Output:
    """``logits [row, vocab]``, ``pick [row]``, ``taps``: the residual after each asked layer [row, dim], and the new state."""

    logits: Tensor
    pick: Tensor
    taps: tuple[Tensor, ...]
    state: State = field(repr=False)


def window(m: Machine, w: TargetWeights, g: TargetGeometry, ids: NDArray[np.int64], state: State, taps: Sequence[int] = ()) -> Output:
    """Process ids [row] after ``state``: one row per token, at positions ``state.length …``."""
    pos = m.positions(state.length, len(ids))
    cells = np.arange(state.length + len(ids), dtype=np.int64)
    visible = Visible("none", True, None, pos, cells, state.length)
    x = m.gather("embed", w.embedding, ids)
    layers: list[Cells] = []
    tapped: dict[int, Tensor] = {}
    for i, layer in enumerate(w.layers):
        past = state.layers[i] if state.length else None
        x, own = decoder_layer(m.at(f"L{i}"), layer, x, past, pos, visible, eps=g.eps, rope=g.rope, scale=g.attn_scale)
        layers.append((concatenate([past[0], own[0]]), concatenate([past[1], own[1]])) if past else own)
        if i in taps:
            tapped[i] = x
    hidden = m.rms_norm("final_norm", x, w.norm, eps=g.eps)
    logits = m.linear("logits", hidden, w.head)
    return Output(logits, m.argmax("pick", logits), tuple(tapped[t] for t in taps), State(tuple(layers), state.length + len(ids)))
