"""The signature of a divergence: what the wrong values are, seen from the right ones, before any mistake is supposed.

Each entry is ``{"kind", "text", …}``: ratio (global, row, head, column), offset, permutation, shifted, equals, zeros, sign, saturated,
bits, not reproducible.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.tensor import Array
from parity.explain.base import Suspect, shortened
from parity.explain.general import _others
from parity.explain.storage import reread

Fact = dict[str, Any]
TIGHT, FEW, MAX_SHIFT, LISTED = 1e-3, 2, 8, 16
LIMITS = {
    "the largest f16": 65504.0,
    "the largest bf16": 3.3895313892515355e38,
    "the largest f8 (e4m3)": 448.0,
    "the largest f8 (e5m2)": 57344.0,
}


def signature(s: Suspect) -> list[Fact]:
    """All that is true of the diverging region, most specific first."""
    with np.errstate(all="ignore"):
        plain = list(_simple(s))
        facts = [*_not_reproducible(s), *plain, *_equals(s)]
        if not any(f["kind"] in ("zeros", "sign") for f in plain):
            facts += [*_ratios(s), *_moves(s)]
        facts += [*_limits(s), *misread(s)]
    return facts


def misread(s: Suspect) -> list[Fact]:
    """The ways to misread bits that account for (nearly) all of the values, non-finite ones included."""
    with np.errstate(all="ignore"):
        return [{"kind": "bits", "text": f"bits reinterpreted: {text}", "share": share} for text, share in reread(s)]


def _simple(s: Suspect) -> Iterator[Fact]:
    c, y = s.c[s.region], s.y.data[s.region]
    if not c.any() and y.any():
        yield {"kind": "zeros", "text": "all zeros"}
        return
    zero = (c == 0) & (y != 0)
    if zero[s.where[s.region]].all():
        yield {"kind": "zeros", "text": "every diverging element is zero"}
    if c.size > 1 and np.abs(c + y).max() <= TIGHT * np.abs(y).max(initial=0.0):
        yield {"kind": "sign", "text": "the sign flipped"}
    elif c.size > FEW and np.abs(np.abs(c) - np.abs(y)).max() <= TIGHT * np.abs(y).max(initial=0.0) and (np.sign(c) != np.sign(y)).any():
        yield {"kind": "sign", "text": f"the sign flipped in {int((np.sign(c) != np.sign(y)).sum())} of {c.size} elements"}


def _not_reproducible(s: Suspect) -> Iterator[Fact]:
    """Recorded runs of the same candidate that differ here."""
    different = 0
    for other in s.world.repeats:
        record = other.get(s.stage.step, s.stage.path)
        if record is not None and not np.array_equal(record.float64().reshape(s.c.shape), s.c):
            different += 1
    if different:
        text = f"not reproducible: {different} of {len(s.world.repeats)} further runs differ at this stage"
        yield {"kind": "not reproducible", "text": text, "runs": different, "of": len(s.world.repeats)}


def _equals(s: Suspect) -> Iterator[Fact]:
    """Bit for bit another stage, the same stage of another step or layer; rows that are other rows."""
    region = s.region
    for path, step, text in _others(s):
        if s.world.shape(step, path) == s.c.shape:
            other = s.world.recorded(step, path)
            if other is not None and np.array_equal(other[region], s.c[region]):
                yield {"kind": "equals", "text": f"equals {text}, bit for bit", "stage": path, "step": step}
                return
    rows = {int(r): int(o) for r in s.rows if (o := _equal_row(s.c, s.y.data, int(r))) is not None}
    if rows and len(rows) == len(s.rows):
        text = shortened(", ".join(f"row {r} equals row {o}" for r, o in rows.items()))
        yield {"kind": "equals", "text": text, "rows": {str(r): o for r, o in rows.items()}}


def _equal_row(c: Array, y: Array, row: int) -> int | None:
    """The other row of the oracle that a row of the candidate equals."""
    if len(y) > 4096 or len(y) < 2:
        return None
    a, b = y.reshape(len(y), -1), c[row].reshape(-1)
    distance = np.abs(a - b).max(1)
    best = int(distance.argmin())
    return best if best != row and distance[best] <= TIGHT * np.abs(b).max(initial=0.0) and b.any() else None


def _ratios(s: Suspect) -> Iterator[Fact]:
    """``c = f y`` with one f for all, per row, per head or per column; then ``c = y + d`` alike."""
    y, c = np.where(s.region, s.y.data, 0.0), np.where(s.region, s.c, 0.0)
    axes = s.y.axes
    scopes: list[tuple[str, tuple[int, ...], Any]] = [("global", (), None)]
    scopes += [("row", (0,), s.rows)]
    if s.heads is not None:
        scopes.append(("head", (axes.index("head"),), s.heads))
    if y.ndim > 1:
        scopes.append(("column", (y.ndim - 1,), None))
    for scope, kept, index in scopes:
        sums = tuple(i for i in range(y.ndim) if i not in kept)
        count = s.region.sum(sums, keepdims=True)
        energy = np.square(y).sum(sums, keepdims=True)
        factor = np.where(energy > 0, (y * c).sum(sums, keepdims=True) / np.where(energy > 0, energy, 1), 1.0)
        # A factor says something only where several elements share it.
        if count[count > 0].min(initial=s.region.size) > FEW and _close(c, factor * y, y, s):
            yield _fact("ratio", scope, factor, index)
            return
    for scope, kept, index in scopes:
        sums = tuple(i for i in range(y.ndim) if i not in kept)
        count = np.maximum(s.region.sum(sums, keepdims=True), 1)
        offset = (c - y).sum(sums, keepdims=True) / count
        if count.min() > FEW and _close(c, np.where(s.region, y + offset, 0.0), c - y, s):
            yield _fact("offset", scope, offset, index)
            return


def _close(c: Array, model: Array, against: Array, s: Suspect) -> bool:
    """The model leaves little of the difference: a hundredth of it, or what storage and noise explain."""
    sigma = np.sqrt(np.where(s.region, s.y.variance(), 0.0))
    rest = float(np.sqrt(np.square(c - model).sum()))
    before = float(np.sqrt(np.square(c - np.where(s.region, s.y.data, 0.0)).sum()))
    return rest <= max(0.02 * before, 3 * float(np.sqrt(np.square(sigma).sum()))) and rest < 0.5 * before


def _fact(kind: str, scope: str, value: Array, index: Any) -> Fact:
    flat = value.ravel() if index is None else value.ravel()[index]
    if scope == "global":
        return {"kind": kind, "scope": scope, "value": float(flat[0]), "text": f"constant {kind} {flat[0]:.6g} over all diverging elements"}
    spread = f"{flat.min():.6g} to {flat.max():.6g}"
    return {"kind": kind, "scope": scope, "values": [float(v) for v in flat[:LISTED]], "text": f"one {kind} per {scope}: {spread}"}


def _moves(s: Suspect) -> Iterator[Fact]:
    """The same values elsewhere: shifted along an axis, or the same multiset in another order."""
    y, c, region = s.y.data, s.c, s.region
    scale = TIGHT * float(np.abs(y).max(initial=0.0))
    for axis, name in enumerate(s.y.axes):
        for shift in [k for n in range(1, min(MAX_SHIFT, y.shape[axis] - 1) + 1) for k in (n, -n)]:
            moved, inside = np.roll(y, shift, axis), region & _not_wrapped(y.shape, axis, shift)
            if inside.sum() > FEW and np.abs(moved - c)[inside].max() <= scale and np.abs(y - c)[inside].max() > 10 * scale:
                yield {"kind": "shifted", "axis": name, "by": shift, "text": f"shifted by {shift:+d} along {name}"}
                return
    rows = s.rows
    if y.ndim > 1 and _same_values(y[rows].reshape(len(rows), -1), c[rows].reshape(len(rows), -1)):
        yield {"kind": "permutation", "scope": "row", "text": "each row holds the same values in another order (a permutation)"}
    elif _same_values(y[region][None], c[region][None]):
        yield {"kind": "permutation", "scope": "region", "text": "the same values in another order (a permutation)"}


def _same_values(y: Array, c: Array) -> bool:
    """Rows [row, n] that agree once they are sorted, and did not before."""
    moved, sorted_ = np.abs(y - c).max(initial=0.0), np.abs(np.sort(y, 1) - np.sort(c, 1)).max(initial=0.0)
    return bool(sorted_ <= 0.01 * moved and sorted_ <= TIGHT * np.abs(y).max(initial=0.0))


def _not_wrapped(shape: tuple[int, ...], axis: int, shift: int) -> NDArray[np.bool_]:
    index = np.arange(shape[axis])
    inside = index >= shift if shift > 0 else index < shape[axis] + shift
    return np.broadcast_to(inside.reshape([-1 if i == axis else 1 for i in range(len(shape))]), shape)


def _limits(s: Suspect) -> Iterator[Fact]:
    """Several diverging elements at one largest magnitude: saturated."""
    c, y = s.c[s.where], s.y.data[s.where]
    top = float(np.abs(c).max(initial=0.0))
    at = np.abs(c) == top
    if top > 0 and at.sum() > FEW and (np.abs(y[at]) >= top).all() and at.sum() >= 0.5 * c.size:
        name = next((f" ({n})" for n, v in LIMITS.items() if v == top), "")
        yield {"kind": "saturated", "value": top, "text": f"saturated at {top:.6g}{name} in {int(at.sum())} elements"}
