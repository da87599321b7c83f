"""The parameters of a drafter and of a transformer layer, by role (`specs/dflash-generic.md` section 18)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oracle.weights import Weight


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """One transformer layer. Matrices: ``[out axes..., in]``; norms: ``[dim]``.

    ``q [head, dim, in]``, ``k, v [head, dim, in]`` (kv heads), ``o [dim, in]``, ``gate, up, down [dim, in]``;
    ``input_norm`` before attention, ``post_norm`` before the MLP; q/k norms ``[dim]`` (head width) or None;
    biases ``[head, dim]`` for q, k, v and ``[dim]`` for o, or None; ``attn_gate [head, in]`` (per head) or ``[dim, in]`` or None;
    ``sinks [head]``, a score of every head's softmax without a value, or None.
    DFlash 2's convolutions of both sublayers, or None: ``base [side, tap, dim]``, ``kernel [side, tap, group, in]``.
    """

    input_norm: Weight
    q: Weight
    k: Weight
    v: Weight
    o: Weight
    post_norm: Weight
    gate: Weight
    up: Weight
    down: Weight
    q_norm: Weight | None = None
    k_norm: Weight | None = None
    q_bias: Weight | None = None
    k_bias: Weight | None = None
    v_bias: Weight | None = None
    o_bias: Weight | None = None
    attn_gate: Weight | None = None
    sinks: Weight | None = None
    attn_conv_base: Weight | None = None
    attn_conv_kernel: Weight | None = None
    mlp_conv_base: Weight | None = None
    mlp_conv_kernel: Weight | None = None


@dataclass(frozen=True, eq=False)
class SelectorWeights:
    """DFlash 2's selector: ``predecessor, successor [vocab, in]`` (in = rank) and ``hidden [dim, in]`` (rank by width)."""

    predecessor: Weight
    successor: Weight
    hidden: Weight


@dataclass(frozen=True, eq=False)
class MarkovWeights:
    """DSpark's Markov head of rank R: ``w1 [vocab, in]`` (in = R, target ids), ``w2 [vocab, in]`` (draft ids).

    ``gate [dim, in]`` with ``gate_bias [dim]`` (gated: R by width + R) or ``joint [part, dim, in]`` with ``joint_bias [part, dim]``
    (rnn: parts a, b, c, R each, by R + R + width).
    """

    w1: Weight
    w2: Weight
    gate: Weight | None = None
    gate_bias: Weight | None = None
    joint: Weight | None = None
    joint_bias: Weight | None = None


@dataclass(frozen=True, eq=False)
class DrafterWeights:
    """``fc [dim, in]`` (in = taps * target hidden), ``hidden_norm [dim]``, ``norm [dim]`` (final), the layers.

    ``tap_norm [dim]`` (taps * target hidden, one norm per tap side by side) or None. ``confidence [dim, in]`` is one row over the
    width, or the width and the Markov rank. ``target_ids`` int64 [draft vocab]: absolute target ids of a reduced vocabulary, with
    the drafter's own ``head [vocab, in]``.
    """

    fc: Weight
    hidden_norm: Weight
    layers: tuple[LayerWeights, ...]
    norm: Weight
    tap_norm: Weight | None = None
    selector: SelectorWeights | None = None
    markov: MarkovWeights | None = None
    confidence: Weight | None = None
    confidence_bias: Weight | None = None
    head: Weight | None = None
    target_ids: NDArray[np.int64] | None = None
