"""Call faults, planted one by one at one call each: what local mode says of that call, on the candidate's own recorded inputs.

Local mode judges a stage from the inputs its candidate recorded, and everything before a planted mistake is what the healthy candidate
computed: the verdict on the planted call alone is therefore the first divergence of the whole faulty run, at the price of one call.
`parity.scoring_runs` runs a sample of the same faults to the end, to count what else diverges.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.arithmetic import Arithmetic
from oracle.faults import KINDS, parse
from oracle.readings import Exact, Fault, Noise, Reading, Stage
from oracle.tensor import Array, Tensor
from parity.case import Case
from parity.explain.world import World
from parity.faults import KINDS as ALL
from parity.judge import Judge
from parity.local import Local
from parity.memory import MemoryDump, MemoryRecord
from parity.models import run
from parity.recording import Recorder
from parity.report import Divergence, StageResult
from parity.scoring_rules import seen_by
from parity.sight import CERTIFIED, Sight, wrong_values

PLACES, GENERIC_PLACES = 3, 2


@dataclass
class Outcome:
    """One planted fault under one candidate: what it was, what the lab could see of it, and what it said.

    ``factor``: the information limit, largest |difference| / tolerance on the oracle alone. ``place``: rows and heads exact.
    ``named``: place of its kind among the explanations (1 is first, 0 is not among them).
    """

    case: str
    candidate: str
    kind: str
    spec: str
    factor: float
    type: str = "call"
    found: bool = False
    stage: bool = False
    place: bool = False
    named: int = 0
    said: str = ""
    rules: list[str] = field(default_factory=list)

    @property
    def above(self) -> bool:
        return self.factor >= CERTIFIED


@dataclass
class Plan:
    """A fault to plant at one of ``paths``; ``best`` is the outcome of largest factor so far."""

    kind: str
    text: str
    faults: dict[str, tuple[Fault, Fault]]
    specs: dict[str, str]
    best: Outcome | None = None


class Overlay(MemoryDump):
    """A dump with one stage in place of another's."""

    def __init__(self, base: MemoryDump) -> None:
        super().__init__(base.case, base.provenance)
        self.base = base

    @property
    def steps(self) -> tuple[int, ...]:
        return self.base.steps

    def stages(self, step: int) -> tuple[str, ...]:
        return self.base.stages(step)

    def get(self, step: int, stage: str) -> MemoryRecord | None:
        return super().get(step, stage) or self.base.get(step, stage)


def places(calls: list[tuple[int, str, str, tuple[int, ...], tuple[str, ...]]], seed: int) -> list[Plan]:
    """One plan per variant of the catalogue that can act in the case: seeded places, and often a row or some heads only.

    ``calls``: (step, path, operation, shape, axes) of every stage in causal order.
    """
    plans = []
    by_path = {path: (op, shape, axes) for _, path, op, shape, axes in calls}
    for kind in KINDS.values():
        fitting = [p for p, (op, _, _) in by_path.items() if (op in kind.ops if kind.ops else op not in ("argmax", "given", "cells"))]
        for text in kind.variants:
            rng = np.random.default_rng([seed, zlib.crc32(f"{kind.name}:{text}".encode())])
            chosen = [fitting[i] for i in rng.permutation(len(fitting))[: PLACES if kind.ops else GENERIC_PLACES]]
            specs = {
                p: f"{kind.name}:{','.join(filter(None, (text, f'stage={p}', _extent(rng, kind.name, *by_path[p][1:]))))}" for p in chosen
            }
            if specs:
                plans.append(Plan(kind.name, text, {p: (parse(s), parse(s)) for p, s in specs.items()}, specs))
    return plans


# Their own parameters say which rows or cells, or they change the shape.
WHOLE: tuple[str, ...] = ("values.rows", "values.heads", "values.swapped", "values.stride", "values.torn")
WHOLE += ("router.top_k", "mask.embedding", "attention.extra")


