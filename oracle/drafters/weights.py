"""The parameters of a drafter and of a transformer layer, by role (`specs/dflash-generic.md` section 18)."""

from __future__ import annotations

from dataclasses import dataclass

from oracle.weights import Weight


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """One transformer layer. Matrices: ``[out axes..., in]``; norms: ``[dim]``.

    ``q [head, dim, in]``, ``k, v [head, dim, in]`` (kv heads), ``o [dim, in]``, ``gate, up, down [dim, in]``;
    ``input_norm`` before attention, ``post_norm`` before the MLP; q/k norms ``[dim]`` (head width) or None;
    biases ``[head, dim]`` for q, k, v and ``[dim]`` for o, or None; ``attn_gate [head, in]`` (per head) or ``[dim, in]`` or None.
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


@dataclass(frozen=True, eq=False)
class DrafterWeights:
    """``fc [dim, in]`` (in = taps * target hidden), ``hidden_norm [dim]``, ``norm [dim]`` (final), the layers.

    ``tap_norm [dim]`` (taps * target hidden, one norm per tap side by side) or None.
    """

    fc: Weight
    hidden_norm: Weight
    layers: tuple[LayerWeights, ...]
    norm: Weight
    tap_norm: Weight | None = None
