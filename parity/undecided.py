"""Choices that were not recorded and could be others: what follows them is not judged, and a report says so.

An unrecorded choice is taken from scores that carry noise. Where another lies within that noise, nothing is known of what is looked up
by it (`oracle.ops.open_choices`), up to the next stage that was recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from oracle.ops.open_choices import UNKNOWN
from oracle.readings import Stage
from oracle.tensor import Tensor
from parity.render import spans

SHOWN = 4


@dataclass
class Undecided:
    """What the local comparison met: ``choices`` and the recorded stages ``behind`` them, each (step, path, rows)."""

    choices: list[tuple[int, str, list[int]]] = field(default_factory=list)
    behind: list[tuple[int, str, list[int]]] = field(default_factory=list)

    def choice(self, stage: Stage, y: Tensor) -> None:
        """A stage that was not recorded."""
        if stage.op.kind == "choice" and (rows := _rows(y)):
            self.choices.append((stage.step, stage.path, rows))

    def judged(self, stage: Stage, y: Tensor) -> None:
        """A recorded stage, with the value it is held against."""
        if rows := _rows(y):
            self.behind.append((stage.step, stage.path, rows))

    def note(self) -> str:
        """One line for the report; empty where nothing was left unjudged."""
        if not self.behind:
            return ""
        rows = sum(len(r) for _, _, r in self.behind)
        return (
            f"not judged: {rows} rows of {len(self.behind)} recorded stages ({_named(self.behind)}), which follow choices that were not "
            f"recorded and could be others within noise ({_named(self.choices)}): record these choices, or the scores that they are made on"
        )


def _rows(y: Tensor) -> list[int]:
    """Rows with an element of which nothing is known: its deviation is beyond any value of a forward."""
    if np.ndim(y.var) == 0:
        return []
    unknown = y.variance() > UNKNOWN * 2.0**-120
    return [int(r) for r in np.flatnonzero(unknown.reshape(len(unknown), -1).any(1))]


def _named(places: list[tuple[int, str, list[int]]]) -> str:
    shown = [f"{path}, step {step}, row {spans(rows)}" for step, path, rows in places[:SHOWN]]
    return "; ".join(shown) + ("; …" if len(places) > SHOWN else "")
