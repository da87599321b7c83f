"""Every fault of the catalogue as a hypothesis: planted in the diverging call in each of its variants, where it can act on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from oracle import faults
from oracle.readings import After, Stage
from oracle.tensor import Array, Tensor
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

    def apply(t: Tensor) -> Tensor:
        made = np.asarray(change(stage, t.data), np.float64)
        source = _moved_from(stage, change, t.data, made)
        if source is None:
            return replace(t, data=made, coarse=None)
        # Values that are moved take their errors along.
        var, acc, half = (np.broadcast_to(np.asarray(e), t.data.shape).ravel()[source] if np.ndim(e) else e for e in (t.var, t.acc, t.half))
        return Tensor(made, t.axes, var, acc, half)

    return apply


def _moved_from(stage: Stage, change: After, data: Array, made: Array) -> NDArray[np.intp] | None:
    """Where each element came from (its index in the flat array), if the change only moves elements; else None."""
    index = np.arange(data.size, dtype=np.float64).reshape(data.shape)
    moved = np.asarray(change(stage, index), np.float64)
    if moved.shape != data.shape or not np.isfinite(moved).all() or moved.min(initial=0) < 0 or moved.max(initial=0) >= max(data.size, 1):
        return None
    source = moved.astype(np.intp)
    return source if np.array_equal(source, moved) and np.array_equal(data.ravel()[source], made) else None
