"""What an adapter's engine computes, put in the dump where the mapping says, and what has no place counted."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from parity.adapters.mapping import Mapping, Stages, arranged
from parity.case import Case
from parity.models import declared_stages, rope_style

if TYPE_CHECKING:
    from dumps import DumpWriter


class Placer:
    """Puts named tensors of one run of ``case`` in a dump by the rules of a mapping."""

    def __init__(self, case: Case, rules: Mapping, writer: DumpWriter) -> None:
        self.case, self.rules, self.writer = case, rules, writer
        self.stages: Stages = {key: (axes, shape) for key, axes, shape in declared_stages(case)}
        self.style, self.absent = rope_style(case), Counter[str]()

    def take(self, step: int, name: str, dtype: str, values: NDArray[Any]) -> None:
        """The tensor ``name`` of a step; bf16 as uint16 words. `MappingError` where it does not fit its rule."""
        whole = self.rules.place(name, step=self.case.steps[step].kind)
        for place, part in whole.parts(self.stages, step) if whole is not None else ():
            if (step, place.path) not in self.stages:
                self.absent[f"{place.path} ({name})"] += 1
                continue
            axes, shape = self.stages[step, place.path]
            made = arranged(f"{self.rules.file.name}: {name}", values[..., part], place, axes, shape, self.style)
            self.writer.put(step, place.path, made, dtype=dtype, axes=axes)

    def picks(self, step: int, stage: str, logits: NDArray[Any]) -> None:
        """The engine's greedy choice from its logits [row, vocab]."""
        self.writer.put(step, stage, logits.argmax(-1).astype(np.int32), dtype="i32", axes=("row",))

    def finish(self) -> None:
        """Records how many tensors had no rule, and how many no stage."""
        for what, count in sorted((self.rules.unmapped + self.absent).items()):
            self.writer.put(0, f"unmapped: {what}"[:200], np.array([count], np.int64))
