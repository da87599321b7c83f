"""The Laguna target: head counts, windows and ropes by layer, a softplus gate on attention, sigmoid-routed experts beside a shared one.

Source: `specs/laguna.md` section 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oracle.drafters.weights import LayerWeights
from oracle.recipes import Rope, Visible, Yarn
from oracle.tape import Machine
from oracle.targets.moe import Mixture, routed
from oracle.targets.state import Output, State, extended
from oracle.targets.weights import TargetGeometry, TargetWeights
from oracle.tensor import Tensor
from oracle.transformer import Cells, attention_half, mlp_half

__all__ = ["LagunaGeometry", "LagunaLayer", "LagunaWeights", "Output", "State", "window"]


@dataclass(frozen=True, kw_only=True)
class LagunaGeometry(TargetGeometry):
    """The sizes of a Laguna checkpoint (section 1.1).

    ``layer_heads[l]``: query heads of layer l (``heads`` alone shapes nothing). ``sliding[l]``: layer l sees ``window`` keys, the
    query's own included, and rotates by ``sliding_rope``; the others see all and rotate by ``rope``. ``sparse[l]``: layer l has
    ``experts`` routed experts of width ``moe_intermediate``, ``experts_per_token`` selected, their weights summing to
    ``routed_scale``, beside a shared one of width ``shared_intermediate``. ``router_cap``: tanh cap of the router's logits or None.
    ``yarn``: the parameters behind ``rope.factors``, or None where ``rope`` is not stretched.
    """

    layer_heads: tuple[int, ...]
    sliding: tuple[bool, ...]
    sparse: tuple[bool, ...]
    window: int | None
    sliding_rope: Rope
    experts: int
    experts_per_token: int
    moe_intermediate: int
    shared_intermediate: int
    routed_scale: float
    router_cap: float | None = None
    yarn: Yarn | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class LagunaLayer(LayerWeights):
    """`LayerWeights` with ``attn_gate [head, in]`` or ``[dim, in]`` (dim = heads * head_dim).

    ``gate, up, down``: the MLP of a dense layer, the shared expert of a sparse one; ``mixture``: its routed experts.
    """

    mixture: Mixture | None = None


@dataclass(frozen=True, eq=False)
class LagunaWeights(TargetWeights):
    """`TargetWeights` whose layers are `LagunaLayer`."""

    layers: tuple[LagunaLayer, ...]


def window(m: Machine, w: LagunaWeights, g: LagunaGeometry, ids: NDArray[np.int64], state: State, taps: Sequence[int] = ()) -> Output:
    """Process ids [row] after ``state``: one row per token, at positions ``state.length …``."""
    pos = m.positions(state.length, len(ids))
    cells = np.arange(state.length + len(ids), dtype=np.int64)
    full = Visible("none", True, None, pos, cells, state.length)
    near = Visible("W_LT", True, g.window, pos, cells, state.length)
    x = m.gather("embed", w.embedding, ids)
    layers: list[Cells] = []
    tapped: dict[int, Tensor] = {}
    for i, part in enumerate(w.layers):
        scope, past = m.at(f"L{i}"), state.past(i)
        visible, rope = (near, g.sliding_rope) if g.sliding[i] else (full, g.rope)
        x, own = attention_half(scope, part, x, past, pos, visible, eps=g.eps, rope=rope, scale=g.attn_scale, gate="softplus")
        x = mlp_half(scope, part, x, g.eps) if part.mixture is None else sparse_half(scope, part, part.mixture, x, g)
        layers.append(extended(past, own))
        if i in taps:
            tapped[i] = x
    logits = m.linear("logits", m.rms_norm("final_norm", x, w.norm, eps=g.eps), w.head)
    return Output(logits, m.argmax("pick", logits), tuple(tapped[t] for t in taps), State(tuple(layers), state.length + len(ids)))


def sparse_half(m: Machine, w: LagunaLayer, mixture: Mixture, x: Tensor, g: LagunaGeometry) -> Tensor:
    """Routed experts plus the shared one, which is neither gated nor scaled (14a to 15): x [row, dim] -> [row, dim]."""
    xn = m.rms_norm("xn_mlp", x, w.post_norm, eps=g.eps)
    out = routed(m, mixture, xn, k=g.experts_per_token, scores="sigmoid", scale=g.routed_scale, cap=g.router_cap)
    act = m.swiglu("shared_act", m.linear("shared_gate", xn, w.gate), m.linear("shared_up", xn, w.up))
    both = m.add("mlp_out", out, m.linear("shared_out", act, w.down))
    return m.add("h_mlp", x, both)
