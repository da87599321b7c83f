"""Tiny Qwen3.8-Flash-Next targets with closed weights: sizes of `specs/qwen38-flash-next.md` 1.10, an end mark inside the prompt."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from oracle import ngrams
from oracle.artifacts.qwen38_roles import HEAD, target_roles, target_weights
from oracle.models import Target
from oracle.recipes import Rope
from oracle.targets.qwen38_weights import Qwen38Geometry
from oracle.tensor import Array
from oracle.weights import Weight
from tests.peers import random_models as rm

END, SEED, BASE, DIVISOR = 5, 1234, 50, 16
TAPS = (0, 2, 3, 6, 7)


def geometry(ple_layers: tuple[int, ...] = (1,), gate: str = "sigmoid", layers: int = 8) -> Qwen38Geometry:
    """Sparse attention at layers 3 and 7; budget 8 in blocks of 4, so that 41 tokens really select."""
    hashes = {layer: ngrams.make(97, 3, 2, BASE, SEED, n, END) for n, layer in enumerate(ple_layers)}
    return Qwen38Geometry(
        "qwen38-flash-next", 32, 12, layers, 6, 2, 16, 97, 1e-6, Rope(1e4, 8), 0.25,
        streams=4, hc_rank=10, sparse=tuple(n % 4 == 3 for n in range(layers)), key_heads=2, value_heads=6, key_dim=8, value_dim=8,
        conv_taps=4, output_gate=gate, index_heads=3, index_dim=12, index_budget=8, index_ratio=4, experts=8, experts_per_token=3,
        shared_intermediate=20, ngrams=tuple(hashes.get(n) for n in range(layers)),
        ngram_rows=tuple(ngrams.table_rows(hashes[n], DIVISOR) if n in hashes else 0 for n in range(layers)), ple_dim=32, ple_taps=4,
    )  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One target and its tokens: ``rows`` ids, the end mark at ``ends``."""

    name: str
    rows: int = 41
    ple_layers: tuple[int, ...] = (1,)
    gate: str = "sigmoid"
    ends: tuple[int, ...] = (6, 7, 20)
    seed: int = 1

    @property
    def geometry(self) -> Qwen38Geometry:
        return geometry(self.ple_layers, self.gate)

    @property
    def ids(self) -> NDArray[np.int64]:
        unit = rm.uniform(self.seed, "ids", self.rows) / math.sqrt(12) + 0.5
        ids = np.floor(unit * 97).astype(np.int64)
        ids[[e for e in self.ends if e < self.rows]] = END
        return ids

    @cached_property
    def tensors(self) -> dict[str, Array]:
        """Every parameter by its Hugging Face name without ``model.``, in the file's shape, float64."""
        made = {}
        for key, role in target_roles(self.geometry).items():
            value = rm.uniform(self.seed, role.name, *role.shape)
            part = key.rsplit(".", 1)[-1]
            if part.endswith("norm"):
                value = 0.3 * value + (1.0 if key.endswith("delta.norm") else 0.0)
            elif part == "a_bias":
                value = np.log(0.6 + 0.28 * value)
            elif part in ("embedding", "table"):
                value = value.copy()
            else:
                value = value / math.sqrt(role.shape[-1])
            made[role.name] = value
        return made

    def target(self) -> Target:
        """The oracle's target, its weights kept in float64."""
        found = {k: Weight.of(self.tensors[r.name], r.axes, "f64", r.name) for k, r in target_roles(self.geometry).items()}
        return Target(self.geometry, target_weights(found, self.geometry))


CASES = [
    Case("41 rows"),
    Case("150 rows", rows=150, seed=2, ends=(0, 17, 18, 149)),
    Case("silu gate", gate="silu", seed=3),
    Case("two n-gram tables", ple_layers=(1, 5), seed=4),
    Case("no n-grams", ple_layers=(), seed=5, rows=70),
]


def wrong_readings(case: Case) -> dict[str, Target]:
    """Targets that read one of the case's conventions wrongly."""
    right, g = case.target(), case.geometry
    changes = {
        "rotary width": {"rope": replace(g.rope, dim=4)},
        "pairs": {"rope": replace(g.rope, style="interleaved")},
        "budget": {"index_budget": 12},
        "experts": {"experts_per_token": 2},
        "gate": {"output_gate": "silu" if case.gate == "sigmoid" else "sigmoid"},
        "scale": {"attn_scale": g.attn_scale * 1.01},
    }
    if case.ple_layers:
        changes["end mark"] = {"ngrams": tuple(n and replace(n, end=96) for n in g.ngrams)}
    return {name: replace(right, geometry=replace(g, **change)) for name, change in changes.items()}


def file_name(name: str) -> str:
    """The name in a text-only checkpoint."""
    return name if name == HEAD else f"model.{name}"


@dataclass(frozen=True)
class Rows:
    """``logits [row, vocab]`` and ``features [row, taps * dim]``."""

    logits: Array
    features: Array


def portioned(case: Case, portions: tuple[int, ...], rejected: int = 0, target: Target | None = None) -> Rows:
    """The oracle in windows of ``portions`` rows; each window runs ``rejected`` rows of other tokens ahead and takes them back."""
    target, state, at, found = target or case.target(), None, 0, []
    for count in portions:
        noise = (case.ids[:rejected] * 7 + 3) % 97
        out = target.window(np.concatenate([case.ids[at : at + count], noise]), state, TAPS)
        at += count
        state = out.state.keep(at)
        found.append((out.logits[:count], out.features[:count]))
    return Rows(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


Summary = dict[str, list[float]]


def summary(rows: Rows) -> Summary:
    """What a golden file keeps: the mean of every row, and the whole last row."""
    both = {"logits": rows.logits, "features": rows.features}
    means = {f"{name}_means": values.mean(-1).tolist() for name, values in both.items()}
    return means | {f"last_{name}": values[-1].tolist() for name, values in both.items()}


def summary_difference(mine: Summary, theirs: Summary) -> float:
    """Largest absolute difference of two summaries of the same rows."""
    return float(np.max([np.abs(np.subtract(mine[k], theirs[k])).max() for k in theirs]))
