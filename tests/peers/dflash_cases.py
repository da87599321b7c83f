"""The `qwen3` drafters that are compared with the official package: what its configuration says, and what the oracle makes of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from oracle.drafters.dialect import Dialect
from oracle.models import Drafter
from oracle.recipes import Rope
from oracle.tensor import Array
from tests.peers import random_models as rm

SIZES = rm.Sizes(hidden=24, intermediate=36, layers=3, heads=6, kv_heads=2, head_dim=10, taps=4, vocab=61, block=5)
EPS, THETA = 1e-6, 1e4
ACCEPTED = (0, 1, 2, 4, 3, 0, 4, 4, 1, 0, 0, 2)
COMMITS = tuple(a + 1 for a in ACCEPTED)
TAIL = (3, 2)


@dataclass(frozen=True)
class Case:
    """One configuration of the peer. ``layers``: ``s`` (sliding) or ``f`` (full) per layer; ``is_causal`` None: left out."""

    name: str
    layers: str = "fff"
    window: int | None = None
    is_causal: bool | None = None
    bias: bool = False
    embed_scale: float = 1.0
    multiplier: float = 1.0
    cap: float | None = None
    prompt: int = 7
    seed: int = 1

    def tensors(self) -> dict[str, Array]:
        return rm.drafter_tensors(SIZES, self.seed, self.bias)

    def rounds(self) -> list[rm.Round]:
        return rm.schedule(SIZES, self.prompt, COMMITS, self.seed, TAIL)

    def features(self) -> Array:
        return rm.feature_rows(SIZES, self.prompt + sum(COMMITS), self.seed)

    def drafter(self) -> Drafter:
        """The oracle's drafter: `specs/dflash-generic.md` sections 5 and 6, a sliding layer is causal unless told otherwise."""
        z, sliding = SIZES, tuple(letter == "s" for letter in self.layers)
        dialect = Dialect(
            "qwen3", EPS, Rope(THETA, z.head_dim), z.head_dim**-0.5,
            causal=sliding if self.is_causal is None else (self.is_causal,) * z.layers,
            window_rule="W_LT" if self.window else "none", window=self.window,
            embed_scale=self.embed_scale, output_multiplier=self.multiplier, softcap=self.cap,
        )  # fmt: skip
        return Drafter(rm.geometry(z, sliding, self.window), dialect, rm.oracle_weights(self.tensors(), z))

    def outputs(self, drafter: Drafter | None = None, rejected: int = 0) -> rm.Outputs:
        """What the oracle gives in every round."""
        return rm.oracle_rounds(drafter or self.drafter(), self.rounds(), self.features(), *rm.vocabulary(SIZES, self.seed), rejected)


CASES = [
    Case("full-bidirectional"),
    Case("full-causal", is_causal=True),
    Case("sliding-default", "sss", 4),
    Case("mixed", "sfs", 6),
    Case("sliding-bidirectional", "sss", 4, is_causal=False),
    Case("window-below-block", "sss", 3, is_causal=False),
    Case("attention-bias", bias=True),
    Case("scales-and-cap", embed_scale=2.5, multiplier=0.7, cap=3.0),
    Case("one-token-prompt", "sfs", 6, prompt=1),
]


def wrong_readings(case: Case) -> dict[str, Drafter]:
    """Drafters that read the case's conventions wrongly, each by one switch."""
    right = case.drafter()
    d = right.dialect
    wrong = {"causality flipped": replace(d, causal=tuple(not c for c in d.causal))}
    wrong |= {"theta": replace(d, rope=Rope(2 * THETA, SIZES.head_dim)), "pairs": replace(d, rope=replace(d.rope, style="interleaved"))}
    if d.window is not None:
        wrong |= {"window + 1": replace(d, window=d.window + 1), "window - 1": replace(d, window=d.window - 1)}
        wrong |= {"inclusive window": replace(d, window_rule="W_LE"), "window of the anchor": replace(d, window_rule="W_ANCHOR")}
    if d.softcap is not None:
        wrong |= {"no cap": replace(d, softcap=None), "no multiplier": replace(d, output_multiplier=1.0)}
        wrong |= {"no embedding scale": replace(d, embed_scale=1.0)}
    return {name: replace(right, dialect=dialect) for name, dialect in wrong.items()}
