"""Explanations: every mistake of the catalogue as a hypothesis, the diverging operation re-applied with it from recorded inputs.

A hypothesis is an explanation only when it brings every element of the diverging rows and heads back within noise; what fits best
comes first, and what fits as well stands beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from oracle.floats import BF16, F16
from oracle.readings import Noise
from oracle.tensor import Tensor
from parity.explain import attention, elementwise, linear, norm, rope
from parity.explain.base import Hypothesis, Source, Suspect
from parity.judge import Judge

SOURCES: dict[str, Source] = {
    "rope": rope.hypotheses,
    "rms_norm": norm.hypotheses,
    "attention": attention.hypotheses,
    "linear": linear.hypotheses,
    "swiglu": elementwise.swiglu,
    "gate": elementwise.gate,
    "softcap": elementwise.softcap,
    "add": elementwise.add,
    "gather": elementwise.gather,
}
SHOWN = 5
NEAR_MISS = 4.0


@dataclass(frozen=True)
class Explanation:
    """A mistake that explains a divergence: ``ratio`` is the worst error / tolerance left once it is assumed."""

    kind: str
    text: str
    ratio: float


def explain(judge: Judge, suspect: Suspect) -> list[Explanation]:
    """Explanations of one diverging stage, best first; empty where nothing fits."""
    reading = Noise(judge.arithmetic)
    found: list[Explanation] = []
    for h in _all(suspect):
        if h.fallback and any(e.kind == h.kind for e in found):
            continue
        ratio = _left(judge, reading, suspect, h)
        if ratio <= 1:
            found.append(Explanation(h.kind, h.text, ratio))
    found += _storage(suspect)
    best: dict[str, Explanation] = {}
    for e in sorted(found, key=lambda e: e.ratio):
        best.setdefault(e.text, e)
    return list(best.values())[:SHOWN]


def _all(suspect: Suspect) -> Iterator[Hypothesis]:
    source = SOURCES.get(suspect.stage.op.name)
    if source is not None:
        yield from source(suspect)
    yield from elementwise.moved(suspect)


def _left(judge: Judge, reading: Noise, suspect: Suspect, h: Hypothesis) -> float:
    """The worst error / tolerance in the diverging region under the hypothesis; of rows and of what is common to them too."""
    # A hypothesis may divide by zero or overflow: then it does not explain.
    with np.errstate(all="ignore"):
        y = reading.apply(h.stage)
        if h.after is not None:
            y = h.after(y)
        merged = _merged(suspect, y)
        # Most hypotheses are far off: only near misses are worth their exact partial sums.
        verdict = judge.judge(h.stage, merged, suspect.c, exact=False)
        if 1 < np.where(suspect.region, verdict.ratio, 0.0).max(initial=0.0) <= NEAR_MISS:
            verdict = judge.judge(h.stage, merged, suspect.c)
    worst = np.where(suspect.region, verdict.ratio, 0.0)
    left = max(float(worst.max(initial=0.0)), float(verdict.row_ratio[suspect.rows].max(initial=0.0)), verdict.common)
    return left if np.isfinite(left) else float("inf")


def _merged(suspect: Suspect, y: Tensor) -> Tensor:
    """The hypothesis inside the diverging region, the oracle's own value outside: the mistake is only there."""
    region = suspect.region

    def pick(new: Any, old: Any) -> Any:
        if np.ndim(new) == 0 and np.ndim(old) == 0 and new == old:
            return new
        shape = suspect.c.shape
        return np.where(region, np.broadcast_to(np.asarray(new), shape), np.broadcast_to(np.asarray(old), shape))

    o = suspect.y
    return Tensor(np.where(region, y.data, o.data), o.axes, pick(y.var, o.var), pick(y.acc, o.acc), pick(y.half, o.half))


def _storage(suspect: Suspect) -> list[Explanation]:
    """The oracle's own value, only stored more coarsely than declared: rounded or cut."""
    found, region = [], suspect.region
    c, y = suspect.c[region], suspect.y.data[region]
    for store in (BF16, F16):
        if store.holds(c).all() and not store.holds(y).all():
            for text, rounded in (("rounded", store.round(y)), ("cut", store.truncate(y))):
                same = float((rounded == c).mean())
                if same > 0.99:
                    found.append(
                        Explanation("storage", f"stored in {store.name} ({text}), not as declared (--arithmetic {store.name})", 1 - same)
                    )
    return found
