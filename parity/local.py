"""Local comparison: every stage is recomputed from the candidate's own recorded inputs, so an error shows where it was made."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oracle import eager
from oracle.arithmetic import Arithmetic
from oracle.floats import F32, FORMATS
from oracle.kit import EXACT
from oracle.readings import Reading, Stage, consumed
from oracle.tensor import Array, Tensor
from parity import information
from parity.block_choices import block_choices
from parity.explain import explain
from parity.explain.base import Suspect, along
from parity.explain.choices import explanations as choice_explanations
from parity.explain.lengths import resized
from parity.explain.patterns import along_axes, form, runs
from parity.explain.separate import separate
from parity.explain.signature import misread, signature
from parity.explain.world import LAYER, NOWHERE, World
from parity.judge import Judge, Verdict
from parity.margins import among, choices
from parity.memberships import OwnScores, broken, memberships
from parity.report import Divergence, Extent, Margin, StageResult
from parity.spreading import Spreading
from parity.undecided import Undecided

if TYPE_CHECKING:
    from dumps import Dump, StageRecord

# Explaining costs many re-applications of one operation: some stages are tried with every mistake, the same stage of other layers and
# steps with those that explained it before.
EXPLAINED = 12


@dataclass
class Recorded:
    """What the candidate recorded of one stage: values widened to float64, or why they cannot be compared."""

    record: StageRecord | None
    values: Array | None = None
    invalid: str = ""
    coordinate: tuple[int, ...] = ()


def recorded(dump: Dump, stage: Stage, y: Tensor) -> Recorded:
    """The candidate's values of a stage, validated against the oracle's shape; non-finite ones are found, never propagated."""
    record = dump.get(stage.step, stage.path)
    if record is None:
        return Recorded(None)
    shape = tuple(record.shape)
    if int(np.prod(shape)) != y.data.size or (shape and shape[0] != y.data.shape[0]):
        return Recorded(record, None, f"shape {list(shape)}, expected {list(y.data.shape)} ({', '.join(y.axes)})")
    if record.row0 != 0 or not record.contiguous:
        return Recorded(record, None, f"rows {record.row_ids.tolist()[:8]}… recorded, expected all of 0..{y.data.shape[0] - 1}")
    values = record.float64().reshape(y.data.shape)
    bad = ~np.isfinite(values) & np.isfinite(y.data)
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        return Recorded(record, values, f"{values[at]} where the oracle has {y.data[at]:.6g} ({int(bad.sum())} of {bad.size} elements)", at)
    return Recorded(record, values)


@dataclass
class Local:
    """The tape of local mode. After a run, ``stages``, ``divergences``, ``margins``, ``missing`` and ``unseen`` hold the finding."""

    dump: Dump
    arithmetic: Arithmetic
    judge: Judge
    required: frozenset[str] | None = None
    stages: list[StageResult] = field(default_factory=list)
    divergences: list[Divergence] = field(default_factory=list)
    margins: list[Margin] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    storage: dict[str, set[str]] = field(default_factory=dict)
    vocab: tuple[Stage, Tensor] | None = None
    blocks: Tensor | None = None
    scores: OwnScores = field(default_factory=OwnScores)
    explained: int = EXPLAINED
    world: World = NOWHERE
    known: dict[str, frozenset[str]] = field(default_factory=dict)
    consequences: list[Divergence] = field(default_factory=list)
    spreading: Spreading = field(default_factory=Spreading)
    undecided: Undecided = field(default_factory=Undecided)

    def __call__(self, stage: Stage, y: Tensor, reading: Reading) -> Tensor:
        surely, perhaps = self.spreading.reaches(stage)
        before = len(self.divergences)
        out, found = self._compared(consumed(self.arithmetic, stage), y, reading)
        # Invalid although its shape is right: values that are not finite, or a choice that such values made.
        finite = not found.invalid or found.values is None
        reached = surely or (perhaps and not finite)
        if reached:
            self.consequences += self.divergences[before:]
            del self.divergences[before:]
        self.spreading.note(stage, out, reached=reached, finite=finite, on=not finite or (surely and found.record is None))
        return out

    def _compared(self, stage: Stage, y: Tensor, reading: Reading) -> tuple[Tensor, Recorded]:
        """The stage judged; what the oracle goes on with, and what the candidate recorded."""
        self.scores.see(stage, y, reading)
        found = recorded(self.dump, stage, y)
        if found.record is None:
            self.unseen.append(f"{stage.step}:{stage.path}")
            self._remember(stage, y)
            self.undecided.choice(stage, y)
            return y, found
        if found.invalid:
            self._invalid(stage, y, found)
            return self._go_on(reading, y, found), found
        assert found.values is not None
        self._infer(stage, y, found)
        if stage.op.name == "select":
            found.invalid = broken(found.values.astype(np.int64), stage.args[0])
            if found.invalid:
                self._invalid(stage, y, found)
                return y, found
        if stage.op.kind == "choice":
            self._choice(stage, y, found.values)
        else:
            self.undecided.judged(stage, y)
            self._judge(stage, y, found)
            self._remember(stage, y)
        return reading.lift(found.values, y.axes), found

    def _remember(self, stage: Stage, y: Tensor) -> None:
        """The oracle's own logits: a choice is judged by them, not by the candidate's."""
        if y.axes[-1] in ("vocab", "candidate"):
            self.vocab = (stage, y)
        elif y.axes[-1] == "block":
            self.blocks = y

    def _go_on(self, reading: Reading, y: Tensor, found: Recorded) -> Tensor:
        if found.values is None:
            return y
        return reading.lift(np.where(np.isfinite(found.values), found.values, y.data), y.axes)

    def _invalid(self, stage: Stage, y: Tensor, found: Recorded) -> None:
        result = StageResult(
            stage.step,
            stage.path,
            "local",
            "invalid",
            y.axes,
            y.data.shape,
            reason=found.invalid,
            worst=found.coordinate,
            ratio=float("inf"),
        )
        assert found.record is not None
        result.dtype = found.record.dtype
        self.stages.append(result)
        at = found.coordinate
        oracle, value = (float(y.data[at]), float(found.values[at])) if at and found.values is not None else (float("nan"), float("nan"))
        bad = ~np.isfinite(found.values) if found.values is not None else np.ones(y.data.shape, bool)
        made = divergence(stage, y.axes, at, float("inf"), True, oracle, value, "local", extent(bad, y.axes), found.invalid)
        if found.values is None and found.record.contiguous:
            made.explanations = [asdict(e) for e in resized(stage, y, np.asarray(found.record.float64()))]
        if found.values is not None:
            made.signature = misread(Suspect(stage, y, found.values, np.ones(y.data.shape, bool), self.world))
        self.divergences.append(made)

    def _judge(self, stage: Stage, y: Tensor, found: Recorded) -> None:
        assert found.values is not None and found.record is not None
        verdict = self.judge.judge(stage, y, found.values)
        result = StageResult(stage.step, stage.path, "local", "agree", y.axes, y.data.shape, found.record.dtype)
        fill(result, verdict)
        result.info = information.figures(y.data, found.values)
        self.stages.append(result)
        if verdict.inconclusive and result.verdict != "diverge":
            result.verdict, result.reason = "inconclusive", verdict.inconclusive
        if result.verdict == "diverge":
            self._diverged(stage, y, found.values, verdict, result)

    def _diverged(self, stage: Stage, y: Tensor, c: Array, verdict: Verdict, result: StageResult) -> None:
        """A divergence with its extent, and what explains it."""
        where, what = self._where(stage, y, c, verdict)
        for part, explanations in self._explained(Suspect(stage, y, c, where, self.world), verdict):
            at = _worst_of(verdict.ratio, part.where)
            ratio = result.pass_factor if part.where is where else float(verdict.ratio[at])
            made = divergence(
                stage,
                y.axes,
                at,
                ratio,
                self._proven(stage, y, c, at),
                float(y.data[at]),
                float(c[at]),
                "local",
                extent(part.where, y.axes),
                what,
            )
            made.signature, made.explanations = signature(part), explanations
            self.divergences.append(made)

    def _where(self, stage: Stage, y: Tensor, c: Array, verdict: Verdict) -> tuple[NDArray[np.bool_], str]:
        """The diverging elements; rows that only their rms error, or only what is common to all rows, gives away are whole."""
        where, what = verdict.ratio > 1, ""
        if not where.any():
            what = "every element is within its own tolerance; the row's rms error is not"
        by_rows = where.reshape(len(where), -1).any(1)
        quiet = (verdict.row_ratio > 1) & ~by_rows
        where = where | quiet.reshape(-1, *([1] * (where.ndim - 1)))
        if not where.any():
            return np.ones(y.data.shape, bool), "small in every row, the same in all"
        if verdict.common > 1 and not (by_rows | quiet).all():
            rest = np.where((by_rows | quiet).reshape(-1, *([1] * (where.ndim - 1))), y.data, c)
            if self.judge.judge(stage, y, rest, exact=False).common > 1:
                heads = Suspect(stage, y, c, where).heads
                whole = np.ones(y.data.shape, bool)
                return whole if heads is None else whole & along(y, "head", heads), "small in most rows, the same in all"
        return where, what

    def _explained(self, s: Suspect, verdict: Verdict) -> list[tuple[Suspect, list[dict[str, Any]]]]:
        """The stage's divergence in as many parts as it holds mistakes, each with its explanations."""
        name = LAYER.sub(".L*.", s.stage.path)
        known = explain(self.judge, s, self.known[name]) if name in self.known else []
        if known:
            return [(s, [asdict(e) for e in known])]
        if self.explained <= 0:
            return [(s, [])]
        self.explained -= 1
        found = separate(self.judge, s, verdict.ratio)
        kinds = frozenset(e.kind for _, explanations in found for e in explanations)
        if kinds:
            self.known[name] = kinds
        return [(part, [asdict(e) for e in explanations]) for part, explanations in found]

    def _proven(self, stage: Stage, y: Tensor, c: Array, at: tuple[int, ...]) -> bool:
        """Beyond what any order of summation could do: only where the stage's inputs carry no error of their own."""
        if not all(a.exact for a in stage.args if isinstance(a, Tensor)):
            return False
        where = tuple(np.array([i]) for i in at)
        bound = float(stage.op.bound(self.arithmetic, y.data, where, *stage.args, **stage.params)[0])
        held = self.arithmetic.holds(stage.path)
        bound += sum(float(abs(move[at])) for move in eager.moves(stage, y.data, held, EXACT, self.arithmetic.framework, every=True))
        half = np.broadcast_to(np.asarray(y.half), y.data.shape)[at]
        return bool(abs(c[at] - y.data[at]) > bound + half)

    def _margins(self, stage: Stage, y: Tensor, c: Array) -> list[Margin] | None:
        """The margins of a choice, or None where the oracle has nothing to judge it by."""
        if stage.op.name == "select":
            own = self.scores.latest if stage.args[0].axes[-1] == "expert" else self.vocab and self.vocab[1]
            return None if own is None else memberships(self.judge, stage, own, c.astype(np.int64))
        if stage.op.name == "select_cells":
            return None if self.blocks is None else block_choices(self.judge, stage, self.blocks, y.data, c)
        if self.vocab is None:
            return None
        origin, logits = self.vocab
        picked = self.dump.get(origin.step, origin.path)
        theirs = picked.float64().reshape(logits.data.shape) if picked is not None else None
        if stage.op.name == "choose":
            return among(self.judge, origin, stage, logits, theirs, c.astype(np.int64))
        return choices(self.judge, origin, stage, logits, theirs, c.astype(np.int64))

    def _choice(self, stage: Stage, y: Tensor, c: Array) -> None:
        made = self._margins(stage, y, c)
        if made is None:
            return
        self.margins.extend(made)
        flips = [m for m in made if m.verdict == "flip"]
        self.stages.append(
            StageResult(
                stage.step,
                stage.path,
                "local",
                "diverge" if flips else "agree",
                y.axes,
                y.data.shape,
                "i64",
                ratio=float("inf") if flips else 0.0,
                worst=(flips[0].row,) if flips else (),
            )
        )
        if flips:
            mask = np.zeros(y.data.shape, bool)
            mask[[m.row for m in flips]] = True
            first = flips[0]
            found = divergence(
                stage,
                y.axes,
                (first.row,),
                float("inf"),
                True,
                first.choice,
                first.candidate,
                "local",
                extent(mask, y.axes),
                first.rule or "a choice its own logits do not make",
            )
            found.explanations = [asdict(e) for e in choice_explanations(stage, c, self._own_scores(stage), self.world)]
            self.divergences.append(found)

    def _own_scores(self, stage: Stage) -> Array | None:
        """The scores a choice was made by: the candidate's where it recorded them."""
        if stage.op.name not in ("argmax", "choose"):
            return None
        return np.asarray(stage.args[0].data, np.float64)

    def _infer(self, stage: Stage, y: Tensor, found: Recorded) -> None:
        """Storage as dtype or values show it (representable in bf16 or f16 where the oracle's own are not), against the declared one."""
        assert found.values is not None and found.record is not None
        if self.arithmetic.stored(stage.path).p < F32.p or stage.op.kind in ("structural", "choice") or found.values.size < 32:
            return
        if found.record.dtype in ("bf16", "f16"):
            self.storage.setdefault(found.record.dtype, set()).add(stage.path.rpartition(".")[2])
            return
        for name in ("bf16", "f16"):
            if FORMATS[name].holds(found.values).all() and not FORMATS[name].holds(y.data).all():
                self.storage.setdefault(name, set()).add(stage.path.rpartition(".")[2])
                return


