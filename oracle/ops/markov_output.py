"""markov_output: what DSpark's rnn head reads out of its joint projection, ``tanh(c)`` (`specs/dflash-generic.md` 15).

Noise: `specs/noise-rules.md` 5.9, last line.
"""

from __future__ import annotations

import numpy as np

from oracle.arithmetic import Arithmetic
from oracle.floats import F32
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Axes, Operation, Tensor, Variance, Where
from oracle.ops.markov_state import OUTPUT


def axes(joint: Tensor) -> Axes:
    return (joint.axes[0], joint.axes[-1])


def shape(joint: Tensor) -> tuple[int, ...]:
    return (joint.data.shape[0], joint.data.shape[-1])


def formula(F: Kit, joint: Values) -> Values:
    """joint [row, part, dim] -> tanh of its last part, [row, dim]."""
    return np.asarray(np.tanh(F.cast(joint)[:, OUTPUT]))


def noise(A: Arithmetic, y: Array, joint: Tensor) -> Variance:
    slope = 1 - np.square(y)
    return Variance(np.square(slope) * joint.variance()[:, OUTPUT], A.w3 * 2 * np.square(y))


def bound(A: Arithmetic, y: Array, where: Where, joint: Tensor) -> Array:
    return np.asarray(np.abs(y[where]) * 4 * F32.u + 2.0**-148)


markov_output = Operation("markov_output", "elementwise", axes, shape, formula, noise, bound)
