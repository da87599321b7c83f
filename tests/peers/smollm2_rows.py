"""What is kept of SmolLM2's logits, and how far two such summaries are apart."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracle.tensor import Array

ROWS, STRIDE = 16, 2039


def summary(logits: Array) -> dict[str, Any]:
    """Of logits [row, vocab]: the argmax, mean and largest value of every row, and every 2039th column."""
    return {
        "picks": logits.argmax(-1).tolist(),
        "means": logits.mean(-1).tolist(),
        "largest": logits.max(-1).tolist(),
        "columns": logits[:, ::STRIDE].tolist(),
    }


def difference(mine: dict[str, Any], theirs: dict[str, Any]) -> float:
    """Largest absolute difference; infinite where a pick differs."""
    if mine["picks"] != theirs["picks"]:
        return float("inf")
    return float(np.max([np.abs(np.asarray(mine[k]) - np.asarray(theirs[k])).max() for k in ("means", "largest", "columns")]))
