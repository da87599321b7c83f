"""Every fault of the catalogue as a hypothesis: planted in the diverging call with its own defaults, where it can act on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from oracle import faults
from oracle.readings import Fault
from oracle.tensor import Tensor
from parity.explain.base import Hypothesis, Suspect


def hypotheses(s: Suspect) -> Iterator[Hypothesis]:
    """Kinds that nothing identified before; an edit that does not fit the call, or changes nothing, is none."""
    for name, kind in faults.KINDS.items():
        try:
            fault = faults.parse(name)
            edited = fault.edit(s.stage)
        except (faults.FaultError, ValueError, KeyError, TypeError, AttributeError, IndexError):
            continue
        if edited is s.stage and fault.after is None:
            continue
        yield Hypothesis(name, _text(kind), edited, _after(fault), fallback=True)


def _text(kind: faults.Kind) -> str:
    defaults = ", ".join(f"{k}={v}" for k, v in kind.defaults.items())
    return f"{kind.about}{f' ({defaults})' if defaults else ''}"


def _after(fault: Fault) -> Callable[[Tensor], Tensor] | None:
    change = fault.after
    return None if change is None else lambda t: replace(t, data=change(t.data))
