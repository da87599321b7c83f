"""Random generic drafters, plain and with the parts of DFlash 2 and DSpark, and random Llama-style targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from parity.calibrating.draws import PLAIN_FORMATS, accepted, around, artifact, container, portions, sizes, weight_format
from parity.case import Case
from parity.making import drafter_case, target_case

FAMILY = "qwen3"


def drafter(seed: int, root: Path) -> Case:
    """Any depth, pattern of sliding layers, causality, biases, scales and cap, window rule; contexts around the window's edge."""
    rng = np.random.default_rng([seed, 77])
    stored = weight_format(rng)
    shape, dialect = _shape(rng, stored)
    return _case(rng, stored, shape, dialect, root, seed, "")


def dflash2(seed: int, root: Path) -> Case:
    """Convolutions of two to four taps, a selector, or both."""
    rng = np.random.default_rng([seed, 82])
    stored = str(rng.choice(PLAIN_FORMATS))
    shape, dialect = _shape(rng, stored)
    group = int(rng.choice([2, 4, 8]))
    shape |= {"hidden": group * int(rng.integers(2, 13))}
    parts = int(rng.integers(0, 3))
    if parts != 1:
        shape |= {"conv_kernel": int(rng.integers(2, 5)), "conv_group": group}
    if parts != 0:
        shape |= {"selector_rank": int(rng.integers(3, 17)), "selector_top_k": int(rng.integers(2, 9))}
    return _case(rng, stored, shape, dialect, root, seed, " dflash 2")


def dspark(seed: int, root: Path) -> Case:
    """A Markov head of each kind, a confidence head or both, either anchor layout, a reduced vocabulary or none."""
    rng = np.random.default_rng([seed, 83])
    stored = str(rng.choice(PLAIN_FORMATS))
    shape, dialect = _shape(rng, stored)
    kind, sure = str(rng.choice(["none", "vanilla", "gated", "rnn"])), str(rng.choice(["none", "hidden", "markov"]))
    if kind == "none":
        sure = "hidden"
    else:
        shape |= {"markov": kind, "markov_rank": int(rng.integers(3, 25))}
    shape |= {"confidence": sure, "sample_from_anchor": bool(rng.integers(0, 2)), "container": "safetensors"}
    if rng.random() < 0.4:
        shape |= {"draft_vocab": int(rng.integers(9, shape["vocab"]))}
    return _case(rng, stored, shape, dialect, root, seed, f" dspark {kind} {sure}")


def _shape(rng: Any, stored: str) -> tuple[dict[str, Any], dict[str, str]]:
    """(overrides of the artifact, switches of the dialect)."""
    layers, window = int(rng.integers(1, 4)), int(rng.integers(3, 14))
    sliding = tuple(bool(s) for s in rng.integers(0, 2, layers))
    shape = sizes(rng, stored) | {"layers": layers, "sliding": sliding, "target_layers": 6, "tap_ids": (1, 3, 4)}
    shape |= {"block_size": int(rng.integers(2, 9)), "mask_token_id": int(rng.integers(0, shape["vocab"]))}
    shape |= {"theta": float(rng.choice([1e4, 1e6])), "eps": float(rng.choice([1e-6, 1e-5])), "attention_bias": bool(rng.integers(0, 2))}
    causal = rng.integers(0, 3)
    shape |= {"is_causal": None if causal == 2 else bool(causal), "window": window if any(sliding) else None}
    if rng.random() < 0.4:
        shape |= {"embed_scale": float(rng.choice([2.5, 8.0])), "output_multiplier": 0.7, "softcap": float(rng.choice([3.0, 20.0]))}
    other = any(sliding) and rng.random() < 0.3
    return shape, {"window_rule": str(rng.choice(["W_LT_left", "W_LT_ctx", "W_ANCHOR", "W_RING"]))} if other else {}


def _case(rng: Any, stored: str, shape: dict[str, Any], dialect: dict[str, str], root: Path, seed: int, parts: str) -> Case:
    made = artifact(FAMILY, stored, root, seed, shape)
    context = around(rng, shape["window"] or 8)
    accepts = accepted(rng, shape["block_size"])
    name = f"random {seed} {FAMILY}{parts} {stored}"
    appends = portions(rng, context)
    return drafter_case(
        made[0], made[1], family=FAMILY, dialect=dialect, appends=appends, context=0, accepts=accepts, seed=seed, name=name
    )


def llama(seed: int, root: Path) -> Case:
    """A prefill, or none, and a verify window."""
    rng = np.random.default_rng([seed, 84])
    stored = weight_format(rng)
    shape = sizes(rng, stored) | {"container": container(rng, stored)}
    shape |= {"layers": int(rng.integers(1, 4)), "tied": bool(rng.integers(0, 2)), "theta": float(rng.choice([1e4, 5e5]))}
    made = artifact("llama", stored, root, seed, shape)
    prefill, block = int(rng.choice([0, 1, 9, 23])), int(rng.integers(1, 17))
    return target_case(made[0], prefill=prefill, block=block, seed=seed, name=f"random {seed} llama {stored}")


