"""What is known of a run beside the diverging call: the other recorded stages, the weights of the other calls, the case."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from oracle.readings import Reading, Shapes, Stage
from oracle.tensor import Array, Tensor
from oracle.weights import Weight

if TYPE_CHECKING:
    from dumps import Dump
    from parity.case import Case

LAYER = re.compile(r"\.L(\d+)\.")


@dataclass(frozen=True, eq=False)
class World:
    """``dump``: the candidate's recorded stages; ``repeats``: dumps of further runs of the same candidate; ``case``: what was run.

    Everything may be absent (`NOWHERE`): an explanation then knows the diverging call only.
    """

    dump: Dump | None = None
    case: Case | None = None
    repeats: tuple[Dump, ...] = ()

    @cached_property
    def calls(self) -> dict[str, Stage]:
        """Every call of the case by path (of the first step that has it), with its weights; tensors are shapes only."""
        found: dict[str, Stage] = {}
        if self.case is None:
            return found
        from parity.models import run

        def tape(stage: Stage, value: Tensor, reading: Reading) -> Tensor:
            found.setdefault(stage.path, stage)
            return value

        run(self.case, Shapes(), tape)
        return found

    def recorded(self, step: int, path: str) -> Array | None:
        """The candidate's values of a stage, float64, or None."""
        record = None if self.dump is None else self.dump.get(step, path)
        return None if record is None else np.asarray(record.float64())

    def stages(self, step: int) -> list[str]:
        return [] if self.dump is None or step not in self.dump.steps else list(self.dump.stages(step))

    def shape(self, step: int, path: str) -> tuple[int, ...]:
        record = None if self.dump is None else self.dump.get(step, path)
        return () if record is None else tuple(record.shape)

    def argument(self, path: str, index: int) -> Any:
        """Argument ``index`` of the call ``path`` (a weight, a recipe), or None."""
        call = self.calls.get(path)
        return call.args[index] if call is not None and len(call.args) > index else None

    def other_weights(self, stage: Stage, w: Weight) -> Iterator[tuple[str, Weight]]:
        """(path, weight) of the same place in the other layers, then of the same shape in the same layer."""
        layer = LAYER.search(stage.path)
        for near in (False, True):
            for path, call in self.calls.items():
                other = call.args[1] if len(call.args) > 1 else None
                if path == stage.path or not isinstance(other, Weight) or other is w or call.op.name != stage.op.name:
                    continue
                if near:
                    mine = layer is not None and f".L{layer[1]}." in path and other.shape == w.shape
                else:
                    mine = layer is not None and LAYER.sub(".L*.", path) == LAYER.sub(".L*.", stage.path)
                if mine and (other.row_count, other.width) == (w.row_count, w.width):
                    yield path, other

    def other_experts(self, stage: Stage, experts: tuple[Weight, ...]) -> Iterator[tuple[str, tuple[Weight, ...]]]:
        """(path, the experts' weights) of the same place in the other layers."""
        here = LAYER.sub(".L*.", stage.path)
        for path, call in self.calls.items():
            if path != stage.path and call.op.name == stage.op.name and LAYER.sub(".L*.", path) == here:
                other = call.args[2]
                if len(other) == len(experts) and other[0].shape == experts[0].shape:
                    yield path, other

    @property
    def target_hidden(self) -> int | None:
        """Width of one tap of the case's drafter, or None."""
        if self.case is None or self.case.role != "drafter":
            return None
        from parity.models import open_case_model

        drafter = open_case_model(self.case).drafter
        return None if drafter is None else int(drafter.geometry.target_hidden)


NOWHERE = World()
