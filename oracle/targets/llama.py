"""The Llama-style target: causal decoder over a window of tokens, dense key/value state, tapped residuals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from oracle.recipes import Visible
from oracle.tape import Machine
from oracle.targets.state import Output, State, extended
from oracle.targets.weights import TargetGeometry, TargetWeights
from oracle.tensor import Tensor
from oracle.transformer import Cells, decoder_layer

__all__ = ["Output", "State", "window"]


def window(m: Machine, w: TargetWeights, g: TargetGeometry, ids: NDArray[np.int64], state: State, taps: Sequence[int] = ()) -> Output:
    """Process ids [row] after ``state``: one row per token, at positions ``state.length …``."""
    pos = m.positions(state.length, len(ids))
    cells = np.arange(state.length + len(ids), dtype=np.int64)
    visible = Visible("none", True, None, pos, cells, state.length)
    x = m.gather("embed", w.embedding, ids)
    layers: list[Cells] = []
    tapped: dict[int, Tensor] = {}
    for i, layer in enumerate(w.layers):
        past = state.past(i)
        x, own = decoder_layer(m.at(f"L{i}"), layer, x, past, pos, visible, eps=g.eps, rope=g.rope, scale=g.attn_scale)
        layers.append(extended(past, own))
        if i in taps:
            tapped[i] = x
    hidden = m.rms_norm("final_norm", x, w.norm, eps=g.eps)
    logits = m.linear("logits", hidden, w.head)
    return Output(logits, m.argmax("pick", logits), tuple(tapped[t] for t in taps), State(tuple(layers), state.length + len(ids)))
