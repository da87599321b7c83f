"""Case and step faults: mistakes made between the calls, in what is fed, where it is put, and what is kept of it.

A case fault edits the case's steps; a step fault edits the context or the state between two of them. The dump still says that it is of
the healthy case: that is the mistake.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from oracle.faults import FaultError, NotHereError, Options
from oracle.faults import parse as parse_call
from oracle.kit import EXACT
from oracle.models import Target
from oracle.ops.rms_norm import rms_norm
from oracle.readings import Fault, Reading, Stage
from oracle.tape import Record
from oracle.targets.qwen38_state import DeltaState
from oracle.tensor import Array, Tensor, concatenate
from parity.case import Case, Step
from parity.models import CaseModel, Run, whole_target


@dataclass(frozen=True)
class StepFault:
    """``case``: the case as it is really run. ``after``: what becomes of context or state after a step.

    ``call``: an edit of a call that goes with it. ``tape``: sees every stage, for a mistake that keeps something of them.
    """

    kind: str
    case: Callable[[Case, CaseModel], Case] = lambda case, model: case
    after: Callable[[Run, int], None] = lambda run, index: None
    call: Fault | None = None
    tape: Callable[[Stage, Tensor], None] = lambda stage, y: None


@dataclass(frozen=True)
class StepKind:
    """One kind of case or step fault; the fields are those of `oracle.faults.Kind`. ``role``: drafter or target."""

    name: str
    role: str
    stage: str
    defaults: dict[str, str]
    make: Callable[[Options], StepFault]
    about: str
    reports: tuple[str, ...]
    dial: str = ""
    variants: tuple[str, ...] = ("",)
    knobs: dict[str, str] = field(default_factory=dict)
    alike: tuple[str, ...] = ()


def _steps(case: Case, change: Callable[[int, Step], Step]) -> Case:
    return replace(case, steps=tuple(change(i, s) for i, s in enumerate(case.steps)))


def _features(case: Case, whole: Array) -> Case:
    """The case with its features [row, taps * dim], all appended rows in order, replaced."""
    at, steps = 0, []
    for step in case.steps:
        if step.kind == "append":
            rows = np.ascontiguousarray(whole[at : at + len(step.array)], np.float32)
            at += len(rows)
            step = replace(step, array=rows)
        steps.append(step)
    return replace(case, steps=tuple(steps))


def _appended(case: Case) -> Array:
    return np.concatenate([s.array for s in case.steps if s.kind == "append"])


def tapped(case: Case) -> tuple[Target, list[int]]:
    """The target whose taps the case's features are, and the ids of its rows. `NotHereError` where they are of no target."""
    ids = case.notes.get("tokens")
    target = whole_target(case.borrowed) if case.borrowed is not None else None
    if not isinstance(ids, list) or target is None:
        raise NotHereError("the features of this case are the taps of no target here")
    return target, ids


def _layer(o: Options) -> StepFault:
    delta = o.integer("delta")

    def edit(case: Case, model: CaseModel) -> Case:
        target, ids = tapped(case)
        assert model.drafter is not None
        taps = [t + delta for t in model.drafter.tap_ids]
        if min(taps) < 0 or max(taps) >= target.geometry.layers:
            raise NotHereError(f"there is no layer {max(taps) if delta > 0 else min(taps)} to tap here")
        return _features(case, target.window(ids, taps=taps).features)

    return StepFault("tap.layer", edit)


def _by_tap(features: Array, taps: int) -> Array:
    return features.reshape(len(features), taps, -1)


def _order(o: Options) -> StepFault:
    how = o.choice("how", "reversed", "turned", "interleaved")

    def edit(case: Case, model: CaseModel) -> Case:
        assert model.drafter is not None
        taps = _by_tap(_appended(case), len(model.drafter.tap_ids))
        if taps.shape[1] < 2:
            raise NotHereError("there is a single tap here")
        wrong = {"reversed": taps[:, ::-1], "turned": np.roll(taps, 1, 1), "interleaved": taps.swapaxes(1, 2)}[how]
        return _features(case, wrong.reshape(len(taps), -1))

    return StepFault("tap.order", edit)


