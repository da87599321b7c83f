"""A dump that lives in memory: for runs whose recording is judged in the same process and never read again."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dumps import Dump, StageRecord
from dumps.dtypes import STORED, widen

Key = tuple[int, str]


class MemoryRecord(StageRecord):
    """One stage's rows as they were put; the face of `dumps.StageRecord`."""

    def __init__(self, step: int, stage: str, dtype: str, axes: tuple[str, ...] | None) -> None:
        self.step, self.stage, self.dtype, self.axes = step, stage, dtype, axes
        self.parts: list[tuple[int, NDArray[Any]]] = []

    def add(self, row0: int, data: NDArray[Any]) -> None:
        self.parts.append((row0, data))
        self.parts.sort(key=lambda part: part[0])
        self.row0 = self.parts[0][0]
        self.rows = sum(len(d) for _, d in self.parts)
        self.shape = (self.rows, *data.shape[1:])

    @property
    def row_ids(self) -> NDArray[np.int64]:
        return np.concatenate([np.arange(r, r + len(d), dtype=np.int64) for r, d in self.parts])

    @property
    def contiguous(self) -> bool:
        last, data = self.parts[-1]
        return last + len(data) - self.row0 == self.rows

    def array(self) -> NDArray[Any]:
        return self.parts[0][1] if len(self.parts) == 1 else np.concatenate([d for _, d in self.parts])

    def float64(self) -> NDArray[np.float64]:
        return np.asarray(widen(self.array(), self.dtype), np.float64)


class MemoryDump(Dump):
    """Written by ``put`` as a `dumps.DumpWriter` is, read as a `dumps.Dump`; always complete."""

    def __init__(self, case: dict[str, Any], provenance: dict[str, Any]) -> None:
        super().__init__(Path("<memory>"), case, provenance, [], complete=True)
        self._memory: dict[Key, MemoryRecord] = {}

    def announce(self, stage: str) -> None:
        """Nothing survives the process, so there is nothing to leave behind."""

    def put(self, step: int, stage: str, array: Any, row0: int = 0, dtype: str | None = None, axes: tuple[str, ...] | None = None) -> None:
        """Rows ``row0 …`` of a stage, [row, ...], in the stored form of ``dtype`` (f32 where none is named)."""
        name = dtype or "f32"
        record = self._memory.setdefault((step, stage), MemoryRecord(step, stage, name, axes))
        record.add(row0, np.array(array, STORED[name]))

    def replace(self, step: int, stage: str, data: NDArray[Any], dtype: str) -> None:
        """All rows of a stage in place of what was recorded."""
        old = self._memory[step, stage]
        self._memory[step, stage] = MemoryRecord(step, stage, dtype, old.axes)
        self._memory[step, stage].add(0, data)

    def forget(self, step: int, stage: str) -> None:
        """The stage as if it had never been recorded."""
        del self._memory[step, stage]

    def without(self, names: Collection[str]) -> MemoryDump:
        made = MemoryDump(self.case, self.provenance)
        made._memory = {key: record for key, record in self._memory.items() if key[1].rpartition(".")[2] not in names}
        return made

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(sorted({step for step, _ in self._memory}))

    def stages(self, step: int) -> tuple[str, ...]:
        return tuple(stage for s, stage in self._memory if s == step)

    def get(self, step: int, stage: str) -> MemoryRecord | None:
        return self._memory.get((step, stage))
