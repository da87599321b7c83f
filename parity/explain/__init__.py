"""Explanations: every mistake as a hypothesis, the diverging operation re-applied with it from recorded inputs.

A hypothesis is an explanation only when it brings every element of the diverging rows and heads back within noise; what fits best
comes first, what the data cannot tell from it stands beside it as a tie. Where no one mistake explains all of a stage, its rows (or
heads) are taken apart (`separate`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from parity.explain import catalogue, general, storage
from parity.explain.base import Hypothesis, Suspect
from parity.explain.fitting import Fit, Fitter, fits
from parity.explain.sources import SOURCES
from parity.judge import Judge

SHOWN = 5


@dataclass(frozen=True)
class Explanation:
    """A mistake that explains a divergence: ``ratio`` is the worst error / tolerance left once it is assumed.

    ``tie``: the data cannot tell it from the first one. ``parameters``: what was identified, as JSON values; ``details``: more lines.
    """

    kind: str
    text: str
    ratio: float
    tie: bool = False
    parameters: dict[str, Any] = field(default_factory=dict)
    details: tuple[str, ...] = ()


def explain(judge: Judge, suspect: Suspect, hints: frozenset[str] = frozenset()) -> list[Explanation]:
    """Explanations of one diverging stage, best first; empty where nothing fits.

    ``hints``: kinds found before in this run; where there are some, nothing else is tried.
    """
    found = fits(Fitter(judge, suspect), (h for h in _all(suspect) if not hints or h.kind in hints))
    return _ranked(found, storage.explanations(suspect, judge.arithmetic.order))


def _specific(s: Suspect) -> Iterator[Hypothesis]:
    """The mistakes of the operation, identified from the data."""
    for source in SOURCES.get(s.stage.op.name, ()):
        yield from source(s)


def _all(s: Suspect) -> Iterator[Hypothesis]:
    yield from _specific(s)
    yield from general.hypotheses(s)
    yield from catalogue.hypotheses(s)


def _ranked(found: list[Fit], stored: list[storage.Found]) -> list[Explanation]:
    """The best first, with those the data cannot tell from it (mistakes of the operation before general ones), then the rest."""
    out = [Explanation(*s) for s in stored]
    if found:
        best = min(found, key=lambda f: f.left)
        tied = sorted((f for f in found if f.same(best)), key=lambda f: f.hypothesis.general)
        rest = sorted((f for f in found if not f.same(best)), key=lambda f: f.left)
        out += [_explanation(f, i > 0 or bool(stored)) for i, f in enumerate(tied)] + [_explanation(f, False) for f in rest]
    unique: dict[tuple[str, str], Explanation] = {}
    for e in out:
        unique.setdefault((e.kind, e.text), e)
    return list(unique.values())[:SHOWN]


def _explanation(f: Fit, tie: bool) -> Explanation:
    h = f.hypothesis
    return Explanation(h.kind, h.text, f.left, tie, h.parameters, h.details)


__all__ = ["Explanation", "Suspect", "explain"]
