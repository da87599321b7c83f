"""Mistakes in what the drafter is fed: taps of another layer, order, row or place, chunks that lose a row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from oracle.faults import NotHereError, Options
from oracle.kit import EXACT
from oracle.models import Target
from oracle.ops.rms_norm import rms_norm
from oracle.tape import Record
from oracle.tensor import Array
from parity.case import Case
from parity.faults.base import StepFault, StepKind
from parity.models import CaseModel, whole_target


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
)
