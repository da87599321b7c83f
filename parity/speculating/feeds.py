"""What a drafter was given, and what it should have been: the features of a trace's windows, run again by the oracle's target.

Recorded features (``taps``) are compared row by row; unrecorded ones are filled in, as the loop of a bug or of none would commit them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.arithmetic import Arithmetic
from oracle.models import Drafter, Target, WindowResult
from oracle.readings import Reading, Sampled, Survey
from oracle.speculation.caches import TargetCache, new_cache
from oracle.speculation.drafting import Proposal
from oracle.speculation.rounds import Session
from oracle.tensor import Array
from parity import limits
from parity.errors import UsageError
from parity.speculating import proposals
from parity.speculating.bugs import BUGS
from parity.speculating.foreign import Foreign, Round
from parity.speculating.proposals import Proposals, Rerun


def run_windows(
    trace: Foreign, target: Target, cache: TargetCache, taps: Sequence[int] = (), reading: Reading | None = None
) -> list[WindowResult]:
    """The target over the prompt and over every round's window, each after the rows that the trace committed before it."""
    assert trace.prompt is not None
    out = [target.window(trace.prompt, taps=taps, reading=reading)]
    cache.begin(len(trace.prompt))
    cache.append(out[0].state, trace.prompt)
    cache.commit(len(trace.prompt))
    for number, r in enumerate(trace.rounds):
        cache.begin(len(r.window))
        made = target.window(r.window, cache.state(), taps, reading=reading, step=number + 1)
        cache.append(made.state, r.window)
        cache.commit(min(kept_rows(r), len(r.window)))
        out.append(made)
    return out


def kept_rows(r: Round) -> int:
    """Rows that the round committed: as recorded, else what the rules say."""
    return max(r.accepted + 1 if r.kept is None else r.kept, 0)


class _Loop:
    """Stands for a session's drafter where only the loop around it is asked."""

    length = 0
    made = Proposal(())

    def propose(self, tokens: Sequence[int], drafts: int) -> Proposal:
        return self.made


def _session(kind: type[Session]) -> Any:
    made: Any = object.__new__(kind)
    made.drafting, made.tokens = _Loop(), []
    return made


def filled(trace: Foreign, windows: Sequence[WindowResult], kind: type[Session] = Session) -> Foreign:
    """The trace with the features that a loop of this kind gives its drafter, taken from ``windows`` (`run_windows`)."""
    assert trace.prompt is not None
    loop = _session(kind)
    rows = loop.first_context(len(trace.prompt))
    start = loop.first_start(rows)
    taps, first = windows[0].features[rows], start
    loop.drafting.length = start + len(rows)
    rounds = []
    for r, out in zip(trace.rounds, windows[1:], strict=True):
        loop.window_rows = len(r.window)
        rows, start = loop.context_rows(min(kept_rows(r), len(r.window))), loop.context_start(r.position)
        loop.drafting.length = start + len(rows)
        rounds.append(replace(r, taps=out.features[rows], context_start=start))
    return replace(trace, rounds=tuple(rounds), taps=taps, context_start=first)


@dataclass(frozen=True)
class Row:
    """A recorded row of features that is not the one of its position. ``round`` -1: the prompt's. ``holds``: whose features it has, as
    text, empty for none of the trace's; ``ratio``: the worst |error| over its tolerance."""

    round: int
    position: int
    ratio: float
    holds: str


@dataclass(frozen=True)
class Taps:
    """``compared`` rows of recorded features against the oracle target's; ``worst``: of |error| / tolerance."""

    compared: int
    worst: float
    wrong: list[Row]


