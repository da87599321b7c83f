"""Several mistakes in one stage: its rows, or its heads, taken apart into groups that one mistake each explains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.explain import Explanation, _all, _specific, explain
from parity.explain.base import Hypothesis, Suspect
from parity.explain.fitting import Fitter, fits
from parity.judge import Judge

# Rows that barely diverge may be brought back by chance: a group of its own begins with a row that is far off.
FAR_OFF, MAX_UNITS, MAX_PARTS, TRIED, GIVEN_UP = 3.0, 64, 6, 4, 2


def separate(judge: Judge, s: Suspect, ratio: Any) -> list[tuple[Suspect, list[Explanation]]]:
    """The suspect with what explains all of it; else its parts, each with its own, and what is left unexplained last.

    ``ratio``: error / tolerance per element, like the values.
    """
    whole = explain(judge, s)
    if whole:
        return [(s, whole)]
    for axis in ("row", "head"):
        units = s.rows if axis == "row" else s.heads
        if units is None or not 1 < len(units) <= MAX_UNITS:
            continue
        parts, left = _covered(judge, s, axis, units, _worst(s, axis, ratio))
        if parts and (len(parts) > 1 or len(left)):
            made = [(p, explain(judge, p)) for p in parts]
            rest: list[tuple[Suspect, list[Explanation]]] = [(s.only(axis, left), [])] if len(left) else []
            return [(p, e) for p, e in made if e] + [(p, []) for p, e in made if not e] + rest
    return [(s, [])]


def _worst(s: Suspect, axis: str, ratio: Any) -> Callable[[int], float]:
    """The worst error / tolerance of one row or head."""
    at = s.y.axes.index(axis) if axis in s.y.axes else 0
    others = tuple(i for i in range(s.where.ndim) if i != at)
    found = np.where(s.where, ratio, 0.0).max(others)
    return lambda unit: float(found[unit])


def _covered(
    judge: Judge, s: Suspect, axis: str, units: NDArray[np.intp], worst: Callable[[int], float]
) -> tuple[list[Suspect], list[int]]:
    """Greedy: what explains the worst row left, and every other row that it explains; (parts, rows left)."""
    left, given_up = [int(u) for u in units], list[int]()
    parts: list[Suspect] = []
    while left and len(parts) < MAX_PARTS and len(given_up) < GIVEN_UP:
        unit = max(left, key=worst)
        if worst(unit) < FAR_OFF:
            break
        one = s.only(axis, [unit])
        found = fits(Fitter(judge, one), _specific(one)) or fits(Fitter(judge, one), _all(one))
        mine = max((_also(judge, s.only(axis, left), axis, left, f.hypothesis) for f in found[:TRIED]), key=len, default=[])
        if unit not in mine:
            left.remove(unit)
            given_up.append(unit)
            continue
        parts.append(s.only(axis, mine))
        left = [u for u in left if u not in mine]
    return parts, sorted(left + given_up)


def _also(judge: Judge, s: Suspect, axis: str, left: list[int], h: Hypothesis) -> list[int]:
    """The rows that the mistake explains: with its parameters as they are, or (a position per row) as they are solved for every row."""
    fitter = Fitter(judge, s)
    solved = [other for other in _specific(s) if other.kind == h.kind and not other.fallback][:TRIED]
    return max(
        ([u for u in left if explained[u]] for o in [h, *solved] if (explained := _by_unit(fitter, axis, o)) is not None),
        key=len,
        default=[],
    )


def _by_unit(fitter: Fitter, axis: str, h: Hypothesis) -> NDArray[np.bool_] | None:
    """Which rows (heads) the hypothesis brings back within noise, bool by number; None where it cannot be computed."""
    s = fitter.suspect
    verdict = fitter.verdict(h)
    if verdict is None:
        return None
    at = s.y.axes.index(axis) if axis in s.y.axes else 0
    others = tuple(i for i in range(s.where.ndim) if i != at)
    inside = np.where(s.region, verdict.ratio, 0.0).max(others) <= 1
    return np.asarray(inside & (verdict.row_ratio <= 1) if axis == "row" else inside)
