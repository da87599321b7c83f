"""The cases that the score is counted on: small and rich ones of every family and role, made from a seed.

Small on purpose: thousands of faults are planted. Rich: asymmetric weights, heads that share keys, windows inside the context, appends in
chunks, several rounds, windows that take rows back, norms away from one, rows of small norm.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from oracle.artifacts import make_artifact
from parity.case import Case, window
from parity.making import drafter_case, target_case

SMALL: dict[str, Any] = {"hidden": 64, "intermediate": 96, "heads": 4, "kv_heads": 2, "head_dim": 16, "vocab": 120}
BLOCKS = SMALL | {"hidden": 256, "intermediate": 256, "heads": 8, "head_dim": 32, "vocab": 80}
GENERIC = SMALL | {"layers": 2, "sliding": (True, False), "window": 9, "block_size": 6, "mask_token_id": 119, "target_layers": 6}
CAPPED = {"embed_scale": 2.5, "output_multiplier": 0.7, "softcap": 3.0, "attention_bias": True}
DFLASH2 = {"conv_kernel": 2, "conv_group": 16, "selector_rank": 32, "selector_top_k": 6}
DSPARK = {"markov_rank": 32, "markov": "rnn", "confidence": "markov", "sample_from_anchor": True, "draft_vocab": 40}
ROUNDS: dict[str, Any] = {"appends": (11, 6), "accepts": (2, 0)}

# name -> (family, role, weight format, overrides, dialect).
Recipe = tuple[str, str, str, dict[str, Any], dict[str, str]]
CASES: dict[str, Recipe] = {
    "qwen3": ("qwen3", "drafter", "f32", GENERIC | CAPPED, {}),
    "qwen3, DFlash 2": ("qwen3", "drafter", "bf16", GENERIC | DFLASH2, {}),
    "qwen3, DSpark": ("qwen3", "drafter", "f16", GENERIC | DSPARK | {"eps": 1e-5}, {}),
    "qwen3, sinks": ("qwen3", "drafter", "f32", GENERIC | {"sinks": "sliding"}, {}),
    "muse-glimmer": (
        "muse-glimmer",
        "drafter",
        "q4_k",
        BLOCKS | {"window": 9, "block_size": 6, "mask_token_id": 79},
        {"engine": "hf"},
    ),
    "muse-glimmer, ring with a sink": (
        "muse-glimmer",
        "drafter",
        "q4_1",
        SMALL | {"window": 9, "block_size": 6, "mask_token_id": 119},
        {"engine": "muser", "sink": "2"},
    ),
    "muse-glimmer target": (
        "muse-glimmer",
        "target",
        "q4_0",
        SMALL | {"layers": 3, "sliding": (True, False, True), "window": 5, "output_multiplier": 0.7},
        {},
    ),
    "laguna": (
        "laguna",
        "drafter",
        "bf16",
        SMALL | {"layers": 2, "tap_ids": (1, 3), "window": 9, "block_size": 6, "mask_token_id": 119},
        {},
    ),
    "laguna target": (
        "laguna",
        "target",
        "bf16",
        SMALL | {"layers": 3, "window": 5, "experts": 6, "experts_per_token": 2, "moe_intermediate": 32},
        {},
    ),
    "qwen38-flash-next": ("qwen38-flash-next", "drafter", "f32", SMALL | {"mask_token_id": 119}, {}),
    "qwen38-flash-next target": (
        "qwen38-flash-next",
        "target",
        "f32",
        {"hidden": 64, "vocab": 120, "mask_token_id": 119, "target_layers": 4, "tap_ids": (0, 1)},
        {},
    ),
    "llama target": (
        "llama",
        "target",
        "q5_0",
        SMALL | {"layers": 2, "llama3_scaling": (8.0, 1.0, 4.0, 16), "container": "gguf"},
        {},
    ),
}


def score_case(name: str, seed: int, root: Path) -> Case:
    """The case ``name`` of `CASES`, made under ``root``."""
    family, role, stored, overrides, dialect = CASES[name]
    folder = root / f"{name.replace(' ', '-').replace(',', '')}-{seed}"
    more = dict(overrides)
    role_of = {} if family == "llama" or (family == "qwen3") else {"role": role}
    made = sorted(folder.iterdir()) if folder.exists() else make_artifact(family, "tiny", stored, folder, seed=seed, **role_of, **more)
    if role == "target":
        return _target(made[0], name, seed)
    by_name = {p.stem.split("-")[0]: p for p in made}
    model, borrowed = by_name.get("drafter") or by_name["draft"], by_name["target"]
    return drafter_case(model, borrowed, family=family, dialect=dialect, **ROUNDS, seed=seed, name=name)


def _target(model: Path, name: str, seed: int) -> Case:
    """A prefill, a verify window, and a second one that takes the first one's last rows back."""
    case = target_case(model, prefill=11, block=5, seed=seed, name=name)
    again = np.random.default_rng([seed, 5]).integers(0, 100, 4)
    return replace(case, steps=(*case.steps, window(again, 13)))


def score_cases(root: Path, seeds: int, names: tuple[str, ...] = tuple(CASES)) -> Iterator[Case]:
    """Every case of ``names`` with every seed."""
    for seed in range(seeds):
        for name in names:
            yield score_case(name, seed, root)
