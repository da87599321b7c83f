"""Choosing a case that can see: lengths, portions and values under which every convention of the dialect is certified.

Tried in turn, each kept if it certifies more: the case as asked, a context that crosses the window, appends in two portions with another
round behind them, other seeded values. What no trial certifies is said, with the factor by which it falls short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from oracle.arithmetic import Arithmetic
from parity.case import Case
from parity.models import declared_stages, open_case_model
from parity.sensitivity import Sensitivity, ledger

Options = dict[str, Any]
# A context longer than this is not chosen by itself: the oracle would run for minutes.
LONGEST, SEEDS = 4096, 3


@dataclass(frozen=True)
class Certified:
    """A case with its ledger, and the options that differ from those that were asked."""

    case: Case
    entries: list[Sensitivity]
    changed: Options

    @property
    def blind(self) -> list[Sensitivity]:
        return [e for e in self.entries if not e.certified]


def certify(build: Callable[[Options], Case], asked: Options, arithmetic: Arithmetic) -> Certified:
    """The best case of the trials; ``build`` makes one from options as `parity case make` has them."""
    best = _ledger(build(asked), arithmetic, {})
    for change in _trials(best, asked):
        # Another portion or length may show more conventions; other values only help where some are not told.
        if not best.blind and "seed" in change:
            break
        tried = _ledger(build(asked | best.changed | change), arithmetic, best.changed | change)
        if len(tried.blind) < len(best.blind) or len(tried.entries) > len(best.entries):
            best = tried
    return best


def _ledger(case: Case, arithmetic: Arithmetic, changed: Options) -> Certified:
    count = sum(int(np.prod(shape)) for _, _, shape in declared_stages(case))
    return Certified(case, ledger(case, arithmetic, count), changed)


def _trials(first: Certified, asked: Options) -> Iterator[Options]:
    window = open_case_model(first.case).geometry.get("window")
    context = asked["context"]
    if isinstance(window, int) and window + 2 > context and not asked["appends"] and window + 8 <= LONGEST:
        context = window + 8
        yield {"context": context}
    if first.case.role == "drafter" and not asked["appends"] and not asked["accepts"] and context > 4:
        yield {"appends": (context - 3, 3), "accepts": (1, 0)}
    for seed in range(1, SEEDS + 1):
        yield {"seed": asked["seed"] + seed}


def lines(made: Certified) -> list[str]:
    """What the case certifies, what was changed for it, and what it cannot see."""
    seen = ", ".join(e.knob for e in made.entries if e.certified)
    text = [f"certified: {seen or 'nothing'}"]
    if made.changed:
        text.append("chosen for that: " + ", ".join(f"{k}={v}" for k, v in made.changed.items()))
    for e in made.blind:
        window = open_case_model(made.case).geometry.get("window")
        why = f": the context must be longer than the window of {window}" if e.knob.startswith("window") and e.factor == 0 else ""
        text.append(f"NOT certified: {e.knob}, its mistake is {e.factor:.2g} of what could be told{why}")
    return text
