"""Mistakes that any operation can suffer: values moved, zeroed, turned, scaled; another stage's, step's or input's in their place."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from oracle.tensor import Array, Tensor
from parity.explain.base import Hypothesis, Suspect, along, become, mapped, rounder, scaled, shortened, spans, with_arg
from parity.explain.world import LAYER

MAX_ROWS = 4096
MAX_OTHERS = 24
CHANCE = 4


def hypotheses(s: Suspect) -> Iterator[Hypothesis]:
    yield from _aliases(s)
    yield from _moved(s)
    yield from _inputs(s)
    yield from _weights(s)


def _moved(s: Suspect) -> Iterator[Hypothesis]:
    region = s.region
    if not s.c[region].any():
        yield Hypothesis("values.zero", "zeros", s.stage, mapped(np.zeros_like))
    yield Hypothesis("values.sign", "the sign flipped", s.stage, scaled(-1.0))
    factor = constant_ratio(s.y.data[region], s.c[region])
    for value, fallback in rounder(factor) if factor is not None and s.stage.op.name != "linear" else []:
        text, p = f"the result times {value:.9g}", {"factor": value}
        yield Hypothesis("values.scale", text, s.stage, scaled(value), fallback, True, parameters=p)
    order = matched_rows(s.y.data, s.c)
    if order is not None:
        pairs = {int(i): int(j) for i, j in enumerate(order) if i != j}
        yield Hypothesis("values.rows", _moves("row", pairs), s.stage, mapped(lambda a: a[order]), parameters={"rows": _keyed(pairs)})
    if s.heads is not None:
        yield from _heads_moved(s)
    if s.c.ndim > 1 and min(s.c.shape[-2:]) > 1:
        axes = f"{s.y.axes[-2]} and {s.y.axes[-1]}"
        turned = mapped(lambda a: np.swapaxes(a, -1, -2).reshape(a.shape))
        yield Hypothesis("dump.layout", f"the axes {axes} in the other order", s.stage, turned)


def _moves(name: str, pairs: dict[int, int]) -> str:
    """``row 1 holds row 3``, or the shift where there is one."""
    shifts = {j - i for i, j in pairs.items()}
    if len(shifts) == 1 and len(pairs) > 2:
        return f"{name}s {spans(pairs)} hold the {name} {next(iter(shifts)):+d} from them"
    return shortened(", ".join(f"{name} {i} holds {name} {j}" for i, j in pairs.items()))


def _keyed(pairs: dict[int, int]) -> dict[str, int]:
    return {str(i): j for i, j in pairs.items()}


def _heads_moved(s: Suspect) -> Iterator[Hypothesis]:
    """Heads that hold another head's values, over all diverging rows."""
    at, heads = s.y.axes.index("head"), s.heads
    assert heads is not None
    y, c = (np.moveaxis(a, at, 0).reshape(a.shape[at], -1) for a in (s.y.data * along(s.y, "row", s.rows), s.c * along(s.y, "row", s.rows)))
    order = matched_rows(y, c)
    if order is not None and set(np.flatnonzero(order != np.arange(len(order)))) == set(heads.tolist()):
        pairs = {int(h): int(order[h]) for h in heads}
        change = mapped(lambda a: np.take(a, order, at))
        yield Hypothesis("values.heads", _moves("head", pairs), s.stage, change, parameters={"heads": _keyed(pairs)})


def _aliases(s: Suspect) -> Iterator[Hypothesis]:
    """Bit for bit another recorded stage, or the same stage of another step (a stale or overwritten buffer)."""
    region, equal = s.region, list[tuple[str, int, str]]()
    for path, step, text in _others(s):
        if s.world.shape(step, path) != s.c.shape:
            continue
        other = s.world.recorded(step, path)
        if other is not None and np.array_equal(other[region], s.c[region]):
            equal.append((path, step, text))
    if not equal:
        return
    path, step, text = equal[0]
    other, also = s.world.recorded(step, path), ", ".join(name for *_, name in equal[1:])
    text = shortened(f"bit for bit {text}" + (f" (and {also})" if also else ""))
    # A number or two, an id, may be equal by chance.
    general = int(region.sum()) < CHANCE
    yield Hypothesis("values.stage", text, s.stage, become(other), general=general, parameters={"stage": path, "step": step})


