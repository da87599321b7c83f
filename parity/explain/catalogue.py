"""Every fault of the catalogue as a hypothesis: planted in the diverging call in each of its variants, where it can act on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from oracle import faults
from oracle.readings import After, Stage
from oracle.tensor import Tensor
from parity.explain.base import Hypothesis, Suspect

EDITS_THAT_DO_NOT_FIT = (faults.FaultError, ValueError, KeyError, TypeError, AttributeError, IndexError)


def hypotheses(s: Suspect) -> Iterator[Hypothesis]:
    """Kinds that nothing named before, in their declared variants; an edit that does not fit the call, or changes nothing, is none.

    What a fault takes from an earlier call (a stale buffer) is found among the recorded stages instead.
    """
    for kind, variant in faults.acting_on(s.stage):
        try:
            fault = faults.parse(f"{kind.name}:{variant}")
            edited = fault.edit(s.stage)
        except EDITS_THAT_DO_NOT_FIT:
            continue
        if fault.see is not None or (edited is s.stage and fault.after is None):
            continue
        text = f"{kind.about}{f' ({variant})' if variant else ''}"
        yield Hypothesis(kind.name, text, edited, _after(s.stage, fault.after), fallback=True, parameters={"variant": variant})


def _after(stage: Stage, change: After | None) -> Callable[[Tensor], Tensor] | None:
    if change is None:
        return None
    return lambda t: replace(t, data=np.asarray(change(stage, t.data), np.float64))
