"""Values that are not finite spread: which stages are so only because what they are computed from is.

The oracle goes on with its own values where the candidate's are NaN or infinite, so every later stage that they reach would be one more
divergence. A tensor is followed by its identity from the stage that made it to those that read it; what is read from a cache, or cut
from a larger one, has another, and is taken to be reached where values were not finite in an earlier step or have spread before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakValueDictionary

from oracle.readings import Stage
from oracle.tensor import Tensor


class Spreading:
    """Asked before a stage is compared (`reaches`), told afterwards (`note`)."""

    def __init__(self) -> None:
        # Weak, so that no value is kept alive for this; the entry goes with its tensor, before its id is another's.
        self._made: WeakValueDictionary[int, Tensor] = WeakValueDictionary()
        self._reached: WeakValueDictionary[int, Tensor] = WeakValueDictionary()
        self._steps: set[int] = set()
        self._spread = False

    def reaches(self, stage: Stage) -> tuple[bool, bool]:
        """(surely, perhaps) computed from values of the candidate that are not finite."""
        inputs = list(_tensors(stage.args))
        surely = any(id(t) in self._reached for t in inputs)
        elsewhere = any(id(t) not in self._made for t in inputs)
        return surely, surely or (elsewhere and (self._spread or any(step < stage.step for step in self._steps)))

    def note(self, stage: Stage, y: Tensor, *, reached: bool, finite: bool, on: bool) -> None:
        """The stage went on with ``y``. ``finite``: the candidate's values were; ``reached``: its inputs were not; ``on``: whoever reads it
        is reached."""
        self._made[id(y)] = y
        if on:
            self._reached[id(y)] = y
        if not finite:
            self._steps.add(stage.step)
            self._spread |= reached


def _tensors(args: Any) -> Iterator[Tensor]:
    for a in args:
        if isinstance(a, Tensor):
            yield a
        elif isinstance(a, tuple):
            yield from _tensors(a)
