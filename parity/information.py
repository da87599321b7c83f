"""Figures people know (cosine, NMSE, PCC, max-abs): printed beside a verdict, never part of it."""

from __future__ import annotations

import numpy as np

from oracle.tensor import Array


def figures(y: Array, c: Array) -> dict[str, float]:
    """``cosine``, ``nmse``, ``pcc`` of the flattened stages and ``max_abs`` of their difference."""
    a, b = y.ravel(), c.ravel()
    if not a.size:
        return {}
    difference = b - a
    energy, other, both = float(a @ a), float(b @ b), float(a @ b)
    n, mean_a, mean_b = a.size, float(a.mean()), float(b.mean())
    spread = np.sqrt(max(energy - n * mean_a**2, 0.0) * max(other - n * mean_b**2, 0.0))
    return {
        "cosine": both / np.sqrt(energy * other) if energy * other > 0 else float(energy == other),
        "nmse": float(difference @ difference) / energy if energy > 0 else float(other > 0),
        "pcc": (both - n * mean_a * mean_b) / float(spread) if spread > 0 else 1.0,
        "max_abs": float(max(difference.max(), -difference.min())),
        "largest": float(np.abs(a).max()),
    }
