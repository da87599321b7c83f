"""What all random cases are drawn from: weight formats, sizes that fit them, portions of a context, artifacts in a folder of their own."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

BLOCK_FORMATS = ("q8_0", "q4_0", "q4_1", "q5_0", "q4_k", "q5_k", "q6_k")
PLAIN_FORMATS = ("f32", "bf16", "f16")


def weight_format(rng: Any) -> str:
    """Blocks in four cases of ten, else a plain float."""
    return str(rng.choice(BLOCK_FORMATS if rng.random() < 0.4 else PLAIN_FORMATS))


def sizes(rng: Any, stored: str) -> dict[str, Any]:
    """Heads, widths and a vocabulary that matrices of the format can have."""
    kv = int(rng.integers(1, 4))
    heads = kv * int(rng.integers(1, 4))
    if stored in PLAIN_FORMATS:
        dim = int(rng.choice([4, 6, 8, 16, 32]))
        hidden, intermediate = int(rng.integers(8, 97)), int(rng.integers(8, 129))
    else:
        # Every matrix needs a multiple of its block on the input side, the attention width included.
        unit = 256 if stored.endswith("_k") else 32
        heads, kv, dim = (8, 2, 32) if unit == 256 else (4, 2, 16)
        hidden, intermediate = unit * int(rng.integers(1, 2 if unit == 256 else 4)), unit * int(rng.integers(1, 3))
    vocab = int(rng.integers(17, 200))
    return {"heads": heads, "kv_heads": kv, "head_dim": dim, "hidden": hidden, "intermediate": intermediate, "vocab": vocab}


def around(rng: Any, window: int, least: int = 0) -> int:
    """A context length at, beside and well beyond the window's edge, or hardly any."""
    return max(int(rng.choice([0, 1, window - 1, window, window + 1, 2 * window + 3])), least)


def portions(rng: Any, rows: int) -> list[int]:
    """``rows`` cut into up to three appends."""
    cuts = sorted(int(c) for c in rng.integers(0, rows + 1, int(rng.integers(0, 3)))) if rows > 1 else []
    edges = [0, *cuts, rows]
    return [b - a for a, b in pairwise(edges) if b > a]


def accepted(rng: Any, rows: int) -> list[int]:
    """How many drafts of a block of ``rows`` are accepted, in up to two more rounds."""
    return [int(a) for a in rng.integers(0, rows, int(rng.integers(0, 3)))]


def container(rng: Any, stored: str) -> str:
    """GGUF, or either where the format fits both."""
    return "gguf" if stored in BLOCK_FORMATS else str(rng.choice(["gguf", "safetensors"]))


def artifact(family: str, stored: str, root: Path, seed: int, overrides: dict[str, Any]) -> list[Path]:
    """The case's artifacts, under ``root``."""
    from oracle.artifacts import make_artifact

    return make_artifact(family, "tiny", stored, root / f"case-{seed}", seed=seed, **overrides)