def compare_taps(trace: Foreign, windows: Sequence[WindowResult], sampled: Sequence[Sequence[WindowResult]], scale: float) -> Taps:
    """Every recorded row against the features of its position. ``sampled``: the same run in members of the noise, at least one."""
    true, moved = _by_position(trace, windows), [_by_position(trace, s) for s in sampled]
    width = len(next(iter(true.values())))
    size = len(true) * width
    spread = {p: scale * float(np.sqrt(np.mean([np.mean(np.square(m[p] - row)) for m in moved if p in m]))) for p, row in true.items()}
    tolerance = {p: limits.exponential(size) * s for p, s in spread.items()}

    def ratio(row: NDArray[np.float64], position: int, right: Array) -> float:
        gap, bound = float(np.abs(row - right).max()), tolerance[position]
        return float("inf") if np.isnan(gap) or (gap > 0 and not bound > 0) else gap / bound if gap else 0.0

    def holds(number: int, row: NDArray[np.float64]) -> str:
        if number >= 0:
            at = trace.rounds[number].position
            for j, right in enumerate(windows[number + 1].features):
                if ratio(row, at + j, right) <= 1:
                    return f"row {j} of the window"
        if not row.any():
            return "zeros"
        return next((f"position {p}" for p, right in true.items() if ratio(row, p, right) <= 1), "")

    found, worst, compared = [], 0.0, 0
    for number, start, rows in _recorded(trace):
        if rows.shape[1] != width:
            raise UsageError(f"{trace.source}: taps of {rows.shape[1]} values, this drafter reads {width} of its target")
        for i, row in enumerate(rows):
            position = start + i
            if position not in true:
                continue
            compared += 1
            mine = ratio(row, position, true[position])
            worst = max(worst, mine)
            if not mine <= 1:
                found.append(Row(number, position, mine, holds(number, row)))
    return Taps(compared, worst, found)


def _recorded(trace: Foreign) -> list[tuple[int, int, NDArray[np.float64]]]:
    """(round, first position, rows) of everything that became context."""
    assert trace.prompt is not None
    head = [] if trace.taps is None else [(-1, trace.context_start or 0, trace.taps)]
    rounds = [
        (i, r.position if r.context_start is None else r.context_start, r.taps)
        for i, r in enumerate(trace.rounds)
        if r.taps is not None and len(r.taps)
    ]
    return head + rounds


def _by_position(trace: Foreign, windows: Sequence[WindowResult]) -> dict[int, Array]:
    """The features of every position that was committed, and of rejected rows where nothing was committed since."""
    assert trace.prompt is not None
    rows = dict(enumerate(windows[0].features))
    for r, out in zip(trace.rounds, windows[1:], strict=True):
        rows |= {r.position + j: row for j, row in enumerate(out.features)}
    return rows


def members_of(
    trace: Foreign, target: Target, taps: Sequence[int], arithmetic: Arithmetic, members: int
) -> tuple[list[WindowResult], list[list[WindowResult]]]:
    """The windows exactly, and in ``members`` sampled runs of the arithmetic."""
    survey = Survey(arithmetic)
    exact = run_windows(trace, target, new_cache(target), taps, survey)
    return exact, [run_windows(trace, target, new_cache(target), taps, Sampled(survey.own, seed)) for seed in range(members)]


def proposals_of(
    trace: Foreign, drafter: Drafter, target: Target, windows: Sequence[WindowResult], sampled: Sequence[Sequence[WindowResult]],
    arithmetic: Arithmetic, scale: float, members: int,
) -> Proposals:  # fmt: skip
    """The trace's proposals against the oracle drafter's: fed the recorded features where they are, else the target's own."""
    models = drafter, target.embedding, target.head
    if not proposals.missing(trace):
        return proposals.compare(trace, *models, arithmetic, scale, members)
    survey = Survey(arithmetic)
    exact = proposals.rerun(filled(trace, windows), *models, survey)
    moved = [proposals.rerun(filled(trace, s), *models, Sampled(survey.own, 1000 + i)) for i, s in enumerate(sampled)]
    return proposals.judge(trace, drafter, exact, moved, scale)


def counterfactual(trace: Foreign, drafter: Drafter, target: Target, windows: Sequence[WindowResult]) -> str:
    """The mistake around the drafter under which its proposals are the recorded ones in every round; nothing where none explains all."""
    asked = [r.proposals for r in trace.rounds]
    recorded = not proposals.missing(trace)
    for found in BUGS.values():
        if found.session is None or not found.drafts:
            continue
        made: Rerun = proposals.rerun(trace if recorded else filled(trace, windows, found.session), drafter, target.embedding, target.head)
        loop = _session(found.session)
        drafts = []
        for chosen, sent in zip(made.drafts, asked, strict=True):
            loop.drafting.made = Proposal(chosen)
            drafts.append(loop.propose(len(sent)).drafts if chosen else ())
        if drafts == asked:
            return found.about
    return ""
