"""The decoder layer that DFlash drafters and Llama-style targets share (`specs/dflash-generic.md` 2.5)."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from oracle.drafters.weights import LayerWeights
from oracle.recipes import Rope, Visible
from oracle.tape import Machine
from oracle.tensor import Tensor

Cells = tuple[Tensor, Tensor]


def decoder_layer(
    m: Machine,
    w: LayerWeights,
    x: Tensor,
    past: Cells | None,
    pos: NDArray[Any],
    visible: Visible,
    *,
    eps: float,
    rope: Rope,
    scale: float,
    gate: str = "none",
    conv: bool = False,
    sinks: bool = False,
) -> tuple[Tensor, Cells]:
    """One layer: x [row, dim] -> (x [row, dim], the rows' own (k, v) [cell, head, dim])."""
    x, own = attention_half(m, w, x, past, pos, visible, eps=eps, rope=rope, scale=scale, gate=gate, conv=conv, sinks=sinks)
    return mlp_half(m, w, x, eps, conv), own


def attention_half(
    m: Machine,
    w: LayerWeights,
    x: Tensor,
    past: Cells | None,
    pos: NDArray[Any],
    visible: Visible,
    *,
    eps: float,
    rope: Rope,
    scale: float,
    gate: str = "none",
    conv: bool = False,
    sinks: bool = False,
) -> tuple[Tensor, Cells]:
    """Attention with its norm and residual: x [row, dim] -> (x [row, dim], the rows' own (k, v) [cell, head, dim]).

    ``past``: keys after norm and rope, and values, of the cells before these rows; ``visible`` covers past and own cells.
    ``gate``: none, or how the attention output's gate, formed from the same normed input, is activated.
    ``conv``: DFlash 2's convolution around both sublayers, its kernels formed from the normed input.
    ``sinks``: the scores that a layer which has them adds to its softmax are in force.
    """
    xn = m.rms_norm("xn", x, w.input_norm, eps=eps)
    if conv:
        kernel = m.linear("attn_kernel", xn, w.attn_conv_kernel)
        xn = m.dynamic_conv("attn_conv_in", xn, kernel, w.attn_conv_base, side=0)
    q = m.linear("q_raw", xn, w.q, w.q_bias)
    k = m.linear("k_raw", xn, w.k, w.k_bias)
    v = m.linear("v", xn, w.v, w.v_bias)
    if w.q_norm is not None:
        q = m.rms_norm("q_norm", q, w.q_norm, eps=eps)
    if w.k_norm is not None:
        k = m.rms_norm("k_norm", k, w.k_norm, eps=eps)
    q = m.rope("q_rope", q, pos, rope)
    k = m.rope("k_rope", k, pos, rope)
    keys = m.cells("k_cells", *([past[0]] if past else []), k)
    values = m.cells("v_cells", *([past[1]] if past else []), v)
    if sinks and w.sinks is not None:
        a = m.sink_attention("attn", q, keys, values, w.sinks, visible=visible, scale=scale)
    else:
        a = m.attention("attn", q, keys, values, visible=visible, scale=scale)
    if gate != "none":
        a = m.gate("attn_gated", a, m.linear("attn_gate", xn, w.attn_gate), kind=gate)
    o = m.linear("o", a, w.o, w.o_bias)
    if conv:
        o = m.dynamic_conv("attn_conv_out", o, kernel, w.attn_conv_base, side=1)
    return m.add("h_attn", x, o), (k, v)


def mlp_half(m: Machine, w: LayerWeights, x: Tensor, eps: float, conv: bool = False) -> Tensor:
    """The SwiGLU MLP with its norm and residual: x [row, dim] -> [row, dim]."""
    xn = m.rms_norm("xn_mlp", x, w.post_norm, eps=eps)
    if conv:
        kernel = m.linear("mlp_kernel", xn, w.mlp_conv_kernel)
        xn = m.dynamic_conv("mlp_conv_in", xn, kernel, w.mlp_conv_base, side=0)
    act = m.swiglu("mlp_act", m.linear("mlp_gate", xn, w.gate), m.linear("mlp_up", xn, w.up))
    down = m.linear("mlp_down", act, w.down)
    if conv:
        down = m.dynamic_conv("mlp_conv_out", down, kernel, w.mlp_conv_base, side=1)
    return m.add("h_mlp", x, down)