def fill(result: StageResult, verdict: Verdict) -> None:
    """Rows and totals of a stage from its judgement."""
    shown = verdict.ratio if verdict.settled is None else np.where(verdict.settled, verdict.ratio, 0.0)
    result.ratio = float(max(shown.max(initial=0.0), verdict.row_ratio.max(initial=0.0)))
    result.rms = float(verdict.rms.max(initial=0.0))
    result.common = verdict.common
    result.worst = verdict.worst
    result.rejudged = verdict.rejudged
    per_row = shown.reshape(len(shown), -1).max(-1, initial=0.0) if len(shown) else np.zeros(0)
    result.row_ratio = np.maximum(verdict.row_ratio, per_row).tolist()
    result.row_rms = verdict.rms.tolist()
    # "not (ratio <= 1)", so that NaN can never pass.
    if not (verdict.row_ratio <= 1).all():
        result.row_verdict = ["agree" if r <= 1 else "diverge" for r in verdict.row_ratio]
    bad = bool(result.row_verdict) or not (verdict.common <= 1)
    result.verdict = "diverge" if bad else "agree"


def extent(where: Any, axes: tuple[str, ...]) -> Extent:
    """Rows, heads and elements of a mask over a stage."""

    found = along_axes(where, axes)
    sizes = dict(zip(axes, where.shape, strict=True))
    return Extent(
        found[axes[0]],
        found.get("head"),
        int(where.sum()),
        int(where.size),
        {axis: runs(at) for axis, at in found.items()},
        {axis: form(at, sizes[axis]) for axis, at in found.items()},
    )


def _worst_of(ratio: Array, where: Any) -> tuple[int, ...]:
    """The worst element among those of a mask (of all, where none of the mask's is compared)."""
    inside = np.where(where, ratio, -1.0)
    return tuple(int(i) for i in np.unravel_index(np.nanargmax(inside), ratio.shape)) if ratio.size else ()


def divergence(
    stage: Stage,
    axes: tuple[str, ...],
    at: tuple[int, ...],
    ratio: float,
    proven: bool,
    oracle: float,
    candidate: float,
    mode: str,
    where: Extent,
    what: str = "",
) -> Divergence:
    layer = re.search(r"\.L(\d+)\.", stage.path)
    head = at[axes.index("head")] if at and "head" in axes else None
    return Divergence(
        stage.step,
        stage.path,
        int(layer[1]) if layer else None,
        at[0] if at else -1,
        head,
        at,
        ratio,
        proven,
        oracle,
        candidate,
        mode,
        where,
        what,
    )
