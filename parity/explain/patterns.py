"""How indices lie along an axis, and how a divergence recurs over the steps of a case: in words and as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from parity.explain.base import spans

if TYPE_CHECKING:
    from parity.case import Case

MAX_SPANS = 64


def runs(indices: Sequence[int]) -> list[list[int]]:
    """Maximal runs ``[first, last]``, at most `MAX_SPANS`."""
    out: list[list[int]] = []
    for n in sorted(indices):
        if out and n == out[-1][1] + 1:
            out[-1][1] = n
        else:
            out.append([n, n])
    return out[:MAX_SPANS]


def form(indices: Sequence[int], size: int) -> str:
    """``all``, ``the first 3``, ``the last 2``, ``all but 0``, ``contiguous 3-7``, ``every 2 from 1``, ``0-3 of every 8``, or the spans."""
    at = sorted(int(i) for i in indices)
    n = len(at)
    if n == size:
        return "all"
    if not n:
        return "none"
    left = sorted(set(range(size)) - set(at)) if size <= 1 << 16 else []
    contiguous = at[-1] - at[0] + 1 == n
    if contiguous and n > 1:
        return f"the first {n}" if at[0] == 0 else f"the last {n}" if at[-1] == size - 1 else f"contiguous {at[0]}-{at[-1]}"
    if len(left) == 1 and n > 2:
        return f"all but {left[0]}" + (" (the last)" if left[0] == size - 1 else "")
    if n == 1:
        return f"{at[0]}" + (" (the last)" if at[0] == size - 1 and size > 1 else "")
    return _strided(at) or _periodic(at, size) or spans(at[:MAX_SPANS]) + (", …" if n > MAX_SPANS else "")


def _strided(at: list[int]) -> str:
    steps = set(np.diff(at).tolist())
    return f"every {steps.pop()} from {at[0]} to {at[-1]}" if len(at) > 2 and len(steps) == 1 else ""


def _periodic(at: list[int], size: int) -> str:
    """The same places of every period, over the whole axis."""
    mask = np.zeros(size, bool)
    mask[at] = True
    for period in range(2, size // 2 + 1):
        if size % period == 0 and (mask.reshape(-1, period) == mask[:period]).all():
            return f"{spans(np.flatnonzero(mask[:period]))} of every {period}"
    return ""


def along_axes(where: NDArray[np.bool_], axes: tuple[str, ...]) -> dict[str, list[int]]:
    """Axis -> the indices with a divergence, in order."""
    found: dict[str, list[int]] = {}
    for at, axis in enumerate(axes):
        others = tuple(i for i in range(where.ndim) if i != at)
        found[axis] = np.flatnonzero(where.any(others) if others else where).tolist()
    return found


def recurrence(case: Case, steps: Sequence[int], diverging: Sequence[int]) -> str:
    """In which of the steps that have a stage it diverges: all, one, from a length on, only after a partial accept.

    ``steps``: those that compared the stage; ``diverging``: those of them where it diverges.
    """
    if len(steps) < 2:
        return ""
    bad, good = set(diverging), [s for s in steps if s not in diverging]
    if not good:
        return f"in every one of {len(steps)} steps"
    first = min(bad)
    if all(s in bad for s in steps if s >= first):
        length = case.steps[first].at
        before = max((case.steps[s].at for s in steps if s < first), default=0)
        after = _accept(case, first)
        late = f"from step {first} (position {length}) on; not at position {before}"
        return late + (f"; the first such round {after}" if after else "")
    accepts = {s: _accept(case, s) for s in steps}
    partial = {s for s, text in accepts.items() if text}
    if partial and bad <= partial and not partial & set(good):
        return f"only after a partial accept (steps {spans(bad)})"
    return f"in steps {spans(bad)}, not in {spans(good)}"


def _accept(case: Case, step: int) -> str:
    """``follows a partial accept of n rows`` where the step before it committed fewer rows than the block before that proposed."""
    previous = case.steps[step - 1] if step > 0 else None
    proposals = [s for s in case.steps[: max(step - 1, 0)] if s.kind == "propose"]
    if case.steps[step].kind != "propose" or previous is None or previous.kind != "append" or not proposals:
        return ""
    committed, proposed = len(previous.array), len(proposals[-1].array)
    return f"follows a partial accept ({committed} of {proposed} rows committed)" if committed < proposed else ""
