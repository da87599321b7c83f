"""Case and step faults: mistakes made between the calls, in what is fed, where it is put, and what is kept of it.

A case fault edits the case's steps; a step fault edits the context or the state between two of them. The dump still says that it is of
the healthy case: that is the mistake.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from oracle.faults import FaultError, NotHereError, Options
from oracle.faults import parse as parse_call
from oracle.readings import Reading, Stage
from oracle.targets.qwen38_state import DeltaState
from oracle.tensor import Tensor, concatenate
from parity.case import Case, Step
from parity.faults import features
from parity.faults.base import StepFault, StepKind
from parity.models import CaseModel, Run


def _steps(case: Case, change: Callable[[int, Step], Step]) -> Case:
    return replace(case, steps=tuple(change(i, s) for i, s in enumerate(case.steps)))


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
    *features.KINDS,
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
        ("rope.position", "short_conv.history", "state.stale"),
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
        alike=("short_conv.history", "delta.lost", "state.rollback"),
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
