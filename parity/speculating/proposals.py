"""A drafter's proposals against the oracle's own drafter, fed what the drafter was really fed: the features of a trace, and its blocks.

Local in the sense of `parity.local`: whether the features are right is another question (`taps`), whether their use is, this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from oracle.arithmetic import Arithmetic
from oracle.drafters.forward import ContextError
from oracle.models import Drafter
from oracle.readings import Reading, Sampled, Survey
from oracle.tensor import Array
from oracle.weights import Weight
from parity.errors import UsageError
from parity.speculating.foreign import Foreign, Round
from parity.speculating.noise import RowNoise


class Gap(ValueError):
    """Features or a block at a position where the context that was recorded before does not allow them."""


@dataclass(frozen=True)
class Draft:
    """A proposal that is not the oracle drafter's; ``verdict`` tie, violation, or unjudged without an ensemble.

    ``gap``: the oracle's logit of its own choice less that of the proposed token; NaN where a head chose.
    """

    round: int
    draft: int
    oracle: int
    proposed: int
    gap: float
    noise: float
    verdict: str


@dataclass(frozen=True)
class Proposals:
    """``rows`` drafted rows of ``rounds`` rounds. ``ratio``: the worst |logit - oracle's| over its tolerance, in ``round`` at ``draft``;
    NaN where no logits were recorded or nothing judges them. ``unjudged``: recorded logits differ and there is no ensemble to say why."""

    rounds: int
    rows: int
    ratio: float
    round: int
    draft: int
    differences: list[Draft] = field(default_factory=list)
    unjudged: bool = False

    @property
    def wrong(self) -> list[Draft]:
        return [d for d in self.differences if d.verdict == "violation"]


@dataclass(frozen=True, eq=False)
class Rerun:
    """Per round, the drafts as target ids and the logits [draft, vocab] of the rows that gave them; empty where nothing was proposed."""

    drafts: list[tuple[int, ...]]
    logits: list[Array]


def missing(trace: Foreign) -> str:
    """What the trace lacks for a rerun of the drafter from its recorded features; nothing where it has all."""
    if trace.taps is None:
        return "the header's taps"
    lacking = next((i for i, r in enumerate(trace.rounds) if r.taps is None), None)
    return "" if lacking is None else f"the taps of round {lacking}"


def rerun(trace: Foreign, drafter: Drafter, embedding: Weight, head: Weight, reading: Reading | None = None) -> Rerun:
    """The drafter over the features and blocks that the trace records. `UsageError` for features that do not fit it, `Gap` for rows
    that leave one."""
    context, first = drafter.new_context(reading), 1 if trace.layout == "fill_in" else 0
    made = Rerun([], [])
    width = len(drafter.tap_ids) * drafter.geometry.target_hidden

    def commit(features: NDArray[np.float64] | None, start: int, where: str, step: int) -> None:
        assert features is not None
        if not np.isfinite(features).all():
            raise UsageError(f"{trace.source}: {where}: taps: expected finite numbers")
        if start > context.length:
            raise Gap(f"{where}: features of {len(features)} rows from position {start} on, but the context ends at {context.length}")
        if len(features) and features.shape[1] != width:
            raise UsageError(f"{trace.source}: {where}: taps of {features.shape[1]} values, this drafter reads {width} of its target")
        try:
            if len(features):
                context.append(features, start, step=step)
        except ContextError as e:
            raise Gap(f"{where}: {e}") from None

    commit(trace.taps, trace.context_start or 0, "header", 0)
    for number, r in enumerate(trace.rounds):
        if r.proposals:
            ids, most = block_of(trace, r, drafter), drafter.geometry.block_size
            if len(ids) > most:
                raise UsageError(f"{trace.source}: round {number}: block: {len(ids)} rows, this drafter takes at most {most}")
            try:
                block = drafter.propose(context, ids, embedding, head, r.position, step=2 * number + 1)
            except ContextError as e:
                raise Gap(f"round {number}: {e}") from None
            except ValueError as e:
                raise UsageError(f"{trace.source}: round {number}: block: {e}") from None
            count = min(len(r.proposals), len(ids) - first)
            made.drafts.append(tuple(int(i) for i in block.drafts.data[:count]))
            made.logits.append(block.logits.data[first : first + count])
        else:
            made.drafts.append(())
            made.logits.append(np.empty((0, 0)))
        start = r.position if r.context_start is None else r.context_start
        commit(r.taps, start, f"round {number}", 2 * number + 2)
    return made


def block_of(trace: Foreign, r: Round, drafter: Drafter) -> tuple[int, ...]:
    """The recorded block, else the anchor and as many masks as the proposals need."""
    if r.block:
        return r.block
    masks = len(r.proposals) - (trace.layout != "fill_in")
    return (r.anchor, *[drafter.geometry.mask_token_id] * masks)


def compare(
    trace: Foreign, drafter: Drafter, embedding: Weight, head: Weight, arithmetic: Arithmetic, scale: float, members: int, *, arms: int = 1
) -> Proposals:
    """Every proposal, and every recorded logit, against the oracle's. ``members``: sampled runs of the noise; 0 judges nothing."""
    survey = Survey(arithmetic)
    exact = rerun(trace, drafter, embedding, head, survey)
    sampled = [rerun(trace, drafter, embedding, head, Sampled(survey.own, seed)) for seed in range(members)]
    return judge(trace, drafter, exact, sampled, scale, arms)


