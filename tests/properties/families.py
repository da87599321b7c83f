"""One small seeded model of every family, role and engine, opened through the loaders: what the properties are stated on.

Widths are tiny; weights are uneven on purpose (`oracle.artifacts.seeds`), norms far from 1; every window is shorter than the contexts.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import numpy as np

from oracle.artifacts import make_artifact, open_borrowed
from oracle.drafters.dialect import ENGINES
from oracle.models import Drafter, DrafterContext, Target, open_drafter, open_target
from oracle.tape import Record, Tape, passing
from oracle.tensor import Array
from oracle.weights import Weight

WINDOW, VOCAB, MASK, SINK = 5, 47, 46, 2
EXACTLY = 1e-11
_SIZES: dict[str, Any] = {"hidden": 24, "intermediate": 32, "heads": 4, "kv_heads": 2, "head_dim": 8, "vocab": VOCAB}
_GENERIC = _SIZES | {"layers": 3, "tap_ids": (1, 3, 4), "target_layers": 6, "mask_token_id": MASK, "block_size": 4, "window": WINDOW}
_GENERIC |= {"sliding": (True, False, True), "container": "safetensors"}
# A drafter's artifact: family and overrides; its scales and cap are on, so that their switches are felt.
ARTIFACTS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("qwen3", _GENERIC | {"attention_bias": True}),
    "qwen3 causal": ("qwen3", _GENERIC | {"is_causal": True, "embed_scale": 2.5, "output_multiplier": 0.7, "softcap": 20.0}),
    "dflash 2": ("qwen3", _GENERIC | {"conv_kernel": 3, "conv_group": 4, "selector_rank": 6, "selector_top_k": 4}),
    "dspark rnn": ("qwen3", _GENERIC | {"markov": "rnn", "markov_rank": 6, "confidence": "markov", "sample_from_anchor": True}),
    "dspark gated": ("qwen3", _GENERIC | {"markov": "gated", "markov_rank": 6, "confidence": "hidden", "sample_from_anchor": False}),
    "dspark vanilla": ("qwen3", _GENERIC | {"markov": "vanilla", "markov_rank": 6, "sample_from_anchor": False, "draft_vocab": 30}),
    "muse-glimmer": ("muse-glimmer", _SIZES | {"mask_token_id": MASK, "block_size": 4, "window": WINDOW}),
    "laguna": (
        "laguna",
        _SIZES | {"layers": 2, "tap_ids": (1, 3), "target_layers": 5, "mask_token_id": MASK, "block_size": 4, "window": WINDOW},
    ),
    "qwen38-flash-next": (
        "qwen38-flash-next",
        _SIZES | {"mask_token_id": MASK, "block_size": 4, "target_layers": 7, "tap_ids": (0, 1, 2, 4, 5)},
    ),
}
TARGETS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", _SIZES | {"layers": 3, "container": "safetensors"}),
    "muse-glimmer": ("muse-glimmer", _SIZES | {"layers": 4, "sliding": (True, True, False, True), "window": WINDOW}),
    "laguna": ("laguna", _SIZES | {"layers": 5, "window": WINDOW, "experts": 6, "experts_per_token": 2, "moe_intermediate": 8}),
    "qwen38-flash-next": (
        "qwen38-flash-next",
        {"hidden": 24, "vocab": VOCAB, "mask_token_id": MASK, "target_layers": 5, "ple_layers": (0, 1), "index_budget": 8},
    ),
}


@cache
def _made(kind: str, name: str) -> tuple[Path, ...]:
    root = Path(mkdtemp(prefix="parity-families-"))
    atexit.register(rmtree, root, True)
    family, overrides = (ARTIFACTS if kind == "drafter" else TARGETS)[name]
    role = "target" if kind == "target" and family != "llama" else None
    return tuple(make_artifact(family, "tiny", "f32", root, 5, overrides.get("container"), role, **_without(overrides)))


def _without(overrides: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in overrides.items() if k != "container"}


@dataclass(frozen=True, eq=False)
class Lent:
    """A drafter with what it borrows."""

    drafter: Drafter
    embedding: Weight
    head: Weight

    def context(self, rows: Array, portions: tuple[int, ...] = (), tape: Tape = passing) -> DrafterContext:
        """``rows`` of features committed in ``portions`` (default: at once)."""
        context, start = self.drafter.new_context(tape=tape), 0
        for n in portions or (len(rows),):
            context.append(rows[start : start + n], start)
            start += n
        return context

    def logits(self, context: DrafterContext, ids: Any = None, tape: Tape | None = None) -> Array:
        """[row, vocab] of a block after the context."""
        ids = block_ids(self.drafter) if ids is None else ids
        return np.asarray(self.drafter.propose(context, ids, self.embedding, self.head, tape=tape).logits.data)

    def stages(self, rows: Array, portions: tuple[int, ...] = (), rounds: tuple[int, ...] = ()) -> dict[tuple[int, str], Array]:
        """Every stage by (round, path) of a context, a block, and a block after each of the ``rounds`` (rows committed)."""
        tapes, context = [Record()], None
        first = len(rows) - sum(rounds)
        context = self.context(rows[:first], portions, tapes[0])
        self.logits(context, tape=tapes[0])
        for n in rounds:
            tapes.append(Record())
            context.append(rows[context.length : context.length + n], context.length, tape=tapes[-1])
            self.logits(context, tape=tapes[-1])
        return {(i, path): t.data for i, tape in enumerate(tapes) for path, t in tape.items()}

    def read(self, **switches: str) -> Lent:
        """The same weights under other switches of the dialect."""
        return self.under(self.drafter.dialect.override(switches))

    def under(self, dialect: Any) -> Lent:
        return replace(self, drafter=replace(self.drafter, dialect=dialect))

    def with_weights(self, weights: Any) -> Lent:
        return replace(self, drafter=replace(self.drafter, weights=weights))


@cache
def drafter(name: str) -> Lent:
    """A drafter of `ARTIFACTS` under the family's default dialect, or ``NAME/ENGINE``."""
    plain, _, engine = name.partition("/")
    paths = _made("drafter", plain)
    dialect = {"engine": engine} | ({"sink": str(SINK)} if engine == "muser" else {}) if engine else {}
    lent = open_borrowed(paths[1])
    return Lent(open_drafter(paths[0], dialect, ARTIFACTS[plain][0]), lent.embedding, lent.head)


@cache
def target(name: str) -> Target:
    return open_target(_made("target", name)[-1])


# Every drafter, those of families with several engines under each of them.
DRAFTERS = tuple(
    f"{name}/{engine}" if engine else name for name, (family, _) in ARTIFACTS.items() for engine in (ENGINES.get(family) or ("",))
)


def features(made: Drafter, rows: int, seed: int = 1) -> Array:
    """Taps of ``rows`` positions, [row, taps * width]."""
    width = len(made.geometry.tap_ids) * made.geometry.target_hidden
    values = np.random.default_rng(seed).standard_normal((rows, width))
    return values.astype(np.float32).astype(np.float64)


def block_ids(made: Drafter, rows: int = 0) -> list[int]:
    return [3] + [made.geometry.mask_token_id] * ((rows or made.geometry.block_size) - 1)


def tokens(rows: int, seed: int = 2) -> Array:
    return np.random.default_rng(seed).integers(0, VOCAB - 2, rows)


def parts(thing: Any, change: Callable[[Any], Any]) -> Any:
    """``thing`` (weights of a drafter or target) with every layer changed."""
    return replace(thing, layers=tuple(change(layer) for layer in thing.layers))


def names_of(thing: Any) -> set[str]:
    return {f.name for f in fields(thing)}
