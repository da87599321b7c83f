"""Random Qwen3.8-Flash-Next cases: drafters over several rounds, targets around block and window edges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from parity.calibrating.draws import PLAIN_FORMATS, accepted, artifact, container, weight_format
from parity.case import Case
from parity.making import drafter_case, target_case

FAMILY = "qwen38-flash-next"


def drafter(seed: int, root: Path) -> Case:
    """A DeepSpec drafter of random shape on the taps of its own target."""
    rng = np.random.default_rng([seed, 80])
    stored = weight_format(rng)
    shape = _shape(rng, stored in PLAIN_FORMATS) | {"block_size": int(rng.integers(1, 8)), "theta": float(rng.choice([1e4, 1e7]))}
    made = artifact(FAMILY, stored, root, seed, shape | {"container": container(rng, stored)})
    accepts = accepted(rng, shape["block_size"])
    context = int(rng.choice([0, 1, 9, 21]))
    return drafter_case(
        made[0], made[1], family=FAMILY, context=context, accepts=accepts, seed=seed, name=f"random {seed} {FAMILY} drafter {stored}"
    )


def target(seed: int, root: Path) -> Case:
    """A target with a random budget, block width, head counts and n-gram layers; contexts just below, at and beyond the budget."""
    rng = np.random.default_rng([seed, 81])
    stored = str(rng.choice(PLAIN_FORMATS))
    ratio, keys = int(rng.choice([2, 3, 4])), int(rng.integers(1, 3))
    budget = ratio * int(rng.integers(1, 4))
    shape = _shape(rng, True) | {
        "index_ratio": ratio,
        "index_budget": budget,
        "key_heads": keys,
        "value_heads": keys * int(rng.integers(1, 4)),
        "experts_per_token": int(rng.integers(1, 5)),
        "output_gate": str(rng.choice(["sigmoid", "silu"])),
        "target_layers": int(rng.choice([2, 4, 4, 5])),
        "ple_layers": [(), (1,), (0, 1)][int(rng.integers(0, 3))],
        "theta": float(rng.choice([1e4, 1e7])),
        "role": "target",
    }
    made = artifact(FAMILY, stored, root, seed, shape)
    prefill = int(rng.choice([0, 1, budget - 1, budget, budget + ratio, 2 * budget + 5]))
    name = f"random {seed} {FAMILY} target {stored}"
    return target_case(made[-1], prefill=prefill, block=int(rng.integers(1, 9)), seed=seed, name=name)


def _shape(rng: Any, plain: bool) -> dict[str, Any]:
    if not plain:
        return {"vocab": int(rng.integers(40, 200)), "mask_token_id": 37}
    kv = int(rng.integers(1, 3))
    sizes = {"hidden": 8 * int(rng.integers(2, 9)), "intermediate": int(rng.integers(8, 97)), "vocab": int(rng.integers(40, 200))}
    return sizes | {"kv_heads": kv, "heads": kv * int(rng.integers(1, 4)), "head_dim": int(rng.choice([8, 16, 32])), "mask_token_id": 37}
