"""Float formats as they round: precision, spacing, rounding, exactly as stored (`specs/noise-rules.md` sections 0 and 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.tensor import Array


@dataclass(frozen=True)
class FloatFormat:
    """``p`` significant bits, smallest normal exponent ``emin``, largest finite value ``largest``."""

    name: str
    p: int
    emin: int
    largest: float

    @property
    def u(self) -> float:
        """Unit roundoff of round-to-nearest."""
        return 2.0**-self.p

    def ulp(self, y: Any) -> Array:
        """Spacing of the format at ``y``: ``2^(max(floor(log2|y|), emin) - p + 1)``; at 0 the subnormal spacing."""
        exponent = np.frexp(np.abs(np.asarray(y, np.float64)))[1] - 1
        exponent = np.where(np.asarray(y) == 0, self.emin, exponent)
        return np.asarray(np.ldexp(1.0, np.maximum(exponent, self.emin) - self.p + 1), np.float64)

    def round(self, y: Any) -> Array:
        """``y`` rounded half-even to the format (overflow to infinity as the format does), in float64."""
        y64 = np.asarray(y, np.float64)
        if self.p >= 53:
            return y64
        with np.errstate(invalid="ignore", over="ignore"):
            spacing = self.ulp(y64)
            rounded = np.where(np.isfinite(y64), np.rint(y64 / spacing) * spacing, y64)
            return np.where(np.abs(rounded) > self.largest, np.copysign(np.inf, rounded), rounded)

    def truncate(self, y: Any) -> Array:
        """``y`` cut toward zero to the format (what lies beyond becomes the largest finite value), in float64."""
        y64 = np.asarray(y, np.float64)
        if self.p >= 53:
            return y64
        with np.errstate(invalid="ignore"):
            spacing = self.ulp(y64)
            cut = np.clip(np.trunc(y64 / spacing) * spacing, -self.largest, self.largest)
        return np.where(np.isfinite(y64), cut, y64)

    def holds(self, y: Any) -> NDArray[np.bool_]:
        """Elementwise: is the value representable? Non-finite values are."""
        y64 = np.asarray(y, np.float64)
        return np.asarray(~np.isfinite(y64) | (self.round(y64) == y64), bool)


F64 = FloatFormat("f64", 53, -1022, np.finfo(np.float64).max.item())
F32 = FloatFormat("f32", 24, -126, np.finfo(np.float32).max.item())
F16 = FloatFormat("f16", 11, -14, 65504.0)
BF16 = FloatFormat("bf16", 8, -126, 3.3895313892515355e38)
FORMATS = {f.name: f for f in (F64, F32, F16, BF16)}
