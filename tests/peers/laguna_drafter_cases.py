"""The Laguna drafter that is compared with a second implementation: tensors by their published names, rounds past the window."""

from __future__ import annotations

import math
from dataclasses import replace

from oracle.artifacts.laguna import rearranged, roles
from oracle.artifacts.roles import drafter_weights
from oracle.drafters.dialect import Dialect, Geometry
from oracle.models import Drafter
from oracle.recipes import Rope
from oracle.tensor import Array
from oracle.weights import Weight
from tests.peers import random_models as rm

SIZES = rm.Sizes(hidden=24, intermediate=36, layers=3, heads=6, kv_heads=2, head_dim=10, taps=3, vocab=61, block=5)
EPS, THETA, WINDOW, SEED, TARGET_HIDDEN = 1e-6, 5e5, 9, 11, 24
PROMPT, ACCEPTED = 13, (0, 1, 2, 4, 3, 0, 4, 4, 1, 0, 0, 2)
TAIL = (3, 2)


def geometry() -> Geometry:
    return replace(rm.geometry(SIZES, (True,) * SIZES.layers, WINDOW), target_layers=6)


def tensors() -> dict[str, Array]:
    """Every tensor by its published name, q, k and v fused; float64, in the shape the file has."""
    made = {}
    for key, role in roles(geometry()).items():
        values = rm.uniform(SEED, role.name, *role.flat)
        made[role.name] = 1 + 0.3 * values if key.rsplit(".", 1)[-1].endswith("norm") else values / math.sqrt(role.flat[-1])
    return made


def drafter() -> Drafter:
    g = geometry()
    weights = {k: Weight.of(tensors()[r.name].reshape(r.shape), r.axes, "f64", r.name) for k, r in roles(g).items()}
    dialect = Dialect(
        "laguna", EPS, Rope(THETA, SIZES.head_dim), SIZES.head_dim**-0.5, causal=(True,) * SIZES.layers, window_rule="W_LT",
        window=WINDOW, tap_norm=True, ctx_layernorm=True, attn_gate="softplus",
    )  # fmt: skip
    return Drafter(g, dialect, drafter_weights(rearranged(g)(weights), g.layers))


def rounds() -> list[rm.Round]:
    return rm.schedule(SIZES, PROMPT, tuple(a + 1 for a in ACCEPTED), SEED, TAIL)


def features() -> Array:
    """Taps far from unit size and unlike each other, so that their norms show."""
    sizes = (0.2, 3.0, 40.0)
    rows = rm.feature_rows(SIZES, PROMPT + sum(a + 1 for a in ACCEPTED), SEED)
    for i, size in enumerate(sizes):
        rows[:, i * TARGET_HIDDEN : (i + 1) * TARGET_HIDDEN] *= size
    return rows


def outputs(made: Drafter | None = None, rejected: int = 0) -> rm.Outputs:
    """What the oracle gives in every round."""
    return rm.oracle_rounds(made or drafter(), rounds(), features(), *rm.vocabulary(SIZES, SEED), rejected)


def wrong() -> dict[str, Drafter]:
    """The other engines' readings and single mistakes, which are not this dialect."""
    right = drafter()
    d = right.dialect
    made = {engine: d.override({"engine": engine}) for engine in ("mlx-vlm", "speculators", "issue-1351")}
    made |= {"window + 1": replace(d, window=WINDOW + 1), "window - 1": replace(d, window=WINDOW - 1)}
    made |= {"no tap norms": replace(d, tap_norm=False), "no norm of the context": replace(d, ctx_layernorm=False)}
    made |= {"sigmoid gate": replace(d, attn_gate="sigmoid"), "no gate": replace(d, attn_gate="none")}
    made |= {"bidirectional": replace(d, causal=(False,) * SIZES.layers), "theta of the target": replace(d, rope=Rope(1e4, SIZES.head_dim))}
    return {name: replace(right, dialect=dialect) for name, dialect in made.items()}
