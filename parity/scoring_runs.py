"""Faults that are no single call, run to the end: case and step faults, artifact faults, dump faults, and a sample of call faults.

Where a mistake must show first is read from the oracle: the first stage in causal order at which the oracle with the mistake differs from
the healthy one. Everything before it is equal, so its difference over the tolerance there is the information limit.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from oracle import arithmetic as arithmetics
from oracle.artifacts import ArtifactError
from oracle.drafters.dialect import DialectError
from oracle.drafters.forward import ContextError
from oracle.faults import FaultError
from oracle.readings import Exact, Noise, Reading, Stage
from oracle.tensor import Array, Tensor
from parity.case import Case
from parity.comparing import compare_dump
from parity.errors import UsageError
from parity.faults import KINDS, parse, type_of
from parity.faults.planting import edited_case, record_planted
from parity.memory import MemoryDump
from parity.models import declared_stages, run
from parity.recording import record
from parity.report import Report
from parity.scoring_calls import Outcome, named, placed
from parity.scoring_rules import seen_by
from parity.sight import Sight

if TYPE_CHECKING:
    from native import Context

Key = tuple[int, str]
# A wrong artifact may be refused, a wrong case may not fit: then the mistake cannot go unseen.
REFUSED = (FaultError, UsageError, ContextError, ArtifactError, DialectError, ValueError)


@dataclass
class Expected:
    """Where a mistake shows first, and by how much: |difference| / tolerance and whether it differs, element by element."""

    key: Key
    factors: Array
    differs: NDArray[np.bool_]
    axes: tuple[str, ...]


def specs(case: Case, types: tuple[str, ...]) -> Iterator[str]:
    """Every variant of the kinds of these types."""
    for kind in KINDS.values():
        if type_of(kind) in types and getattr(kind, "role", case.role) == case.role:
            for variant in kind.variants:
                yield f"{kind.name}:{variant}" if variant else kind.name


def expectations(case: Case, arithmetic: str, texts: list[str], scratch: Path) -> dict[str, Expected]:
    """The oracle with each mistake against the healthy oracle; a mistake that cannot be made in the case is left out."""
    A = arithmetics.named(arithmetic)
    healthy = MemoryDump(case.describe(), {})
    record(case, Exact(), healthy, None)
    order = [key for key, _, _ in declared_stages(case)]
    first: dict[str, tuple[Key, Array]] = {}
    for number, text in enumerate(texts):
        wrong = MemoryDump(case.describe(), {})
        try:
            record_planted(case, Exact(), text, wrong, None, scratch / f"oracle-{number}")
        except REFUSED:
            continue
        found = next((key for key in order if _differs(healthy, wrong, key)), None)
        if found is not None:
            kept = wrong.get(*found)
            first[text] = found, np.empty(0) if kept is None else kept.float64()
    return _measured(case, A, first)


def _differs(a: MemoryDump, b: MemoryDump, key: Key) -> bool:
    mine, theirs = a.get(*key), b.get(*key)
    if mine is None or theirs is None:
        return mine is not theirs
    return mine.shape != theirs.shape or not np.array_equal(mine.float64(), theirs.float64(), equal_nan=True)


def _measured(case: Case, A: arithmetics.Arithmetic, first: dict[str, tuple[Key, Array]]) -> dict[str, Expected]:
    sight = Sight(A, sum(int(np.prod(shape)) for _, _, shape in declared_stages(case)))
    found: dict[str, Expected] = {}

    def tape(stage: Stage, y: Tensor, reading: Reading) -> Tensor:
        for text, (key, wrong) in first.items():
            if key == stage.key:
                shaped = wrong if wrong.shape == y.data.shape else np.empty(0)
                differs = np.ones(y.data.shape, bool) if shaped.size == 0 else ~(shaped == y.data)
                found[text] = Expected(key, sight.factors(stage, y, shaped), differs, y.axes)
        sight.see(stage, y)
        return Tensor(y.data, y.axes)

    run(case, Noise(A), tape)
    return found


def judged(case: Case, dump: MemoryDump, arithmetic: str, required: tuple[str, ...] = ("*",)) -> Report:
    """Local mode; ``required``: stages that must have been recorded (a fused candidate does not record them all)."""
    return compare_dump(case, dump, arithmetics.named(arithmetic), mode="local", required=required)


def outcome(case: Case, candidate: str, text: str, limit: Expected, report: Report) -> Outcome:
    """What the report of a faulty run says of the fault."""
    kind = text.partition(":")[0]
    made = Outcome(case.name, candidate, kind, text, float(limit.factors.max(initial=0.0)), type_of(KINDS[kind]))
    made.rules = seen_by([s for s in report.stages if (s.step, s.stage) == limit.key], candidate)
    if f"{limit.key[0]}:{limit.key[1]}" in report.missing:
        made.found = made.stage = made.place = True
        made.named, made.said = 1, "missing"
        return made
    if not report.divergences:
        return made
    d = report.divergences[0]
    made.found = True
    made.stage = (d.step, d.stage) == limit.key
    made.place = made.stage and placed(report.divergences, limit.differs, limit.factors, limit.axes)
    made.named, made.said = named(d, kind)
    return made


def planted_runs(case: Case, reading: Reading, candidate: str, scratch: Path, types: tuple[str, ...]) -> Iterator[Outcome]:
    """Every fault of these types, run op by op in the reading and compared whole."""
    A = arithmetics.named("f32" if candidate == "cpu" else candidate)
    texts = list(specs(case, types))
    limits = expectations(case, candidate, texts, scratch)
    for number, (text, limit) in enumerate(limits.items()):
        dump = MemoryDump(case.describe(), {"candidate": candidate, "fault": text})
        try:
            record_planted(case, reading, text, dump, A, scratch / f"run-{number}")
        except REFUSED:
            continue
        yield outcome(case, candidate, text, limit, judged(case, dump, candidate))


def fused_runs(case: Case, context: Context, scratch: Path) -> Iterator[Outcome]:
    """Case and artifact faults in the shipped library's fused drafter: it is fed the wrong case and says it ran the right one."""
    from parity.native_drafter import run_fused

    texts = list(specs(case, ("case or step", "artifact")))
    for number, (text, limit) in enumerate(expectations(case, "cpu", texts, scratch).items()):
        try:
            wrong = edited_case(case, parse(text), scratch / f"fused-{number}")
        except REFUSED:
            continue
        dump = MemoryDump(case.describe(), {"candidate": "cpu (fused)", "fault": text})
        run_fused(wrong, context, dump)
        yield outcome(case, "cpu (fused)", text, limit, judged(case, dump, "cpu", ()))


def sampled_calls(
    case: Case, reading: Reading, candidate: str, outcomes: list[Outcome], count: int, seed: int
) -> Iterator[tuple[str, bool]]:
    """A sample of the call faults found, run to the end: (spec, whether nothing but the planted stage diverges, and that one first)."""
    A = arithmetics.named("f32" if candidate == "cpu" else candidate)
    above = [o for o in outcomes if o.above and o.found]
    rng = np.random.default_rng([seed, zlib.crc32(case.name.encode())])
    for i in rng.permutation(len(above))[:count]:
        text = above[int(i)].spec
        stage = next(part.removeprefix("stage=") for part in text.partition(":")[2].split(",") if part.startswith("stage="))
        dump = MemoryDump(case.describe(), {"candidate": candidate, "fault": text})
        record_planted(case, reading, text, dump, A, Path())
        said = [d.stage for d in judged(case, dump, candidate).divergences]
        changed_shape = text.startswith("router.top_k")
        yield text, bool(said) and said[0] == stage and (changed_shape or set(said) == {stage})
