"""Random Laguna cases: drafters under every engine's window, targets with few and many experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from oracle.drafters.dialect import ENGINES
from parity.calibrating.draws import PLAIN_FORMATS, accepted, around, artifact
from parity.case import Case
from parity.making import drafter_case, target_case

FAMILY = "laguna"


def drafter(seed: int, root: Path) -> Case:
    """One to three layers, split or fused projections; a prompt in one or two appends."""
    rng = np.random.default_rng([seed, 79])
    stored, shape = _sizes(rng)
    rows, layers, window = int(rng.integers(2, 9)), int(rng.integers(1, 4)), shape["window"]
    shape |= {"block_size": rows, "mask_token_id": int(rng.integers(0, shape["vocab"])), "layers": layers}
    shape |= {"tap_ids": (1, 3, 5)[:layers], "naming": str(rng.choice(["published", "split"])), "role": "drafter"}
    made = artifact(FAMILY, stored, root, seed, shape)
    engine = str(rng.choice(list(ENGINES[FAMILY])))
    context = around(rng, window, least=1)
    first, accepts = int(rng.integers(0, context)), accepted(rng, rows)
    appends = [n for n in (first, context - first) if n]
    name = f"random {seed} {FAMILY} drafter {stored} {engine}"
    return drafter_case(
        made[0], made[1], family=FAMILY, dialect={"engine": engine}, appends=appends, context=0, accepts=accepts, seed=seed, name=name
    )


def target(seed: int, root: Path) -> Case:
    """A prefill, or none, and a verify window; two to four layers."""
    rng = np.random.default_rng([seed, 86])
    stored, shape = _sizes(rng)
    experts = int(rng.integers(2, 25))
    shape |= {"experts": experts, "experts_per_token": int(rng.integers(1, min(experts, 8) + 1)), "layers": int(rng.integers(2, 5))}
    shape |= {"moe_intermediate": int(rng.integers(4, 65)), "naming": str(rng.choice(["published", "packed"])), "role": "target"}
    made = artifact(FAMILY, stored, root, seed, shape)
    prefill, block = int(rng.choice([0, 1, 9, 23])), int(rng.integers(1, 17))
    return target_case(made[0], prefill=prefill, block=block, seed=seed, name=f"random {seed} {FAMILY} target {stored}")


def _sizes(rng: Any) -> tuple[str, dict[str, Any]]:
    stored = str(rng.choice(PLAIN_FORMATS))
    kv, window = int(rng.integers(1, 4)), int(rng.integers(2, 14))
    shape = {"kv_heads": kv, "heads": kv * int(rng.integers(1, 4)), "head_dim": int(rng.choice([4, 8, 16, 32])), "window": window}
    shape |= {"hidden": int(rng.integers(8, 97)), "intermediate": int(rng.integers(8, 129)), "vocab": int(rng.integers(17, 200))}
    return stored, shape