def judge(trace: Foreign, drafter: Drafter, exact: Rerun, sampled: Sequence[Rerun], scale: float, arms: int = 1) -> Proposals:
    """``sampled``: the same run in members of the arithmetic's noise."""
    at = [(i, j) for i, drafts in enumerate(exact.drafts) for j in range(len(drafts))]
    if not at:
        return Proposals(0, 0, float("nan"), 0, 0)
    logits = np.concatenate([x for x in exact.logits if len(x)])
    moved = [np.concatenate([x for x in s.logits if len(x)]) - logits for s in sampled]
    noise = RowNoise(logits, np.array(moved, np.float32), scale, arms) if moved else None
    found = []
    for row, (i, j) in enumerate(at):
        mine, theirs = exact.drafts[i][j], trace.rounds[i].proposals[j]
        if mine == theirs or trace.chooser == "steered":
            continue
        if drafter.dialect.chooser != "argmax":
            # A walk goes on from what it chose: only its first difference says anything, and another run's walk judges it.
            if exact.drafts[i][:j] == trace.rounds[i].proposals[:j]:
                tie = any(s.drafts[i][: j + 1] == trace.rounds[i].proposals[: j + 1] for s in sampled)
                found.append(Draft(i, j, mine, theirs, float("nan"), float("nan"), _verdict(bool(sampled), tie)))
            continue
        found.append(_by_gap(drafter, noise, logits, row, (i, j), mine, theirs))
    rounds = sum(1 for d in exact.drafts if d)
    gaps = _gaps(trace, at, logits)
    return Proposals(rounds, len(at), *_worst(gaps, at, noise), found, noise is None and any(gap != 0 for gap in gaps.values()))


def _verdict(judged: bool, tie: bool) -> str:
    return ("tie" if tie else "violation") if judged else "unjudged"


def _by_gap(drafter: Drafter, noise: RowNoise | None, logits: Array, row: int, at: tuple[int, int], mine: int, theirs: int) -> Draft:
    ids = drafter.weights.target_ids
    columns = {int(t): c for c, t in enumerate(ids)} if ids is not None else None
    a, b = (t if columns is None else columns.get(t, -1) for t in (mine, theirs))
    if not 0 <= b < logits.shape[1]:
        return Draft(*at, mine, theirs, float("inf"), 0.0, "violation")
    if noise is None:
        return Draft(*at, mine, theirs, float(logits[row, a] - logits[row, b]), float("nan"), "unjudged")
    gap, spread, tie = noise.tie(row, a, b)
    return Draft(*at, mine, theirs, gap, spread, _verdict(True, tie))


def _gaps(trace: Foreign, at: Sequence[tuple[int, int]], logits: Array) -> dict[int, float]:
    """Largest difference of every row of ``logits`` whose like the trace records in full."""
    found = {}
    for row, (i, j) in enumerate(at):
        recorded = trace.rounds[i].draft_logits
        if recorded is not None and j < len(recorded) and len(recorded[j].values) == logits.shape[1]:
            found[row] = float(np.abs(recorded[j].values - logits[row]).max())
    return found


def _worst(gaps: dict[int, float], at: Sequence[tuple[int, int]], noise: RowNoise | None) -> tuple[float, int, int]:
    """(ratio to the tolerance, round, draft) of the worst row."""
    worst = (float("nan"), 0, 0)
    if noise is None:
        return worst
    for row, gap in gaps.items():
        tolerance = noise.tolerance(row)
        ratio = float("inf") if np.isnan(gap) else gap / tolerance if tolerance > 0 else float("inf") * (gap > 0)
        if np.isnan(worst[0]) or ratio > worst[0]:
            worst = (ratio, *at[row])
    return worst
