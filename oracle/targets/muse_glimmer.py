"""The Muse Glimmer target: centred norms around both halves of a layer, gated attention, sliding layers with rope and full ones without.

Source: `specs/muse-glimmer.md` sections 1 and 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oracle.drafters.weights import LayerWeights
from oracle.recipes import Visible
from oracle.tape import Machine
from oracle.targets.state import Output, State, extended
from oracle.targets.weights import TargetGeometry, TargetWeights
from oracle.tensor import Tensor
from oracle.transformer import Cells
from oracle.weights import Weight

__all__ = ["MuseGeometry", "MuseLayer", "MuseWeights", "Output", "State", "window"]


@dataclass(frozen=True, kw_only=True)
class MuseGeometry(TargetGeometry):
    """The sizes of a Muse Glimmer text model (section 1.1).

    ``sliding[l]`` and ``roped[l]``: whether layer l attends within ``window`` keys and whether it rotates q and k; both are
    lists of the file, never derived from a period. ``eps``: all norms but the two behind attention and MLP, which have
    ``post_norm_eps``. ``norm_offset``: 1 where the layers' norms are stored centred (weight 1 + w), 0 where the 1 is folded in.
    ``qk_scale``: factor of the normed queries, beside ``attn_scale``. ``placeholders``: ids that stand for an image or video.
    """

    post_norm_eps: float
    sliding: tuple[bool, ...]
    roped: tuple[bool, ...]
    window: int
    norm_offset: float
    qk_scale: float
    output_multiplier: float
    softcap: float
    placeholders: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class MuseLayer(LayerWeights):
    """A layer of the target: `LayerWeights` with ``attn_gate [dim, in]`` (dim = heads * head_dim) and ``q_norm`` (all ``qk_scale``).

    ``post_attn_norm``, ``post_mlp_norm`` [dim]: on the outputs of attention and MLP before they join the residual.
    """

    post_attn_norm: Weight
    post_mlp_norm: Weight


@dataclass(frozen=True, eq=False)
class MuseWeights(TargetWeights):
    """`TargetWeights` whose layers are `MuseLayer`."""

    layers: tuple[MuseLayer, ...]


def window(m: Machine, w: MuseWeights, g: MuseGeometry, ids: NDArray[np.int64], state: State, taps: Sequence[int] = ()) -> Output:
    """Process ids [row] after ``state``: one row per token, at positions ``state.length …``.

    ValueError for a placeholder id: the multimodal wrapper embeds another token there (section 1.1).
    """
    refuse_placeholders(ids, g.placeholders)
    pos = m.positions(state.length, len(ids))
    cells = np.arange(state.length + len(ids), dtype=np.int64)
    full = Visible("none", True, None, pos, cells, state.length)
    sliding = Visible("W_LT", True, g.window, pos, cells, state.length)
    x = m.rms_norm("embed_norm", m.gather("embed", w.embedding, ids), None, eps=g.eps)
    layers: list[Cells] = []
    tapped: dict[int, Tensor] = {}
    for i, part in enumerate(w.layers):
        past = state.past(i)
        x, own = layer(m.at(f"L{i}"), part, g, x, past, pos, sliding if g.sliding[i] else full, g.roped[i])
        layers.append(extended(past, own))
        if i in taps:
            tapped[i] = x
    hidden = m.rms_norm("final_norm", x, w.norm, eps=g.eps)
    logits = m.softcap("logits", m.linear("head", hidden, w.head), scale=g.output_multiplier, cap=g.softcap)
    return Output(logits, m.argmax("pick", logits), tuple(tapped[t] for t in taps), State(tuple(layers), state.length + len(ids)))


def layer(
    m: Machine, w: MuseLayer, g: MuseGeometry, x: Tensor, past: Cells | None, pos: NDArray[np.int64], visible: Visible, roped: bool
) -> tuple[Tensor, Cells]:
    """One layer (section 1.4): x [row, dim] -> (x [row, dim], the rows' own (k, v) [cell, head, dim])."""
    xn = m.rms_norm("xn", x, w.input_norm, eps=g.eps, offset=g.norm_offset)
    q, k, v = m.linear("q_raw", xn, w.q), m.linear("k_raw", xn, w.k), m.linear("v", xn, w.v)
    q, k = m.rms_norm("q_norm", q, w.q_norm, eps=g.eps), m.rms_norm("k_norm", k, None, eps=g.eps)
    if roped:
        q, k = m.rope("q_rope", q, pos, g.rope), m.rope("k_rope", k, pos, g.rope)
    keys = m.cells("k_cells", *([past[0]] if past else []), k)
    values = m.cells("v_cells", *([past[1]] if past else []), v)
    a = m.attention("attn", q, keys, values, visible=visible, scale=g.attn_scale)
    a = m.gate("attn_gated", a, m.linear("attn_gate", xn, w.attn_gate), kind="sigmoid")
    o = m.linear("o", a, w.o)
    x = m.add("h_attn", x, m.rms_norm("post_attn_norm", o, w.post_attn_norm, eps=g.post_norm_eps, offset=g.norm_offset))
    xn = m.rms_norm("xn_mlp", x, w.post_norm, eps=g.eps, offset=g.norm_offset)
    down = m.linear("mlp_down", m.swiglu("mlp_act", m.linear("mlp_gate", xn, w.gate), m.linear("mlp_up", xn, w.up)), w.down)
    return m.add("h_mlp", x, m.rms_norm("post_mlp_norm", down, w.post_mlp_norm, eps=g.post_norm_eps, offset=g.norm_offset)), (k, v)


def refuse_placeholders(ids: NDArray[np.int64], placeholders: tuple[int, ...]) -> None:
    """ValueError where ids [row] hold one of ``placeholders``."""
    found = np.flatnonzero(np.isin(ids, placeholders))
    if len(found):
        raise ValueError(
            f"token id {ids[found[0]]} at row {found[0]} stands for an image or video, for which this text model has no embedding; "
            "give text tokens only"
        )