def _row(o: Options) -> StepFault:
    by = o.integer("by")

    def edit(case: Case, model: CaseModel) -> Case:
        rows = _appended(case)
        index = np.clip(np.arange(len(rows)) - by, 0, len(rows) - 1)
        return _features(case, rows[index])

    return StepFault("tap.row", edit)


def _residual(_: Options) -> StepFault:
    """The residual before the MLP joined it, or (of streams) after the layer's attention alone."""

    def edit(case: Case, model: CaseModel) -> Case:
        target, ids = tapped(case)
        assert model.drafter is not None
        tape = Record()
        target.window(ids, tape=tape)
        parts = [tape[f"target.L{t}.h_attn"].data for t in model.drafter.tap_ids]
        if any(p.shape[1] != target.geometry.hidden for p in parts):
            raise NotHereError("there is no single residual between attention and MLP here")
        return _features(case, np.concatenate(parts, 1))

    return StepFault("tap.residual", edit)


def _norm(_: Options) -> StepFault:
    def edit(case: Case, model: CaseModel) -> Case:
        target, _ids = tapped(case)
        assert model.drafter is not None
        taps = _by_tap(_appended(case), len(model.drafter.tap_ids)).copy()
        if hasattr(target.geometry, "streams"):
            raise NotHereError("there is no final norm of a residual here")
        taps[:, -1] = rms_norm.formula(EXACT, taps[:, -1], target.weights.norm, eps=target.geometry.eps)
        return _features(case, taps.reshape(len(taps), -1))

    return StepFault("tap.norm", edit)


def _proposed(kind: str, change: Callable[[Step, int], Step]) -> StepFault:
    """An edit of every propose step, given the mask's id."""

    def edit(case: Case, model: CaseModel) -> Case:
        assert model.drafter is not None
        mask = model.drafter.geometry.mask_token_id
        return _steps(case, lambda i, s: change(s, mask) if s.kind == "propose" else s)

    return StepFault(kind, edit)


def _anchor(o: Options) -> StepFault:
    how = o.choice("how", "masked", "shifted", "last")

    def change(step: Step, mask: int) -> Step:
        if how == "shifted":
            return replace(step, at=step.at + 1)
        ids = np.full_like(step.array, mask)
        if how == "last":
            if len(ids) < 2:
                raise NotHereError("there is no mask row here")
            ids[-1] = step.array[0]
        return replace(step, array=ids)

    return _proposed("anchor.layout", change)


def _mask(o: Options) -> StepFault:
    delta = o.integer("delta")

    def change(step: Step, mask: int) -> Step:
        if len(step.array) < 2 or mask + delta < 0:
            raise NotHereError("there is no mask row here")
        ids = step.array.copy()
        ids[1:] += delta
        return replace(step, array=ids)

    return _proposed("mask.id", change)


def _start(o: Options) -> StepFault:
    delta = o.integer("delta")

    def after(run: Run, index: int) -> None:
        step = run.case.steps[index]
        if step.kind == "append" and run.context is not None:
            cells = run.context.cells
            cells.positions = cells.positions.copy()
            cells.positions[len(cells.positions) - len(step.array) :] += delta

    return StepFault("append.start", after=after, call=parse_call(f"rope.position:stage=draft.L*.ctx.k_rope,offset={delta}"))


def _boundary(o: Options) -> StepFault:
    """The first row of every later chunk is the last one of the chunk before, or the last row of every chunk is never written."""
    which = o.choice("row", "first", "last")

    def edit(case: Case, model: CaseModel) -> Case:
        steps, before = [], None
        for step in case.steps:
            if step.kind == "append" and len(step.array):
                rows = step.array.copy()
                if which == "first" and before is not None:
                    rows[0] = before
                if which == "last":
                    rows[-1] = 0
                before = step.array[-1]
                step = replace(step, array=rows)
            steps.append(step)
        if which == "first" and sum(s.kind == "append" for s in case.steps) < 2:
            raise NotHereError("there is a single append here")
        return replace(case, steps=tuple(steps))

    return StepFault("chunk.boundary", edit)


