"""The Muse assistant that is compared with Transformers: sizes, rounds, and the oracle's reading of them."""

from __future__ import annotations

from dataclasses import replace

from oracle.drafters.dialect import Dialect
from oracle.models import Drafter
from oracle.recipes import Rope
from oracle.tensor import Array
from tests.peers import random_models as rm

SIZES = rm.Sizes(hidden=48, intermediate=64, layers=5, heads=6, kv_heads=3, head_dim=16, taps=3, vocab=61, block=5)
EPS, THETA, WINDOW, SEED = 1e-5, 5e5, 9, 2
PROMPT, COMMITS = 13, (1, 3, 5, 1, 1, 2, 4, 5, 3)


def tensors() -> dict[str, Array]:
    return rm.drafter_tensors(SIZES, SEED)


def rounds() -> list[rm.Round]:
    return rm.schedule(SIZES, PROMPT, COMMITS, SEED)


def features() -> Array:
    return rm.feature_rows(SIZES, PROMPT + sum(COMMITS), SEED)


def drafter() -> Drafter:
    """The muse-glimmer dialect: every layer slides, bidirectional, ``|q - k| <= W`` (`specs/muse-glimmer.md` 3.4, mode ``hf``)."""
    z, sliding = SIZES, (True,) * SIZES.layers
    dialect = Dialect(
        "muse-glimmer", EPS, Rope(THETA, z.head_dim), z.head_dim**-0.5, causal=(False,) * z.layers, window_rule="W_LE", window=WINDOW
    )
    return Drafter(rm.geometry(z, sliding, WINDOW), dialect, rm.oracle_weights(tensors(), z))


def outputs(made: Drafter | None = None, rejected: int = 0) -> rm.Outputs:
    """What the oracle gives in every round."""
    return rm.oracle_rounds(made or drafter(), rounds(), features(), *rm.vocabulary(SIZES, SEED), rejected)


def wrong_masks() -> dict[str, Drafter]:
    """The masks of other engines and rules, which are not this model's."""
    right = drafter()
    d = right.dialect
    wrong = {
        "W_LT_left": replace(d, window_rule="W_LT_left"),
        "W_LT": replace(d, window_rule="W_LT"),
        "none": replace(d, window_rule="none"),
        "causal": replace(d, causal=(True,) * SIZES.layers),
        "window + 1": replace(d, window=WINDOW + 1),
        "W_ANCHOR": replace(d, window_rule="W_ANCHOR"),
        "SINK_RING": replace(d, window_rule="SINK_RING", sink=2),
    }
    return {name: replace(right, dialect=dialect) for name, dialect in wrong.items()}
