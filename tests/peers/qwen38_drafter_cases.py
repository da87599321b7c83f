"""A DeepSpec drafter with closed weights and twelve rounds: forced accept counts, one narrow block, every row of a block read."""

from __future__ import annotations

import numpy as np

from oracle.drafters.dialect import Dialect
from oracle.drafters.qwen38_flash_next import Round
from oracle.models import Drafter
from oracle.recipes import Rope
from oracle.tensor import Array
from tests.peers import random_models as rm

SIZES = rm.Sizes(hidden=24, intermediate=36, layers=5, heads=6, kv_heads=2, head_dim=10, taps=5, vocab=61, block=7)
EPS, THETA, SEED, PROMPT = 1e-6, 1e7, 11, 9
ACCEPTED = (0, 7, 1, 3, 0, 6, 4, 2, 7, 5, 0, 1)
NARROW = 3


def widths() -> list[int]:
    """Rows of every round's block; the one after ``NARROW`` accepted rounds is narrower."""
    return [4 if i == NARROW else SIZES.block for i in range(len(ACCEPTED) + 1)]


def drafter(layout: str = "predict_next", causal: bool = False, theta: float = THETA) -> Drafter:
    z = SIZES
    rope = Rope(theta, z.head_dim)
    dialect = Dialect("qwen38-flash-next", EPS, rope, z.head_dim**-0.5, anchor_layout=layout, causal=(causal,) * z.layers)
    return Drafter(rm.geometry(z, (False,) * z.layers, None), dialect, rm.oracle_weights(rm.drafter_tensors(z, SEED), z))


def rounds() -> list[rm.Round]:
    """The rounds of the bookkeeping: forced picks accept ``ACCEPTED`` candidates of each block, the next anchor is a random token."""
    tokens = iter(np.floor((rm.uniform(SEED, "picks", 200) / np.sqrt(12) + 0.5) * (SIZES.vocab - 1)).astype(int).tolist())
    now, made, start = Round(next(tokens), PROMPT), [], 0
    for width, accepted in zip(widths(), (*ACCEPTED, 0), strict=True):
        made.append(rm.Round(start, now.position, now.block(width, SIZES.mask_id, SIZES.block)))
        accepted = min(accepted, width)
        candidates = [next(tokens) for _ in range(width)]
        picks = candidates[:accepted] + [(c + 1) % SIZES.mask_id for c in candidates[accepted:]] + [next(tokens)]
        outcome = now.verified(candidates, picks)
        assert outcome.accepted == accepted
        start, now = now.position, outcome.next
    return made


def features() -> Array:
    return rm.feature_rows(SIZES, rounds()[-1].position, SEED)


def outputs(made: Drafter | None = None, rejected: int = 0) -> rm.Outputs:
    """What the oracle gives in every round."""
    return rm.oracle_rounds(made or drafter(), rounds(), features(), *rm.vocabulary(SIZES, SEED), rejected)