def _others(s: Suspect) -> Iterator[tuple[str, int, str]]:
    """(path, step, name) of recorded stages of this step, nearest first, then of this stage in other steps."""
    names = s.world.stages(s.stage.step)
    here = names.index(s.stage.path) if s.stage.path in names else len(names)
    for path in sorted(names, key=lambda n: abs(names.index(n) - here)):
        if path != s.stage.path:
            yield path, s.stage.step, path
    if s.world.dump is not None:
        for step in sorted(s.world.dump.steps, reverse=True):
            if step != s.stage.step and s.world.shape(step, s.stage.path):
                yield s.stage.path, step, f"{s.stage.path} of step {step}"


def _inputs(s: Suspect) -> Iterator[Hypothesis]:
    """The operation on another recorded stage of the right shape: a wrong buffer, a missing step before it."""
    for index, arg in enumerate(s.stage.args):
        if not isinstance(arg, Tensor) or s.stage.op.kind == "structural":
            continue
        found = 0
        for path, step, text in _others(s):
            shape = s.world.shape(step, path)
            if shape != arg.data.shape or found >= MAX_OTHERS:
                continue
            other = s.world.recorded(step, path)
            if other is None or not np.isfinite(other).all() or np.array_equal(other, arg.data):
                continue
            found += 1
            edited = with_arg(s.stage, index, Tensor(other, arg.axes))
            which = "its input" if len([a for a in s.stage.args if isinstance(a, Tensor)]) == 1 else f"its input {index + 1}"
            yield Hypothesis("input.stage", f"{which} is {text}", edited, general=True, parameters={"stage": path, "step": step})


def _weights(s: Suspect) -> Iterator[Hypothesis]:
    """The weight of another layer, or of another matrix of the same shape in this layer."""
    w = s.stage.args[1] if len(s.stage.args) > 1 else None
    if s.stage.op.name not in ("linear", "rms_norm") or w is None:
        return
    for path, other in s.world.other_weights(s.stage, w):
        mine, theirs = LAYER.search(s.stage.path), LAYER.search(path)
        where = f"layer {theirs[1]}" if theirs and mine and theirs[1] != mine[1] else path.rpartition(".")[2]
        kind = "linear.other" if s.stage.op.name == "linear" else "norm.weight"
        yield Hypothesis(kind, f"the weight of {where} ({other.name})", with_arg(s.stage, 1, other), parameters={"of": path})


def constant_ratio(y: Array, c: Array) -> float | None:
    """The one factor c / y, where there is one (to a per cent, the judge decides the rest)."""
    energy = float(y @ y)
    if energy == 0:
        return None
    factor = float(c @ y) / energy
    rest = c - factor * y
    return factor if abs(factor - 1) > 1e-7 and float(rest @ rest) <= 1e-4 * float(c @ c) else None


def matched_rows(y: Array, c: Array) -> NDArray[np.intp] | None:
    """For each row of c the row of y it equals (nearest); None where any is far from all, or every row is itself."""
    a, b = y.reshape(len(y), -1), c.reshape(len(c), -1)
    if len(a) < 2 or len(a) > MAX_ROWS:
        return None
    distance = np.square(b).sum(1)[:, None] - 2 * b @ a.T + np.square(a).sum(1)[None]
    order = distance.argmin(1)
    # A row that equals its own is its own, whatever equal rows come before it.
    own = np.abs(a - b).max(1) <= 1e-4 * np.abs(a).max(initial=1e-300)
    order = np.where(own, np.arange(len(a)), order)
    near = np.abs(a[order] - b).max() <= 1e-3 * np.abs(a).max(initial=1e-300)
    return order if near and not np.array_equal(order, np.arange(len(a))) else None
