"""Dump faults: the engine is right and what was recorded of it is not (lesson 5 of the reports: the instrument lies).

The stage diverges, and so do the stages that read it: they are judged from what was recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.faults import FaultError, NotHereError, Options
from oracle.faults.values import words
from parity.memory import MemoryDump, MemoryRecord

Values = NDArray[Any]
Edit = Callable[[MemoryDump, MemoryRecord, Values], Values | None]


@dataclass(frozen=True)
class DumpFault:
    """``edit(dump, record, values)``: what the record holds instead, float64 like the values or of another shape; None: nothing at all."""

    kind: str
    stage: str
    edit: Edit

    def plant(self, dump: MemoryDump) -> str:
        """Edit the first record the fault fits; its stage path. `FaultError` where there is none."""
        for step in dump.steps:
            for stage in dump.stages(step):
                record = dump.get(step, stage)
                if record is None or not fnmatchcase(stage, self.stage) or record.dtype in ("i32", "i64"):
                    continue
                try:
                    made = self.edit(dump, record, record.float64())
                except NotHereError:
                    continue
                if made is None:
                    dump.forget(step, stage)
                else:
                    wide = record.dtype == "f64"
                    dump.replace(step, stage, made.astype("<f8" if wide else "<f4"), "f64" if wide else "f32")
                return stage
        raise FaultError(f"fault {self.kind}: no recorded stage matches {self.stage!r}, or none of them can hold it")


@dataclass(frozen=True)
class DumpKind:
    """One kind of dump fault; the fields are those of `oracle.faults.Kind`."""

    name: str
    stage: str
    defaults: dict[str, str]
    make: Callable[[Options], Edit]
    about: str
    reports: tuple[str, ...]
    dial: str = ""
    variants: tuple[str, ...] = ("",)
    knobs: dict[str, str] = field(default_factory=dict)
    alike: tuple[str, ...] = ()


def _rows(y: Values) -> None:
    if len(y) < 2:
        raise NotHereError("there is a single row here")


def _swapped(o: Options) -> Edit:
    a, b = o.integer("a"), o.integer("b")

    def edit(dump: MemoryDump, record: MemoryRecord, y: Values) -> Values:
        if max(a, b) >= len(y) or min(a, b) < 0 or np.array_equal(y[a], y[b]):
            raise NotHereError("there are no such two rows here")
        out = y.copy()
        out[[a, b]] = y[[b, a]]
        return out

    return edit


def _words(o: Options) -> Edit:
    was = o.choice("stored", "bf16", "f16")
    return lambda dump, record, y: words(y, was, "f16" if was == "bf16" else "bf16")


def _stale(_: Options) -> Edit:
    def edit(dump: MemoryDump, record: MemoryRecord, y: Values) -> Values:
        for step in (s for s in dump.steps if s < record.step):
            before = dump.get(step, record.stage)
            if before is not None and before.shape == record.shape:
                return before.float64()
        raise NotHereError("there is no earlier step of this shape here")

    return edit


def _other(_: Options) -> Edit:
    """The record of another stage of the same step and shape, under this one's name."""

    def edit(dump: MemoryDump, record: MemoryRecord, y: Values) -> Values:
        for stage in dump.stages(record.step):
            other = dump.get(record.step, stage)
            if other is not None and stage != record.stage and other.shape == record.shape and not np.array_equal(other.float64(), y):
                return other.float64()
        raise NotHereError("there is no other stage of this shape here")

    return edit


def _zero(_: Options) -> Edit:
    return lambda dump, record, y: np.zeros_like(y)


def _nan(_: Options) -> Edit:
    def edit(dump: MemoryDump, record: MemoryRecord, y: Values) -> Values:
        out = y.copy()
        out.reshape(len(y), -1)[-1, 0] = np.nan
        return out

    return edit


def _short(_: Options) -> Edit:
    def edit(dump: MemoryDump, record: MemoryRecord, y: Values) -> Values:
        _rows(y)
        return y[:-1]

    return edit


def _layout(_: Options) -> Edit:
    """The last two axes written in the other order."""

    def edit(dump: MemoryDump, record: MemoryRecord, y: Values) -> Values:
        if y.ndim < 2 or min(y.shape[-2:]) < 2:
            raise NotHereError("there are no two axes here")
        return np.ascontiguousarray(np.swapaxes(y, -1, -2)).reshape(y.shape)

    return edit


def _missing(_: Options) -> Edit:
    return lambda dump, record, y: None


KINDS = (
    DumpKind(
        "dump.rows",
        "*.xn",
        {"a": "0", "b": "1"},
        _swapped,
        "two rows exchanged in the record",
        ("K33", "K3"),
        "a, b",
        alike=("values.rows",),
    ),
    DumpKind(
        "dump.words",
        "*.h_mlp",
        {"stored": "f16"},
        _words,
        "16-bit words of one float format recorded as the other",
        ("K33", "K26"),
        "stored",
        ("stored=f16", "stored=bf16"),
        alike=("values.words",),
    ),
    DumpKind(
        "dump.stale", "*.attn", {}, _stale, "the record of an earlier step under this step's name", ("K33", "K29"), alike=("values.stage",)
    ),
    DumpKind("dump.other", "*.k_raw", {}, _other, "another stage's record under this one's name", ("K33", "K29"), alike=("values.stage",)),
    DumpKind("dump.zero", "*.xn_mlp", {}, _zero, "zeros recorded", ("K33",), alike=("values.zero",)),
    DumpKind("dump.nan", "*.mlp_act", {}, _nan, "one element is no number", ("K33", "K31")),
    DumpKind("dump.short", "*.o", {}, _short, "the last row not recorded", ("K33",)),
    DumpKind("dump.layout", "*.q_rope", {}, _layout, "the last two axes in the other order", ("K33", "K35")),
    DumpKind("dump.missing", "*.v", {}, _missing, "the stage not recorded (seen only with --require)", ("K33",)),
)
