"""Random Muse Glimmer cases: drafters under every engine's window, targets of any pattern."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from oracle.drafters.dialect import ENGINES
from parity.calibrating.draws import accepted, around, artifact, container, portions, sizes, weight_format
from parity.case import Case
from parity.making import drafter_case, target_case

FAMILY = "muse-glimmer"


def drafter(seed: int, root: Path) -> Case:
    """Five layers, a sink of one to four rows under the ring."""
    rng = np.random.default_rng([seed, 85])
    stored = weight_format(rng)
    shape, window = sizes(rng, stored), int(rng.integers(3, 14))
    shape |= {"block_size": int(rng.integers(2, 9)), "window": window, "mask_token_id": int(rng.integers(0, shape["vocab"]))}
    made = artifact(FAMILY, stored, root, seed, shape)
    dialect = {"engine": str(rng.choice(list(ENGINES[FAMILY])))}
    if dialect["engine"] == "muser":
        dialect["sink"] = str(int(rng.integers(1, 5)))
    appends, accepts = portions(rng, around(rng, window)), accepted(rng, shape["block_size"])
    name = f"random {seed} {FAMILY} drafter {stored} {dialect['engine']}"
    return drafter_case(
        made[0], made[1], family=FAMILY, dialect=dialect, appends=appends, context=0, accepts=accepts, seed=seed, name=name
    )


def target(seed: int, root: Path) -> Case:
    """Any depth, pattern and window, prefill and verify window around the window's edge."""
    rng = np.random.default_rng([seed, 78])
    stored = weight_format(rng)
    layers, window = int(rng.integers(1, 3)), int(rng.integers(2, 9))
    more: dict[str, Any] = {
        "layers": layers,
        "sliding": tuple(bool(s) for s in rng.integers(0, 2, layers)),
        "window": window,
        "theta": float(rng.choice([1e4, 5e5])),
        "output_multiplier": float(rng.choice([0.19611613513818404, 0.7, 2.0])),
        "softcap": float(rng.choice([3.0, 20.0])),
        "container": container(rng, stored),
        "role": "target",
    }
    made = artifact(FAMILY, stored, root, seed, sizes(rng, stored) | more)
    prefill, block = around(rng, window), int(rng.integers(1, 9))
    return target_case(made[0], prefill=prefill, block=block, seed=seed, name=f"random {seed} {FAMILY} target {stored}")
