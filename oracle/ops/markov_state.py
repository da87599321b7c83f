"""markov_state: the recurrent state of DSpark's rnn head, ``σ(a) s + (1 - σ(a)) tanh(b)`` (`specs/dflash-generic.md` 15).

Stages of a Markov head, under ``draft.row1.`` for the draft of block row 1: ``markov_embed`` (the row of W1 of the token before),
``markov_in`` (what the head's projection reads, side by side), ``markov_gate`` and ``markov_gated`` (gated) or ``markov_joint``,
``markov_state`` and ``markov_out`` (rnn), ``markov_bias`` (W2's product), ``logits`` (biased) and ``pick``; with a confidence head
``confidence_in``, ``confidence_logit`` and ``confidence`` as well. Noise: `specs/noise-rules.md` 5.9.
"""

from __future__ import annotations

import numpy as np

from oracle.arithmetic import Arithmetic
from oracle.floats import F32
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Operation, Tensor, Variance, Where, axes_of_first, shape_of_first
from oracle.ops.swiglu import sigmoid

GATE, CANDIDATE, OUTPUT = 0, 1, 2


def formula(F: Kit, state: Values, joint: Values) -> Values:
    """state [row, dim], joint [row, part, dim] with parts a, b, c -> [row, dim]."""
    one, joint = F.dtype.type(1), F.cast(joint)
    with np.errstate(over="ignore"):
        gate = one / (one + np.exp(-joint[:, GATE]))
    return np.asarray(gate * F.cast(state) + (one - gate) * np.tanh(joint[:, CANDIDATE]))


def noise(A: Arithmetic, y: Array, state: Tensor, joint: Tensor) -> Variance:
    s, t = sigmoid(joint.data[:, GATE]), np.tanh(joint.data[:, CANDIDATE])
    vj, slope = joint.variance(), s * (1 - s)
    inherited = np.square(s) * state.variance() + np.square((state.data - t) * slope) * vj[:, GATE]
    inherited = inherited + np.square((1 - s) * (1 - np.square(t))) * vj[:, CANDIDATE]
    kept, new = np.square(s * state.data), np.square((1 - s) * t)
    # The gate's own error enters both terms; 1 - σ is rounded absolutely, by what σ near 1 leaves of it.
    gate = np.square(state.data - t) * np.square(s) * (2 + 4 * np.square(1 - s))
    flush = np.where(joint.data[:, GATE] < -87.3, np.square(2.0**-126 * state.data), 0.0)
    return Variance(inherited, A.w3 * (gate + kept + new * 4 + np.square(t) * np.square(1 - s) + np.square(y)) + flush + (2.0**-149) ** 2)


def bound(A: Arithmetic, y: Array, where: Where, state: Tensor, joint: Tensor) -> Array:
    t = np.tanh(joint.data[:, CANDIDATE])
    reach = np.abs(state.data) + np.abs(t)
    flush = np.where(joint.data[:, GATE] < -87.3, 2.0**-125 * np.abs(state.data), 0.0)
    return np.asarray(reach[where] * 12 * F32.u + flush[where] + 2.0**-148)


markov_state = Operation("markov_state", "elementwise", axes_of_first, shape_of_first, formula, noise, bound)
