"""The drafter's inputs: the order of the taps, a tap of another layer, a wrong row, a tap after the final norm."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from oracle.kit import EXACT
from oracle.tape import Record
from oracle.tensor import Array
from parity.explain.base import Hypothesis, Suspect, become, shortened, spans
from parity.explain.general import matched_rows

# A tap that was computed by another reading of the target is equal up to that reading's storage, not to the bit.
SAME = 2e-5
MAX_SEARCHED = 1 << 26
BEFORE = "before its MLP joined the residual"


def taps(s: Suspect) -> Iterator[Hypothesis]:
    """given, where it holds taps side by side."""
    width = s.world.target_hidden
    y, c = s.stage.args[0].data, s.c
    if width is None or c.ndim != 2 or c.shape[1] % width:
        return
    count = c.shape[1] // width
    mine, theirs = y.reshape(len(y), count, width), c.reshape(len(c), count, width)
    yield from _order(s, mine, theirs)
    yield from _rows(s, mine, theirs)
    yield from _positions(s)
    yield from _layers(s, mine, theirs)


def _order(s: Suspect, mine: Array, theirs: Array) -> Iterator[Hypothesis]:
    """Every slice of the candidate bit for bit another slice of the same rows."""
    rows, count = s.rows, mine.shape[1]
    order = [next((j for j in [i, *range(count)] if np.array_equal(theirs[rows, i], mine[rows, j])), -1) for i in range(count)]
    if -1 not in order and order != list(range(count)):
        value = mine[:, order].reshape(s.c.shape)
        p = {"order": order}
        if sorted(order) == list(range(count)):
            yield Hypothesis("tap.order", f"taps in the order {order}", s.stage, become(value), parameters=p)
        else:
            yield Hypothesis("tap.order", f"taps {order}: one in the place of another", s.stage, become(value), parameters=p)
    if count <= 5:
        interleaved = mine.transpose(0, 2, 1).reshape(s.c.shape)
        yield Hypothesis("tap.order", "taps and dims interleaved (read as [dim, tap])", s.stage, become(interleaved))
    for t in range(count):
        if not theirs[rows, t].any() and mine[rows, t].any():
            value = mine.copy()
            value[:, t] = 0
            yield Hypothesis("tap.missing", f"tap {t} is zeros", s.stage, become(value), parameters={"tap": t})


def _rows(s: Suspect, mine: Array, theirs: Array) -> Iterator[Hypothesis]:
    """Rows of another position, for all taps or for some of them."""
    shifts: dict[int, Any] = {}
    for t in range(mine.shape[1]):
        order = matched_rows(mine[:, t], theirs[:, t])
        if order is not None:
            shifts[t] = order
    if not shifts:
        return
    value = mine.copy()
    for t, order in shifts.items():
        value[:, t] = mine[order, t]
    moved = {int(o - i) for order in shifts.values() for i, o in enumerate(order) if o != i}
    which = "every tap" if len(shifts) == mine.shape[1] else f"tap {spans(shifts)}"
    text = f"{which} of the row {next(iter(moved)):+d} from it" if len(moved) == 1 else f"{which} holds rows out of order"
    p = {"rows": {str(t): order.tolist() for t, order in shifts.items()}}
    yield Hypothesis("tap.row", text, s.stage, become(value.reshape(s.c.shape)), parameters=p)


def _positions(s: Suspect) -> Iterator[Hypothesis]:
    """Whole rows that are the features of another position, of this append or of another one."""
    case, step = s.world.case, s.stage.step
    appends = [] if case is None else [(i, x.array) for i, x in enumerate(case.steps) if x.kind == "append" and len(x.array)]
    if step not in [i for i, _ in appends] or any(a.shape[1:] != s.c.shape[1:] for _, a in appends):
        return
    features = np.concatenate([np.asarray(a, np.float64) for _, a in appends])
    start = sum(len(a) for i, a in appends if i < step)
    if features.size * len(s.rows) > MAX_SEARCHED:
        return
    value, moved = s.y.data.copy(), {}
    for r in s.rows:
        distance = np.abs(features - s.c[r]).max(1)
        found = int(distance.argmin())
        if distance[found] > SAME * np.abs(features[found]).max(initial=1e-300):
            return
        value[r], moved[int(r)] = features[found], found - (start + int(r))
    if all(0 <= start + r + by < start + len(s.c) and start <= start + r + by for r, by in moved.items()):
        return
    p = {"rows": {str(r): by for r, by in moved.items()}}
    if moved == {0: -1}:
        text = "the first row holds the last row of the append before: doubled at the boundary of the chunks"
        yield Hypothesis("chunk.boundary", text, s.stage, become(value), parameters=p)
        return
    shifts = set(moved.values())
    text = (
        f"the features of the position {next(iter(shifts)):+d} from it, over the boundaries of the appends"
        if len(shifts) == 1
        else ("features of other positions: " + ", ".join(f"row {r} of {by:+d}" for r, by in moved.items()))
    )
    yield Hypothesis("tap.row", shortened(text), s.stage, become(value), parameters=p)


def _layers(s: Suspect, mine: Array, theirs: Array) -> Iterator[Hypothesis]:
    """Slices that are another layer's output, or the declared one after the target's final norm; the target is run again for that."""
    found = target_taps(s.world.case, s.stage.step)
    if found is None:
        return
    layers, partial, declared, norm = found
    value, names, p = mine.copy(), [], {}
    for t in range(mine.shape[1]):
        if np.array_equal(mine[s.rows, t], theirs[s.rows, t]):
            continue
        others = [(f"layer {declared[t]} {BEFORE}", partial[t])] if partial else []
        for label, candidate in [*((f"layer {i}", a) for i, a in enumerate(layers)), *others, *norm(mine[:, t])]:
            error = np.abs(candidate[s.rows] - theirs[s.rows, t]).max()
            if error <= SAME * np.abs(candidate[s.rows]).max(initial=1e-300):
                value[:, t] = theirs[:, t]
                names.append(f"tap {t} (layer {declared[t]}) holds {label}" + _step(label, declared[t]))
                p[str(t)] = label
                break
    if names:
        whole = {part: all(part in n for n in names) for part in (BEFORE, "norm")}
        kind = "tap.residual" if whole[BEFORE] else "tap.norm" if whole["norm"] else "tap.layer"
        yield Hypothesis(kind, "; ".join(names), s.stage, become(value.reshape(s.c.shape)), parameters={"taps": p})


def _step(label: str, declared: int) -> str:
    number = re.search(r"\d+", label)
    return f", {int(number[0]) - declared:+d}" if number and BEFORE not in label else ""


def target_taps(case: Any, step: int) -> tuple[list[Array], list[Array], tuple[int, ...], Any] | None:
    """(the output of every target layer [row, dim] for the step's rows, the tapped layers' residual before their MLP or nothing where
    there is no such single residual, the declared taps, what the final norm makes of rows).

    None unless the case borrows from a whole target and notes the token ids its features come from (``tokens``).
    """
    from parity.models import open_case_model, whole_target

    if case is None or case.role != "drafter" or case.borrowed is None or not isinstance(case.notes.get("tokens"), list):
        return None
    target, drafter = whole_target(case.borrowed), open_case_model(case).drafter
    if target is None or drafter is None or case.steps[step].kind != "append":
        return None
    start, rows = case.steps[step].at, len(case.steps[step].array)
    ids = np.asarray(case.notes["tokens"][: start + rows], np.int64)
    if len(ids) < start + rows:
        return None
    tape = Record()
    features = target.window(ids, taps=tuple(range(target.geometry.layers)), tape=tape).features
    layers = np.split(np.asarray(features, np.float64)[start:], target.geometry.layers, 1)
    paths = [f"target.L{t}.h_attn" for t in drafter.geometry.tap_ids]
    partial = [np.asarray(tape[p].data)[start:] for p in paths if p in tape and tape[p].data.shape[1] == layers[0].shape[1]]
    return list(layers), partial if len(partial) == len(paths) else [], drafter.geometry.tap_ids, _final_norm(target)


def _final_norm(target: Any) -> Any:
    """The target's final norm of rows [row, dim] as [(name, rows)]; empty where the target has no such norm."""
    weight, eps = getattr(target.weights, "norm", None), getattr(target.geometry, "eps", None)

    def normed(x: Array) -> list[tuple[str, Array]]:
        if weight is None or eps is None or weight.width != x.shape[1]:
            return []
        from oracle.ops import OPS

        offsets = (0.0, 1.0)
        return [("the declared layer after the final norm", OPS["rms_norm"].formula(EXACT, x, weight, eps=eps, offset=o)) for o in offsets]

    return normed