def _extent(rng: np.random.Generator, kind: str, shape: tuple[int, ...], axes: tuple[str, ...]) -> str:
    """Half of the faults are planted everywhere, the others in one row, or in some heads of all rows."""
    dice = rng.random()
    if kind in WHOLE or kind.startswith("cells.") or axes[0] != "row":
        return ""
    if dice < 0.25 and shape[0] > 1:
        return f"rows={int(rng.integers(0, shape[0]))}"
    if dice < 0.5 and "head" in axes and shape[axes.index("head")] > 2:
        heads = shape[axes.index("head")]
        first = int(rng.integers(0, heads - 1))
        return f"heads={first}-{int(rng.integers(first, heads - 1))}"
    return ""


class Planter:
    """The tape of one oracle pass over the healthy candidate's dump: judges it, and every planned fault at its own call."""

    def __init__(self, case: Case, dump: MemoryDump, inner: Reading, arithmetic: Arithmetic, count: int, candidate: str) -> None:
        self.case, self.dump, self.inner, self.arithmetic, self.candidate = case, dump, inner, arithmetic, candidate
        self.world = World(dump, case)
        self.clean = Local(dump, arithmetic, Judge(arithmetic, count), world=self.world)
        self.sight = Sight(arithmetic, count)
        self.plans: list[Plan] = []

    def __call__(self, stage: Stage, y: Tensor, reading: Reading) -> Tensor:
        before = self._scores()
        value = self.clean(stage, y, reading)
        narrow = replace(stage, args=tuple(_f32(a) for a in stage.args))
        good = Tensor(value.data.astype(np.float32), value.axes)
        exact = Tensor(y.data, y.axes)
        for plan in self.plans:
            pair = plan.faults.get(stage.path)
            for path, (real, oracle) in plan.faults.items():
                if path != stage.path:
                    _see(real, narrow, good)
                    _see(oracle, stage, exact)
            if pair is not None:
                if plan.best is None or not plan.best.above:
                    self._plant(plan, pair, stage, narrow, y, good, reading, before)
                _see(pair[0], narrow, good)
                _see(pair[1], stage, exact)
        self.sight.see(stage, y)
        return value

    def _scores(self) -> tuple[Tensor | None, Any, Any]:
        return self.clean.scores.latest, self.clean.vocab, self.clean.blocks

    def _plant(
        self, plan: Plan, pair: tuple[Fault, Fault], stage: Stage, narrow: Stage, y: Tensor, good: Tensor, reading: Reading, before: Any
    ) -> None:
        wrong = wrong_values(Exact(), stage, pair[1], Tensor(y.data, y.axes))
        if wrong is None:
            return
        factors = self.sight.factors(stage, y, wrong)
        outcome = Outcome(self.case.name, self.candidate, plan.kind, plan.specs[stage.path], float(factors.max(initial=0.0)))
        if plan.best is not None and outcome.factor <= plan.best.factor:
            return
        plan.best = outcome
        found = self._judged(pair[0], stage, narrow, y, good, reading, before)
        if found is None:
            return
        divergences, results = found
        outcome.rules = seen_by(results, self.candidate)
        if divergences:
            first = divergences[0]
            outcome.found, outcome.stage = True, first.stage == stage.path
            differs = np.ones(y.data.shape, bool) if wrong.shape != y.data.shape else wrong != y.data
            outcome.place = placed(divergences, differs, factors, y.axes)
            outcome.named, outcome.said = named(first, plan.kind)

    def _judged(
        self, fault: Fault, stage: Stage, narrow: Stage, y: Tensor, good: Tensor, reading: Reading, before: Any
    ) -> tuple[list[Divergence], list[StageResult]] | None:
        """Local mode's verdict on this call alone, the candidate having made the mistake."""
        with np.errstate(all="ignore"):
            planted = fault.planted(self.inner, narrow, good)
        overlay = Overlay(self.dump)
        Recorder(overlay, self.arithmetic)(stage, planted, reading)
        world = World(overlay, self.case)
        # The calls of the case are the same for every overlay of its dump.
        world.__dict__["calls"] = self.world.calls
        local = Local(overlay, self.arithmetic, self.clean.judge, world=world)
        local.scores.latest, local.vocab, local.blocks = before
        local(stage, y, reading)
        return local.divergences, local.stages


