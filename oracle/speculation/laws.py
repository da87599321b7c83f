"""Laws of the next token: temperature, top-k, top-p and min-p on one row of logits, and reduced draft vocabularies.

Source: `specs/dflash-generic.md` sections 11 and 13 (z-lab: temperature, top-k, softmax, top-p), `specs/muse-glimmer.md` 7.2 (Muser's
order; its float32 form with the order of draws is in `ordered`). A removed token has logit -inf; ties go to the lower id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.tensor import Array

ORDERS = {
    "z-lab": ("temperature", "top_k", "top_p", "min_p"),
    "muser": ("top_k", "top_p", "min_p", "temperature"),
}


class LawError(ValueError):
    """Logits or settings that describe no law."""


def softmax(logits: Array) -> Array:
    """Probabilities [vocab]. `LawError` for NaN, +inf, or nothing left."""
    top = logits.max(initial=-np.inf)
    if not np.isfinite(top) or np.isnan(logits).any():
        raise LawError("logits: expected numbers or -inf and at least one number, found NaN, +inf or only -inf")
    e = np.exp(logits - top)
    return np.asarray(e / e.sum())


def ranked(logits: Array) -> NDArray[np.intp]:
    """Token ids by falling logit, ties by rising id."""
    return np.argsort(-logits, kind="stable")


def temperature(logits: Array, t: float) -> Array:
    """logits / t; at 0 all but the first largest are removed."""
    if t > 0:
        return logits / t
    return _only(logits, ranked(logits)[:1])


def top_k(logits: Array, k: int) -> Array:
    """The k largest; 0 keeps all."""
    return logits if k <= 0 else _only(logits, ranked(logits)[:k])


def top_p(logits: Array, p: float) -> Array:
    """By falling probability while the sum of those before is below ``p``; never nothing."""
    if p >= 1:
        return logits
    order = ranked(logits)
    mass = softmax(logits)[order]
    before = np.cumsum(mass) - mass
    return _only(logits, order[: max(int((before < p).sum()), 1)])


def min_p(logits: Array, p: float) -> Array:
    """Those with at least ``p`` times the largest probability; 0 keeps all."""
    return logits if p <= 0 else np.where(logits >= logits.max() + np.log(p), logits, -np.inf)


def _only(logits: Array, kept: NDArray[np.intp]) -> Array:
    out = np.full_like(logits, -np.inf)
    out[kept] = logits[kept]
    return out


@dataclass(frozen=True)
class Sampling:
    """Settings of a request, and the order in which the engine applies them (a name of `ORDERS`). The default is the plain softmax.

    `LawError` for a setting that has no meaning.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    order: str = "z-lab"

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise LawError(f"order {self.order!r}: expected one of {', '.join(ORDERS)}")
        for name, low, high in (("temperature", 0.0, np.inf), ("top_k", 0, np.inf), ("top_p", 0.0, 1.0), ("min_p", 0.0, 1.0)):
            if not low <= getattr(self, name) <= high:
                raise LawError(f"{name} {getattr(self, name)}: expected {low} to {high}")

    def law(self, logits: Any) -> Array:
        """Probabilities [vocab], float64, of one row of logits [vocab]."""
        steps = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        row = np.asarray(logits, np.float64)
        softmax(row)
        for name in ORDERS[self.order]:
            row = steps[name](row, getattr(self, name))
        return softmax(row)


def target_ids(stored: NDArray[Any], form: str) -> NDArray[np.int64]:
    """The target id of every draft id [draft vocab]: ``offset`` (id = i + d2t[i]: speculators, vLLM) or ``absolute`` (GGUF).

    `LawError` for ids that repeat, are negative, or another form.
    """
    if form not in ("offset", "absolute"):
        raise LawError(f"d2t form {form!r}: expected offset or absolute")
    ids = np.asarray(stored, np.int64) + (np.arange(len(stored)) if form == "offset" else 0)
    if len(np.unique(ids)) != len(ids) or (ids < 0).any():
        raise LawError(f"d2t read as {form}: target ids repeat or are negative; is it stored in the other form?")
    return ids


def widened(q: Array, ids: NDArray[np.int64], vocab: int) -> Array:
    """A draft law over the reduced vocabulary [draft vocab] as one over the target's [vocab]: 0 for ids that no draft id maps to."""
    if len(q) != len(ids) or (len(ids) and ids.max() >= vocab):
        raise LawError(f"a draft law of {len(q)} tokens with {len(ids)} target ids below {int(ids.max(initial=-1)) + 1}, of {vocab}")
    out = np.zeros(vocab, q.dtype)
    out[ids] = q
    return out
