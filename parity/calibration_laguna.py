"""Random healthy Laguna cases for the calibration: drafters under every engine's window, targets with few and many experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from oracle.drafters.dialect import ENGINES
from parity.case import Case
from parity.making import drafter_case, target_case

FORMATS = ("f32", "bf16", "f16")


def random_laguna(seed: int, root: Path) -> Case:
    """A drafter's case (even seeds) or a target's (odd seeds), drawn from shapes, formats and contexts around the window's edge."""
    rng = np.random.default_rng([seed, 79])
    stored = str(rng.choice(FORMATS))
    kv, window = int(rng.integers(1, 4)), int(rng.integers(2, 14))
    shape = {"kv_heads": kv, "heads": kv * int(rng.integers(1, 4)), "head_dim": int(rng.choice([4, 8, 16, 32])), "window": window}
    shape |= {"hidden": int(rng.integers(8, 97)), "intermediate": int(rng.integers(8, 129)), "vocab": int(rng.integers(17, 200))}
    return (_target if seed % 2 else _drafter)(rng, stored, shape, root, seed)


def _make(root: Path, seed: int, stored: str, role: str, shape: dict[str, Any]) -> list[Path]:
    from oracle.artifacts import make_artifact

    return make_artifact("laguna", "tiny", stored, root / f"case-{seed}", seed=seed, role=role, **shape)


def _drafter(rng: Any, stored: str, shape: dict[str, Any], root: Path, seed: int) -> Case:
    rows, layers, window = int(rng.integers(2, 9)), int(rng.integers(1, 4)), shape["window"]
    shape |= {"block_size": rows, "mask_token_id": int(rng.integers(0, shape["vocab"])), "layers": layers}
    shape |= {"tap_ids": (1, 3, 5)[:layers], "naming": str(rng.choice(["published", "split"]))}
    made = _make(root, seed, stored, "drafter", shape)
    # A rotating cache's window is unknown to libraries: its cases would leave the fused entry out.
    engine = str(rng.choice([e for e in ENGINES["laguna"] if e != "mlx-vlm"]))
    context = int(rng.choice([1, window - 1, window, window + 1, 2 * window + 3]))
    first = int(rng.integers(0, context))
    accepts = [int(a) for a in rng.integers(0, rows, int(rng.integers(0, 3)))]
    appends = [n for n in (first, context - first) if n]
    name = f"random {seed} laguna drafter {stored} {engine}"
    dialect = {"engine": engine}
    return drafter_case(
        made[0], made[1], family="laguna", dialect=dialect, appends=appends, context=0, accepts=accepts, seed=seed, name=name
    )


def _target(rng: Any, stored: str, shape: dict[str, Any], root: Path, seed: int) -> Case:
    experts = int(rng.integers(2, 25))
    shape |= {"experts": experts, "experts_per_token": int(rng.integers(1, min(experts, 8) + 1)), "layers": int(rng.integers(2, 5))}
    shape |= {"moe_intermediate": int(rng.integers(4, 65)), "naming": str(rng.choice(["published", "packed"]))}
    made = _make(root, seed, stored, "target", shape)
    prefill, block = int(rng.choice([0, 1, 9, 23])), int(rng.integers(1, 17))
    return target_case(made[0], prefill=prefill, block=block, seed=seed, name=f"random {seed} laguna target {stored}")
