"""Tapes: what happens to a stage once a reading has a value for it. A tape returns the value to go on with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from oracle.ops import OPS
from oracle.readings import Reading, Stage
from oracle.tensor import Axes, Tensor

Tape = Callable[[Stage, Tensor, Reading], Tensor]


def passing(stage: Stage, value: Tensor, reading: Reading) -> Tensor:
    """The tape that keeps nothing."""
    return value


class Record(dict[str, Tensor]):
    """Keeps every stage by its full path, in the order of the calls."""

    def __call__(self, stage: Stage, value: Tensor, reading: Reading) -> Tensor:
        self[stage.path] = value
        return value


class Machine:
    """What a forward is written against: ``m.rms_norm("xn", x, w, eps=…)`` names the stage, then the operation.

    Every operation of `oracle.ops.OPS` is a method taking the stage's name first. ``at(name)`` opens a scope.
    """

    def __init__(self, reading: Reading, tape: Tape = passing, scope: str = "", step: int = 0) -> None:
        self.reading, self.tape, self.scope, self.step = reading, tape, scope, step

    def at(self, name: str) -> Machine:
        return Machine(self.reading, self.tape, f"{self.scope}{name}.", self.step)

    def lift(self, data: Any, axes: Axes) -> Tensor:
        return self.reading.lift(data, axes)

    def positions(self, start: int, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.arange(start, start + count, dtype=np.int64)

    def __getattr__(self, name: str) -> Callable[..., Tensor]:
        if name not in OPS:
            raise AttributeError(f"no operation {name!r}; operations: {', '.join(OPS)}")
        operation = OPS[name]

        def call(stage: str, *args: Any, **params: Any) -> Tensor:
            made = Stage(self.scope + stage, operation, args, params, self.step)
            return self.tape(made, self.reading.apply(made), self.reading)

        return call
