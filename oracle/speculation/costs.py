"""What a verify window costs by its width: fixed + per row, fitted with its doubts, and what acceptance pays for it.

Source: `specs/laguna.md` section 7: always the fit, residuals, sum of squares and predicted endpoints, and on which points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from oracle.tensor import Array

CONFIDENCE = 0.95


@dataclass(frozen=True)
class CostFit:
    """``fixed + per_row * width`` by least squares over the table's points, in the table's unit (ms).

    ``*_range``: 95 % confidence interval of each parameter; ``residuals`` measured - fitted per point; ``left_out``: for each point,
    (fixed, per_row) of the fit without it, and ``left_out_error``: its measured - predicted then.
    """

    fixed: float
    per_row: float
    fixed_range: tuple[float, float]
    per_row_range: tuple[float, float]
    residuals: tuple[float, ...]
    left_out: tuple[tuple[float, float], ...]
    left_out_error: tuple[float, ...]

    @property
    def sse(self) -> float:
        return float(np.square(self.residuals).sum())

    def at(self, width: float) -> float:
        return self.fixed + self.per_row * width


def fit(widths: Sequence[float], ms: Sequence[float]) -> CostFit:
    """ValueError for fewer than 3 points, unequal counts, or fewer than 3 different widths: no line with a doubt goes through two."""
    x, y = np.asarray(widths, np.float64), np.asarray(ms, np.float64)
    if len(x) != len(y) or len(np.unique(x)) < 3 or not np.isfinite([x, y]).all():
        raise ValueError(f"{len(x)} widths and {len(y)} times: expected a time for each of at least 3 different widths")
    fixed, slope, residuals = _line(x, y)
    left, wrong = [], []
    for i in range(len(x)):
        others = np.arange(len(x)) != i
        if len(np.unique(x[others])) < 2:
            continue
        a, b, _ = _line(x[others], y[others])
        left.append((a, b))
        wrong.append(float(y[i] - a - b * x[i]))
    spread = x - x.mean()
    sigma = np.sqrt(np.square(residuals).sum() / (len(x) - 2))
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(x) - 2) * sigma)
    per_row = reach / np.sqrt(np.square(spread).sum())
    base = reach * np.sqrt(1 / len(x) + x.mean() ** 2 / np.square(spread).sum())
    return CostFit(
        fixed,
        slope,
        (fixed - float(base), fixed + float(base)),
        (slope - float(per_row), slope + float(per_row)),
        tuple(float(r) for r in residuals),
        tuple(left),
        tuple(wrong),
    )


@dataclass(frozen=True)
class Claim:
    """A line that someone states for a table: its ``sse``, its errors measured - stated at the narrowest and the widest point, and
    ``p``: how often healthy measurements of this line would lie as far from it (F test of both parameters together)."""

    fixed: float
    per_row: float
    sse: float
    endpoints: tuple[float, float]
    p: float

    @property
    def holds(self) -> bool:
        return self.p >= 1 - CONFIDENCE


def claim(widths: Sequence[float], ms: Sequence[float], fixed: float, per_row: float) -> Claim:
    """Judge ``fixed + per_row * width`` by the table. ValueError as of `fit`."""
    best = fit(widths, ms)
    x, y = np.asarray(widths, np.float64), np.asarray(ms, np.float64)
    off = y - fixed - per_row * x
    sse, free = float(np.square(off).sum()), len(x) - 2
    # What the best line leaves is at least the rounding of its own residuals.
    rest = max(best.sse, len(x) * float(np.square(np.spacing(np.abs(y).max()))))
    f = max(sse - best.sse, 0.0) / 2 / (rest / free)
    return Claim(fixed, per_row, sse, (float(off[x.argmin()]), float(off[x.argmax()])), float(stats.f.sf(f, 2, free)))


def _line(x: Array, y: Array) -> tuple[float, float, Array]:
    design = np.stack([np.ones_like(x), x], 1)
    (fixed, slope), *_ = np.linalg.lstsq(design, y, rcond=None)
    return float(fixed), float(slope), y - fixed - slope * x


def tokens_per_second(accepted: float, device_ms: float, host_ms: float) -> float:
    """1000 (1 + accepted) / (device + host): links in series."""
    return 1000 * (1 + accepted) / (device_ms + host_ms)


def break_even(device_ms: float, host_ms: float, classic_ms: float) -> float:
    """Accepted drafts per round at which a round costs what plain decoding of its tokens does (``classic_ms`` per token)."""
    return (device_ms + host_ms) / classic_ms - 1
