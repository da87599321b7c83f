"""Making cases: seeded steps for a drafter (rounds of append and propose) or a target (prefill, then a verify window)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from oracle.models import Drafter, Target, open_drafter, open_target
from oracle.tensor import Array
from parity.case import Case, Step, append, propose, window
from parity.errors import UsageError
from parity.models import whole_target

TARGETS = ("llama",)
DEFAULT_CONTEXT = 48
# Token ids of the context noted in a case, so that its taps can be formed again.
MAX_NOTED = 1 << 16


def is_target(family: str) -> bool:
    return family in TARGETS


def drafter_case(
    model: str | Path,
    borrowed: str | Path,
    *,
    family: str | None = None,
    dialect: dict[str, str] | None = None,
    block: int | None = None,
    context: int = DEFAULT_CONTEXT,
    appends: Sequence[int] = (),
    accepts: Sequence[int] = (),
    seed: int = 0,
    name: str | None = None,
) -> Case:
    """A drafter's case: the context in ``appends`` (row counts; default one), a block, then one round per entry of ``accepts``.

    A round commits ``accept + 1`` rows (the anchor and the accepted drafts) and proposes again. Features are the taps of the
    borrowed model when that is a whole target of the right width, else seeded with a few massive channels.
    """
    model, borrowed = Path(model), Path(borrowed)
    drafter = open_drafter(model, dialect or {}, family)
    g = drafter.geometry
    rows = block or g.block_size
    if not 1 <= rows <= g.block_size:
        raise UsageError(f"--block {rows}: this drafter's block is 1 to {g.block_size} rows")
    if any(not 0 <= a < max(rows, 1) for a in accepts):
        raise UsageError(f"accepts {list(accepts)}: each is 0 to {rows - 1}, the drafts of a block of {rows}")
    counts = list(appends) or ([context] if context else [])
    total = sum(counts) + sum(a + 1 for a in accepts)
    rng = np.random.default_rng(seed)
    ids, features, source = _stream(drafter, borrowed, total, rng)
    steps: list[Step] = []
    position = 0
    for n in counts:
        steps.append(append(features[position : position + n], position))
        position += n
    steps.append(propose(_block(ids[position], g.mask_token_id, rows), position))
    for accepted in accepts:
        steps.append(append(features[position : position + accepted + 1], position))
        position += accepted + 1
        steps.append(propose(_block(ids[position], g.mask_token_id, rows), position))
    notes: dict[str, Any] = {"features": source, "context": sum(counts), "accepts": list(accepts)}
    if source != "seeded" and position <= MAX_NOTED:
        notes["tokens"] = [int(i) for i in ids[:position]]
    label = name or f"{drafter.dialect.family} drafter, {position} rows, {len(accepts) + 1} blocks"
    return Case(label, drafter.dialect.family, "drafter", model, tuple(steps), borrowed, dict(dialect or {}), seed, notes)


def _block(anchor: int, mask: int, rows: int) -> list[int]:
    return [int(anchor)] + [mask] * (rows - 1)


def _stream(drafter: Drafter, borrowed: Path, rows: int, rng: Any) -> tuple[Array, Array, str]:
    """Token ids [rows + 1] and features [rows, taps * dim]: of the borrowed target where it is one, else seeded."""
    g = drafter.geometry
    ids = _tokens(rng, rows + 1, g.vocab)
    target = whole_target(borrowed)
    fits = target is not None and target.geometry.hidden == g.target_hidden and max(g.tap_ids) < target.geometry.layers
    if target is not None and fits and rows:
        ids = _tokens(rng, rows + 1, target.geometry.vocab, target)
        return ids, target.window(ids[:rows], taps=g.tap_ids).features, f"taps {list(g.tap_ids)} of {borrowed.name}"
    features = rng.standard_normal((rows, len(g.tap_ids) * g.target_hidden)) * rng.uniform(0.3, 3.0, (1, len(g.tap_ids) * g.target_hidden))
    massive = rng.integers(0, features.shape[1], 3)
    features[:, massive] *= 40
    return ids, features, "seeded"


def _tokens(rng: Any, count: int, vocab: int, target: Target | None = None) -> Any:
    """Seeded token ids [count]; ids that stand for an image or video in the target become the first token."""
    ids = rng.integers(0, vocab, count)
    return ids if target is None else np.where(np.isin(ids, getattr(target.geometry, "placeholders", ())), 0, ids)


def target_case(
    model: str | Path,
    *,
    prefill: Sequence[int] | int = DEFAULT_CONTEXT,
    block: Sequence[int] | int = 16,
    seed: int = 0,
    name: str | None = None,
) -> Case:
    """A target's case: ``prefill`` tokens (ids, or how many seeded ones), then a verify window of ``block`` tokens after them."""
    model = Path(model)
    target = open_target(model)
    rng = np.random.default_rng(seed)

    def tokens(what: Sequence[int] | int) -> list[int]:
        return [int(t) for t in (_tokens(rng, what, target.geometry.vocab, target) if isinstance(what, int) else what)]

    first, second = tokens(prefill), tokens(block)
    steps = ([window(first, 0)] if first else []) + ([window(second, len(first))] if second else [])
    if not steps:
        raise UsageError("a target's case needs at least one token (--context, --block or --prompt)")
    label = name or f"{target.geometry.family} target, prefill {len(first)}, window {len(second)}"
    return Case(
        label,
        target.geometry.family,
        "target",
        model,
        tuple(steps),
        None,
        {},
        seed,
        {"tokens": "seeded" if isinstance(prefill, int) else "given"},
    )
