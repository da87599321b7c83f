"""Distributions over a 32-bit stream exactly as libstdc++ computes them (its <random> of GCC 5 to 15): what C++ engines draw with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.speculation.mt19937 import MT19937

ONE_BELOW = {np.dtype(t): np.nextafter(t(1), t(0)) for t in (np.float32, np.float64)}


def canonical(stream: MT19937, dtype: Any) -> Any:
    """``generate_canonical``: one draw for float32, two for float64 (low word first); a sum that rounds to 1 becomes the number below."""
    t = np.dtype(dtype).type
    total, factor = t(0), t(1)
    for _ in range(1 if t is np.float32 else 2):
        total = total + t(stream.u32()) * factor
        factor = factor * t(2.0**32)
    made = total / factor
    return made if made < 1 else ONE_BELOW[np.dtype(t)]


def uniform_real(stream: MT19937, low: float, high: float, dtype: Any) -> Any:
    """``uniform_real_distribution<dtype>(low, high)``: every step rounded in ``dtype``."""
    t = np.dtype(dtype).type
    return canonical(stream, dtype) * (t(high) - t(low)) + t(low)


class Discrete:
    """``discrete_distribution<int>`` over weights: cumulated in double, the last bound set to 1; fewer than two weights draw nothing."""

    def __init__(self, weights: Sequence[float] | NDArray[Any]) -> None:
        w = np.asarray(weights, np.float64)
        self.bounds = np.cumsum(w / np.cumsum(w)[-1]) if len(w) > 1 else np.empty(0)
        if len(w) > 1:
            self.bounds[-1] = 1.0

    def __call__(self, stream: MT19937) -> int:
        """The first index whose bound reaches the draw."""
        return int(np.searchsorted(self.bounds, canonical(stream, np.float64), "left")) if len(self.bounds) else 0