def _proposals(_: Options) -> StepFault:
    """The block's own keys and values stay in the context behind the committed rows."""
    kept: dict[str, Tensor] = {}

    def tape(stage: Stage, y: Tensor) -> None:
        name = stage.path.removeprefix("draft.")
        if name.endswith((".k_rope", ".v")) and ".ctx." not in name:
            kept[name] = y

    def after(run: Run, index: int) -> None:
        step = run.case.steps[index]
        if step.kind != "propose" or run.context is None or not run.context.cells.layers:
            return
        cells = run.context.cells
        own = [(kept[f"L{i}.k_rope"], kept[f"L{i}.v"]) for i in range(len(cells.layers))]
        cells.layers = [
            (concatenate([k, a], k.axes), concatenate([v, b], v.axes)) for (k, v), (a, b) in zip(cells.layers, own, strict=True)
        ]
        cells.positions = np.concatenate([cells.positions, np.arange(step.at, step.at + len(step.array))])

    return StepFault("context.proposals", after=after, tape=tape)


def _crop(o: Options) -> StepFault:
    """After an append the context holds ``delta`` rows too few."""
    delta = o.integer("delta")
    if delta >= 0:
        raise FaultError(f"delta={delta}: a crop leaves out rows, expected a negative number")

    def after(run: Run, index: int) -> None:
        if run.case.steps[index].kind == "append" and run.context is not None and index:
            cells = run.context.cells
            if len(cells.positions) <= -delta:
                return
            cells.keep(np.arange(len(cells.positions)) < len(cells.positions) + delta)

    return StepFault("context.crop", after=after)


class _Rolled:
    """A state that is taken back to another row than it is asked for."""

    def __init__(self, state: Any, keep: Callable[[Any, int], Any]) -> None:
        self.state, self._keep, self.length = state, keep, state.length

    def keep(self, n: int) -> Any:
        return self._keep(self.state, n)


def _rollback(o: Options) -> StepFault:
    delta = o.integer("delta")

    def keep(state: Any, n: int) -> Any:
        return state.keep(n if n == 0 else min(max(n + delta, 1), state.length))

    def after(run: Run, index: int) -> None:
        run.state = _Rolled(run.state, keep)

    return StepFault("state.rollback", _taken_back, after)


def _taken_back(case: Case, model: CaseModel) -> Case:
    rows = 0
    for step in case.steps:
        if 0 < step.at < rows:
            return case
        rows = step.at + len(step.array)
    raise NotHereError("no window of this case takes rows back")


def _stale(_: Options) -> StepFault:
    """The cells are cut, the recurrent states stay as they were after the last row."""

    def keep(state: Any, n: int) -> Any:
        kept = state.keep(n)
        if n in (0, state.length) or not any(isinstance(s, DeltaState) for s in getattr(state, "layers", ())):
            return kept
        layers = tuple(
            replace(new, q=old.q, k=old.k, v=old.v, start=old.last, after=None) if isinstance(old, DeltaState) else new
            for new, old in zip(kept.layers, state.layers, strict=True)
        )
        return replace(kept, layers=layers)

    def edit(case: Case, model: CaseModel) -> Case:
        if model.target is None or not hasattr(model.target.geometry, "streams"):
            raise NotHereError("there is no recurrent state here")
        return _taken_back(case, model)

    def after(run: Run, index: int) -> None:
        run.state = _Rolled(run.state, keep)

    return StepFault("state.stale", edit, after)


def _tokens(o: Options) -> StepFault:
    by = o.integer("by")

    def edit(case: Case, model: CaseModel) -> Case:
        if len(case.steps) < 2 or len(case.steps[1].array) < 2:
            raise NotHereError("there is no second window of two rows here")
        return _steps(case, lambda i, s: replace(s, array=np.roll(s.array, by)) if i else s)

    return StepFault("window.tokens", edit)


