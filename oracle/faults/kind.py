"""What one kind of fault declares: the edit it makes, and all that lists, scores, hypotheses, ledgers and documents need of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from oracle.faults.grammar import Options
from oracle.readings import After, Edit, Fault, NotHereError, See, Stage
from oracle.tensor import Tensor


class Plant(NamedTuple):
    """A mistake in one call: ``edit`` of the call, ``after`` it what becomes of its values, ``see`` what every call shows it."""

    edit: Edit = lambda stage: stage
    after: After | None = None
    see: See | None = None


@dataclass(frozen=True)
class Kind:
    """One kind of call fault.

    ``ops``: the operations whose calls it edits (none named: any); ``stage``: the glob it acts on by default; ``defaults``: its own keys.
    ``reports``: the kinds of public reports it stands for (K1 to K35). ``dial``: the key that makes it milder or stronger.
    ``variants``: texts of its own keys, from gross to subtle, that the score plants and an explanation tries. ``knobs``: convention
    -> text of its own keys, what a case must be able to see to certify the convention. ``alike``: kinds that can make the same values.
    """

    name: str
    ops: tuple[str, ...]
    stage: str
    defaults: dict[str, str]
    make: Callable[[Options], Plant]
    about: str
    reports: tuple[str, ...] = ()
    dial: str = "rows, heads"
    variants: tuple[str, ...] = ("",)
    knobs: dict[str, str] = field(default_factory=dict)
    alike: tuple[str, ...] = ()

    def fault(self, options: Options, stage: str | None = None, rows: Any = None, heads: Any = None) -> Fault:
        """The fault these options describe. `FaultError` for a value that does not fit."""
        plant = self.make(options)
        return Fault(self.name, stage or self.stage, plant.edit, rows, heads, plant.after, plant.see, self.ops)


def params(stage: Stage, **changed: Any) -> Stage:
    """The call with parameters changed."""
    return replace(stage, params=stage.params | changed)


def args(stage: Stage, *given: Any) -> Stage:
    """The call with other arguments."""
    return replace(stage, args=given)


def filled(stage: Stage, index: int, value: float) -> Stage:
    """The call with every element of its argument ``index`` at ``value``."""
    given = list(stage.args)
    given[index] = Tensor(np.full_like(given[index].data, value), given[index].axes)
    return args(stage, *given)


def need(there: object, what: str) -> None:
    """`NotHereError` unless ``there``."""
    if not there:
        raise NotHereError(f"there is {what} here")