def _see(fault: Fault, stage: Stage, y: Tensor) -> None:
    if fault.see is not None:
        fault.see(stage, y)


def _f32(a: Any) -> Any:
    return Tensor(a.data.astype(np.float32), a.axes) if isinstance(a, Tensor) else a


def along(mask: NDArray[np.bool_], axes: tuple[str, ...], axis: str) -> set[int]:
    """Which indices of ``axis`` a mask touches."""
    at = axes.index(axis)
    return {int(i) for i in np.flatnonzero(mask.any(tuple(j for j in range(mask.ndim) if j != at)))}


def placed(divergences: list[Divergence], differs: NDArray[np.bool_], factors: Array, axes: tuple[str, ...]) -> bool:
    """Rows and heads exact: every one that the oracle can surely tell is named, and none that does not differ at all.

    ``divergences``: those of the report; the first one's stage may have been taken apart into several.
    """
    first = divergences[0]
    same = [d.extent for d in divergences if (d.step, d.stage) == (first.step, first.stage)]
    for axis, parts in ((axes[0], [e.rows for e in same]), ("head", [e.heads for e in same])):
        if axis not in axes or None in parts:
            continue
        said = {i for part in parts for i in part or ()}
        sure, possible = along(factors >= CERTIFIED, axes, axis), along(differs, axes, axis)
        if not sure <= said <= possible:
            return False
    return True


# What a verdict of `invalid` says by itself.
INVALID = {
    "shape": ("dump.short", "context.crop", "context.proposals", "state.rollback", "router.top_k"),
    "nan": ("values.nan", "dump.nan"),
}


def named(d: Divergence, kind: str) -> tuple[int, str]:
    """Place of the kind (or of one that can make the same values) among the explanations, ties counting as one place; and the first."""
    alike = {kind, *ALL[kind].alike}
    kinds = [e["kind"] for e in d.explanations]
    if not kinds and d.what:
        word = "shape" if d.what.startswith("shape") else "nan" if d.what.startswith(("nan", "inf", "-inf")) else ""
        return int(kind in INVALID.get(word, ())), d.what
    said = f"{kinds[0]}: {d.explanations[0]['text']}" if kinds else ""
    at = next((i for i, k in enumerate(kinds) if k in alike), None)
    if at is None:
        return 0, said
    # What the data cannot tell from the first explanation stands beside it, not behind it.
    return (1 if all(e.get("tie") for e in d.explanations[1 : at + 1]) else at + 1), said


def calls_of(case: Case) -> list[tuple[int, str, str, tuple[int, ...], tuple[str, ...]]]:
    """(step, path, operation, shape, axes) of every stage in causal order."""
    from oracle.readings import Shapes

    seen = []

    def tape(stage: Stage, y: Tensor, reading: Reading) -> Tensor:
        seen.append((stage.step, stage.path, stage.op.name, y.data.shape, y.axes))
        return y

    run(case, Shapes(), tape)
    return seen


def planted_calls(case: Case, dump: MemoryDump, inner: Reading, arithmetic: Arithmetic, candidate: str, seed: int) -> Iterator[Outcome]:
    """Outcomes of the whole catalogue of call faults on the case, under a candidate whose healthy run is ``dump``."""
    calls = calls_of(case)
    count = sum(int(np.prod(shape)) for *_, shape, _ in calls)
    planter = Planter(case, dump, inner, arithmetic, count, candidate)
    planter.plans = places(calls, seed)
    run(case, Noise(arithmetic), planter)
    for plan in planter.plans:
        if plan.best is not None:
            yield plan.best


__all__ = ["Outcome", "Planter", "calls_of", "named", "placed", "planted_calls"]
