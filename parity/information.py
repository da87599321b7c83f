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
    energy, other = float(a @ a), float(b @ b)
    ac, bc = a - a.mean(), b - b.mean()
    spread = float(np.sqrt((ac @ ac) * (bc @ bc)))
    return {
        "cosine": float(a @ b) / np.sqrt(energy * other) if energy * other > 0 else 1.0 if energy == other else 0.0,
        "nmse": float(difference @ difference) / energy if energy > 0 else float(np.any(difference)),
        "pcc": float(ac @ bc) / spread if spread > 0 else 1.0,
        "max_abs": float(np.abs(difference).max()),
    }