KINDS = (
    StepKind(
        "tap.layer",
        "drafter",
        "draft.taps",
        {"delta": "1"},
        _layer,
        "every tap taken delta layers off",
        ("K1",),
        "delta",
        ("delta=1", "delta=-1"),
        {"tap+1": "delta=1", "tap-1": "delta=-1"},
        ("tap.residual",),
    ),
    StepKind(
        "tap.order",
        "drafter",
        "draft.taps",
        {"how": "reversed"},
        _order,
        "the taps concatenated in another order, or element by element",
        ("K1", "K14"),
        "how",
        ("how=reversed", "how=turned", "how=interleaved"),
        {"tap order": "how=reversed"},
    ),
    StepKind(
        "tap.row",
        "drafter",
        "draft.taps",
        {"by": "1"},
        _row,
        "the features of another row: row r those of r - by",
        ("K3",),
        "by",
        ("by=1", "by=-1"),
        {"tap row": "by=1"},
        ("values.rows",),
    ),
    StepKind(
        "tap.residual",
        "drafter",
        "draft.taps",
        {},
        _residual,
        "taps taken before the MLP joined the residual",
        ("K2",),
        knobs={"complete residual": ""},
        alike=("tap.layer",),
    ),
    StepKind(
        "tap.norm",
        "drafter",
        "draft.taps",
        {},
        _norm,
        "the last tap taken after the final norm",
        ("K1", "K2"),
        knobs={"tap before final norm": ""},
    ),
    StepKind(
        "anchor.layout",
        "drafter",
        "draft.embed",
        {"how": "masked"},
        _anchor,
        "the anchor's row fed as a mask, the whole block one position late, the anchor last",
        ("K16",),
        "how",
        ("how=masked", "how=shifted", "how=last"),
        {"anchor row": "how=masked", "anchor position": "how=shifted"},
        ("rope.position", "gather.ids", "values.rows", "values.swapped"),
    ),
    StepKind(
        "mask.id",
        "drafter",
        "draft.embed",
        {"delta": "-1"},
        _mask,
        "another token id in place of the mask's",
        ("K18",),
        "delta",
        ("delta=-1", "delta=-3"),
        {"mask id": "delta=-1"},
        ("gather.ids", "mask.embedding"),
    ),
    StepKind(
        "append.start",
        "drafter",
        "draft.L*.ctx.k_rope",
        {"delta": "1"},
        _start,
        "rows committed delta positions off",
        ("K8", "K20"),
        "delta",
        ("delta=1", "delta=-1"),
        {"start of an append": "delta=1"},
        ("rope.position",),
    ),
    StepKind(
        "chunk.boundary",
        "drafter",
        "draft.taps",
        {"row": "first"},
        _boundary,
        "at every boundary of appended chunks a row is doubled (first) or never written (last)",
        ("K4",),
        "row",
        ("row=first", "row=last"),
        {"chunk boundary": "row=first"},
        ("values.zero", "values.rows", "tap.row"),
    ),
    StepKind(
        "context.proposals",
        "drafter",
        "draft.L*.k_cells",
        {},
        _proposals,
        "the proposed rows stay in the context",
        ("K21",),
        alike=("cells.stale", "context.crop"),
    ),
    StepKind(
        "context.crop",
        "drafter",
        "draft.L*.k_cells",
        {"delta": "-1"},
        _crop,
        "the context loses its last rows after an append",
        ("K20",),
        "delta",
        ("delta=-1", "delta=-2"),
        alike=("cells.stale", "context.proposals"),
    ),
    StepKind(
        "state.rollback",
        "target",
        "target.L*",
        {"delta": "1"},
        _rollback,
        "a target's state taken back to delta rows beside the right one",
        ("K20", "K22", "K23"),
        "delta",
        ("delta=1", "delta=-1"),
        {"rollback": "delta=1"},
        ("rope.position", "short_conv.history"),
    ),
    StepKind(
        "state.stale",
        "target",
        "target.L*",
        {},
        _stale,
        "a recurrent state not taken back with the cells",
        ("K22",),
        knobs={"recurrent rollback": ""},
        alike=("short_conv.history", "delta.lost"),
    ),
    StepKind(
        "window.tokens",
        "target",
        "target.embed",
        {"by": "1"},
        _tokens,
        "the verify window's tokens turned by one row",
        ("K3", "K23"),
        "by",
        ("by=1",),
        {},
        ("values.rows", "gather.ids"),
    ),
)


def walk(fault: StepFault, case: Case, model: CaseModel, reading: Reading, tape: Callable[[Stage, Tensor, Reading], Tensor]) -> None:
    """All steps of the case with the mistake made; ``model`` is the healthy one. Raises `FaultError` where it cannot be made."""

    def both(stage: Stage, y: Tensor, r: Reading) -> Tensor:
        fault.tape(stage, y)
        return tape(stage, y, r)

    made = Run(fault.case(case, model), model, reading, both)
    for index, _ in made.steps():
        fault.after(made, index)
