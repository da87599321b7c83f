"""Limits of the verdicts: how many standard deviations, per element, row and stage (`specs/noise-rules.md` sections 0 and 2)."""

from __future__ import annotations

import math

from scipy.stats import f as fisher

DELTA = 1e-6
SUSPECT = 5.0
COMMON_MODE = 8.0
INHERITED = 0.25  # of the variance that came with inputs, what is common to a row
ROLLED_DRIFT, ROLLED_DIVERGE = 6.0, 12.0

# kind -> (limit on a row's rms z for f32 results, for stored results, share of the variance common to a row, systematic part of z).
# The last is what a healthy libm leaves in the mean of z: vectorised exponentials are off by 0.04 sigma the same way in every row.
ROWS = {
    "linear": (2.0, 1.5, 0.0, 0.02),
    "elementwise": (1.5, 1.5, 0.0, 0.1),
    "norm": (4.7, 2.0, 0.5, 0.05),
    "attention": (3.5, 3.5, 0.25, 0.1),
    "structural": (1.5, 1.5, 0.0, 0.02),
}
SUMS = ("linear", "attention")


def gaussian(count: int) -> float:
    """λ(N) = sqrt(2 ln(2N/δ)): the largest of N Gaussians exceeds it with probability δ."""
    return math.sqrt(2 * math.log(2 * max(count, 1) / DELTA))


def exponential(count: int) -> float:
    """λe(N) = max(λ, ln(2N/δ)/1.7): the tail of a sum's error whose energy is known only on average."""
    return max(gaussian(count), math.log(2 * max(count, 1) / DELTA) / 1.7)


def pooled(kind: str, stored: bool, width: int, rows: int, inherited: float = 0.0) -> float:
    """Limit on the mean of signed z over ``rows`` distinct rows of ``width`` elements.

    ``inherited``: share of the variance that came with inputs which were not recorded. Rows may have it from the same cells or from the
    same earlier rows, so for it they all count as one, and a row's elements as common in part.
    """
    _, _, common, bias = ROWS[kind]
    own = ((0.0 if stored else common) + 1 / max(width, 1)) / max(rows, 1)
    shared = INHERITED + 1 / max(width, 1)
    return COMMON_MODE * math.sqrt((1 - inherited) * own + inherited * shared + bias**2)


def row(kind: str, stored: bool, width: int, rows: int, inherited: float = 0.0) -> float:
    """Limit on the rms z of one row of ``width`` elements: ``R² <= 1 + λr sqrt(κ/n) + λr² f_c``, at least the measured one.

    A row of few sums also holds one that lies as far out as the tail of sums reaches, ``R² <= 1 + λe(nN)²/n``: a gate of one value per
    row is not judged more strictly as a row than as an element.

    ``inherited``: share of the variance that came with inputs which were not recorded, common to the row in part.
    """
    f32, coarse, common, _ = ROWS[kind]
    n, spread = max(width, 1), gaussian(rows)
    formula = 1 + spread * math.sqrt((0.8 if stored else 8.0) / n) + (0.0 if stored else spread**2 * common)
    if kind in SUMS:
        formula = max(formula, 1 + exponential(rows * n) ** 2 / n)
    least = max(coarse if stored else f32, math.sqrt(formula))
    return math.sqrt(least**2 + spread**2 * INHERITED * inherited)


def rolled(width: int, rows: int, members: int) -> float:
    """Limit on a row's error over the spread of ``members`` healthy runs: 12, and what so few runs leave unknown of the spread.

    Errors of a row share a few directions (`specs/noise-rules.md` 2.3), so no more than two values of it count as independent: for Gaussian
    errors ``R² ~ F(n, n·members)``, which one of the rows exceeds with probability δ.
    """
    n = min(max(width, 1), 2)
    return max(ROLLED_DIVERGE, math.sqrt(float(fisher.isf(DELTA / max(rows, 1), n, n * max(members, 1)))))
