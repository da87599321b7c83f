"""Recording a run of a reading as a dump: the tape that writes every stage."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from oracle.arithmetic import Arithmetic
from oracle.readings import Reading, Stage
from oracle.tensor import Tensor
from parity.case import Case
from parity.models import run


class Sink(Protocol):
    """Where stages are put: a `dumps.DumpWriter`, or memory."""

    def put(
        self, step: int, stage: str, array: Any, row0: int = 0, dtype: str | None = None, axes: tuple[str, ...] | None = None
    ) -> Any: ...

    def announce(self, stage: str) -> Any: ...


class Recorder:
    """Announces nothing, judges nothing: puts each stage in the dump in the dtype the arithmetic stores it in."""

    def __init__(self, writer: Sink, arithmetic: Arithmetic | None) -> None:
        self.writer, self.arithmetic = writer, arithmetic

    def __call__(self, stage: Stage, value: Tensor, reading: Reading) -> Tensor:
        dtype = self._dtype(stage, value)
        data: Any = value.data.astype(np.int32) if dtype == "i32" else value.data
        if dtype == "bf16":
            data = (np.ascontiguousarray(value.data, np.float32).view(np.uint32) >> 16).astype(np.uint16)
        self.writer.put(stage.step, stage.path, data, dtype=dtype, axes=value.axes)
        return value

    def _dtype(self, stage: Stage, value: Tensor) -> str:
        if stage.op.kind == "choice":
            return "i32"
        if self.arithmetic is None:
            return "f64" if value.data.dtype == np.float64 else "f32"
        return self.arithmetic.stored(stage.path).name


class Announcing:
    """A reading that tells the dump which stage is about to run, so that a crash can be located."""

    def __init__(self, inner: Reading, writer: Sink) -> None:
        self.inner, self.writer = inner, writer

    def lift(self, data: Any, axes: tuple[str, ...]) -> Tensor:
        return self.inner.lift(data, axes)

    def apply(self, stage: Stage) -> Tensor:
        self.writer.announce(stage.path)
        return self.inner.apply(stage)


def record(case: Case, reading: Reading, writer: Sink, arithmetic: Arithmetic | None) -> None:
    """Run every step of the case in the reading and put every stage in the dump."""
    run(case, Announcing(reading, writer), Recorder(writer, arithmetic))
