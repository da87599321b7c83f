"""Rolled comparison: the oracle rolls forward from the case alone; rows are judged against an ensemble of healthy runs.

`specs/noise-rules.md` 8.3: after every operation a fresh error with that operation's own variance, so that correlations are in.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from oracle import policies
from oracle.arithmetic import Arithmetic
from oracle.kit import EXACT
from oracle.ops.select import biased
from oracle.readings import Reading, Sampled, Stage, Survey
from oracle.tensor import Array, Tensor
from parity import limits
from parity.block_choices import swapped
from parity.case import Case
from parity.local import Recorded, divergence, extent, recorded
from parity.memberships import broken
from parity.models import Progress, open_case_model, run
from parity.other_choices import mirrored, other_choice
from parity.report import Divergence, StageResult
from parity.threads import threads_for

if TYPE_CHECKING:
    from dumps import Dump

Key = tuple[int, str]
# Last axis of the scores that a choice is made of, and what a report calls one of them.
SCORED = {"expert": "expert", "block": "block", "vocab": "token", "candidate": "token"}
LEAST_NORMAL = 2.0**-126


@dataclass(frozen=True, eq=False)
class Fork:
    """A row whose candidate chose otherwise: ``best`` of the oracle's it left out, ``rival`` it took, and the gap of their scores."""

    stage: Stage
    row: int
    best: int
    rival: int
    gap: float
    scores: Key
    y: Tensor


@dataclass
class Rolled:
    """Runs the ensemble and judges. ``members``: how many sampled runs."""

    case: Case
    dump: Dump
    arithmetic: Arithmetic
    members: int = 8
    seed: int = 0
    stages: list[StageResult] = field(default_factory=list)
    divergences: list[Divergence] = field(default_factory=list)
    exact: dict[Key, tuple[Stage, Tensor]] = field(default_factory=dict)
    forks: list[Fork] = field(default_factory=list)
    scores: dict[str, Key] = field(default_factory=dict)
    origin: dict[int, Key] = field(default_factory=dict)
    unrecorded: dict[Key, Array] = field(default_factory=dict)
    unseen: dict[Key, tuple[str, list[Array]]] = field(default_factory=dict)

    def compare(self, progress: Progress | None = None) -> None:
        say = progress or (lambda _: None)
        survey = Survey(self.arithmetic)
        spreads = []
        with threads_for(open_case_model(self.case)):
            say("rolled: oracle")
            run(self.case, survey, self._keep)
            for member in range(self.members):
                say(f"rolled: sampled run {member + 1} of {self.members}")
                spreads.append(self._member(survey, member))
        for fork in self.forks:
            self._judge_fork(fork, np.sqrt(np.mean([s[fork.scores] for s in spreads], 0)))
        for key, (stage, y) in self.exact.items():
            if stage.op.kind != "choice":
                # A few members sample a row-wide factor a few times: a row's spread is at least what its own operation contributes.
                own = survey.own[key].mean_square(y.data.shape)
                spread = np.mean([s[key] for s in spreads], 0)
                if stage.op.kinked and (moved := spread > np.maximum(4 * own, LEAST_NORMAL**2)).any():
                    # No run took the row past the kink, which says little of how far the next one goes.
                    spread = np.where(moved, spread, np.median(spread[moved]))
                self._judge(stage, y, np.sqrt(np.maximum(spread, own)))

    def _member(self, survey: Survey, member: int) -> dict[Key, Array]:
        """One sampled run: the mean square of every row's deviation from the oracle.

        Behind another choice no spread means anything: all members take the branch that was judged. A choice that was not recorded
        was not: where it could be another, every other member takes that. The side of a midpoint on which a consumer's rounding
        of an unrecorded value falls is such a choice.
        """
        spread: dict[Key, Array] = {}

        otherwise = member % 2 == 1 or self.members == 1

        def tape(stage: Stage, y: Tensor, reading: Reading) -> Tensor:
            if stage.op.kind == "choice":
                judged = self.exact[stage.key][1]
                return self._other(stage, judged) if otherwise and stage.key in self.unrecorded else judged
            if otherwise and stage.key in self.unseen:
                y = self._other_sides(stage, y, reading)
            spread[stage.key] = _mean_square(y.data - self.exact[stage.key][1].data)
            return y

        run(self.case, Sampled(survey.own, self.seed + member, self.arithmetic), tape)
        return spread

    def _other(self, stage: Stage, judged: Tensor) -> Tensor:
        """The choice next in line where a member's scores say that it is as good as the oracle's."""
        scores = self.unrecorded[stage.key]
        reach = np.sqrt(2 * _mean_square(stage.args[0].data - scores)) * limits.ROLLED_DIVERGE
        return replace(judged, data=other_choice(stage, _keys(stage, scores), judged.data, reach))

    def _other_sides(self, stage: Stage, y: Tensor, reading: Reading) -> Tensor:
        """The stage with each value that its consumer rounds on the other side of a midpoint, where it is as near as the member says."""
        policy, judged = self.unseen[stage.key]
        inputs = [mirrored(policy, x, mine, limits.ROLLED_DIVERGE) for x, mine in zip(stage.args, judged, strict=False)]
        if all(np.array_equal(made.data, x.data) for made, x in zip(inputs, stage.args, strict=False)):
            return y
        return reading.apply(replace(stage, args=(*inputs, *stage.args[len(inputs) :])))

    def _keep(self, stage: Stage, y: Tensor, reading: Reading) -> Tensor:
        bare = Stage(stage.path, stage.op, (), {}, stage.step)
        y = self._followed(stage, y, reading)
        if y.axes[-1] in SCORED:
            self.scores[y.axes[-1]] = stage.key
        branch = {"select": self._branch, "select_cells": self._branch_cells, "argmax": self._branch_pick, "choose": self._branch_pick}
        if stage.op.name in branch:
            if self.dump.get(*stage.key) is None:
                self.unrecorded[stage.key] = stage.args[0].data
            y = branch[stage.op.name](stage, y)
        self.exact[stage.key] = (bare, y)
        self.origin[id(y)] = stage.key
        return y

    def _followed(self, stage: Stage, y: Tensor, reading: Reading) -> Tensor:
        """The stage on what the candidate's own input is rounded to, where its consumer rounds it to a coarse grid.

        Which side of a grid's midpoint a value falls on is a choice: a row with another one has an error of the grid's step, however
        small the noise. Whether the input itself is within noise has been judged where it was made.
        """
        if stage.op.name == "delta_state" and self.arithmetic.state != "f32":
            return replace(y, data=self._followed_state(stage, y))
        policy = self.arithmetic.used(stage.path)
        if policy == "f32" or not stage.args or not isinstance(stage.args[0], Tensor):
            return y
        if stage.op.name == "cells":
            found = recorded(self.dump, stage, y)
            if found.values is None or found.invalid:
                self.unseen[stage.key] = policy, [x.data for x in stage.args]
                return y
            beside = np.abs(found.values - y.data) <= 1.001 * policies.step(policy, y.data)
            return replace(y, data=np.where(beside, found.values, y.data))
        policy = policies.resolved(policy, stage.args[1].stored) if stage.op.name == "linear" else policy
        x, key = stage.args[0], self.origin.get(id(stage.args[0]))
        if policy == "f32" or policy in policies.BY_WEIGHT:
            return y
        found = Recorded(None) if key is None else recorded(self.dump, self.exact[key][0], x)
        if found.values is None or found.invalid:
            self.unseen[stage.key] = policy, [x.data]
            return y
        mine, theirs = (policies.apply(policy, v.reshape(len(v), -1)).reshape(v.shape) for v in (x.data, found.values))
        if np.array_equal(mine, theirs):
            return y
        other = Tensor(np.where(mine == theirs, x.data, found.values), x.axes)
        return reading.apply(replace(stage, args=(other, *stage.args[1:])))

    def _followed_state(self, stage: Stage, y: Tensor) -> Array:
        """The recurrence from what the candidate's own states are rounded to, before the call and, where declared, before every row."""
        between, rows = self.arithmetic.kept()
        start, *rest = stage.args
        state, theirs = _beside(between, start.data, self._kept_state(stage, start)), recorded(self.dump, stage, y).values
        if rows is None:
            return np.asarray(stage.op.formula(EXACT, state, *(r.data for r in rest)))
        out = np.empty(y.data.shape)
        for t in range(len(out)):
            out[t : t + 1] = stage.op.formula(EXACT, state, *(r.data[t : t + 1] for r in rest))
            state = _beside(rows, out[t], None if theirs is None else theirs[t])
        return out

    def _kept_state(self, stage: Stage, start: Tensor) -> Array | None:
        """The candidate's values of the state that a call starts from: those of the row of an earlier step that was kept."""
        for step in range(stage.step - 1, -1, -1):
            bare, before = self.exact.get((step, stage.path), (stage, None))
            same = [] if before is None else [row for row, state in enumerate(before.data) if np.array_equal(state, start.data)]
            if before is not None and same:
                values = recorded(self.dump, bare, before).values
                return None if values is None else values[same[-1]]
        return None

    def _forked(self, stage: Stage, y: Tensor, row: int, best: int, rival: int, gap: float) -> None:
        self.forks.append(Fork(stage, row, best, rival, gap, self.scores[stage.args[0].axes[-1]], y))

    def _branch(self, stage: Stage, y: Tensor) -> Tensor:
        """The candidate's own selection where it recorded a sound one; a set that differs is a fork, to be judged by its gap."""
        found = recorded(self.dump, stage, y)
        if found.values is None or found.invalid or broken(found.values.astype(np.int64), stage.args[0]):
            return y
        keys = _keys(stage, stage.args[0].data)
        for row, (mine, theirs) in enumerate(zip(y.data.astype(int), found.values.astype(int), strict=True)):
            left, extra = np.setdiff1d(mine, theirs), np.setdiff1d(theirs, mine)
            if len(left):
                best, rival = int(left[keys[row, left].argmax()]), int(extra[keys[row, extra].argmin()])
                self._forked(stage, y, row, best, rival, float(keys[row, best] - keys[row, rival]))
        return Tensor(found.values, y.axes)

    def _branch_pick(self, stage: Stage, y: Tensor) -> Tensor:
        """The candidate's own pick: rows of a walk follow it, so those behind another pick do too. One not on offer has no score."""
        found = recorded(self.dump, stage, y)
        if found.values is None or found.invalid:
            return y
        keys = stage.args[0].data
        ids = stage.args[1].data if stage.op.name == "choose" else np.broadcast_to(np.arange(keys.shape[-1]), keys.shape)
        for row in np.flatnonzero((found.values != y.data) & (y.data >= 0)):
            best, rival = (keys[row][ids[row] == v[row]].max(initial=-np.inf) for v in (y.data, found.values))
            self._forked(stage, y, int(row), int(y.data[row]), int(found.values[row]), float(best - rival))
        return Tensor(found.values, y.axes)

    def _branch_cells(self, stage: Stage, y: Tensor) -> Tensor:
        """The same for an indexer's cells: blocks that were swapped are a fork, anything else is the local verdict's to name."""
        found = recorded(self.dump, stage, y)
        if found.values is None or found.invalid or found.values.sum() != y.data.sum():
            return y
        keys, ratio = stage.args[0].data, int(stage.params["ratio"])
        for row in range(len(y.data)):
            left, extra = swapped(y.data, found.values, ratio, row, keys.shape[1])
            if len(left) and len(extra):
                best, rival = int(left[keys[row, left].argmax()]), int(extra[keys[row, extra].argmin()])
                self._forked(stage, y, row, best, rival, float(keys[row, best] - keys[row, rival]))
        return Tensor(found.values, y.axes)

    def _judge_fork(self, fork: Fork, sigma: Array) -> None:
        """A gap beyond what healthy runs move scores is no tie. ``sigma [row]``: their spread."""
        if fork.gap == 0:
            return
        ratio = fork.gap / (np.sqrt(2) * sigma[fork.row] * limits.ROLLED_DIVERGE) if sigma[fork.row] > 0 else np.inf
        if ratio <= 1:
            return
        stage, y = fork.stage, fork.y
        where = np.zeros(y.data.shape, bool)
        where[fork.row] = True
        thing = SCORED[stage.args[0].axes[-1]]
        what = f"{thing} {fork.rival} instead of {fork.best}, whose score is larger by {fork.gap:.3g}"
        args = (float(ratio), False, fork.best, fork.rival, "rolled", extent(where, y.axes), what)
        self.divergences.append(divergence(stage, y.axes, (fork.row,), *args))

    def _judge(self, stage: Stage, y: Tensor, sigma: Array) -> None:
        found = recorded(self.dump, stage, y)
        if found.record is None or found.invalid:
            return
        assert found.values is not None
        error = found.values - y.data
        # Where healthy runs do not differ at all, the candidate's own storage rounding is all that is allowed.
        fixed = sigma == 0
        if fixed.any():
            rounded = self.arithmetic.to_storage(stage.path, y.data)
            error = np.where(fixed.reshape(-1, *([1] * (error.ndim - 1))), found.values - rounded, error)
        rms = np.sqrt(_mean_square(error))
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(rms == 0, 0.0, np.where(sigma > 0, rms / sigma, np.inf))
        rows = max(len(y.data), 1)
        ratio = ratio * (limits.ROLLED_DIVERGE / limits.rolled(y.data.size // rows, rows, self.members))
        verdicts = ["agree" if r <= limits.ROLLED_DRIFT else "drift" if r <= limits.ROLLED_DIVERGE else "diverge" for r in ratio]
        worst = int(ratio.argmax()) if len(ratio) else 0
        overall = next((v for v in ("diverge", "drift") if v in verdicts), "agree")
        at = (worst, *(int(i) for i in np.unravel_index(np.abs(error[worst]).argmax(), error.shape[1:]))) if error.size else ()
        self.stages.append(
            StageResult(
                stage.step,
                stage.path,
                "rolled",
                overall,
                y.axes,
                y.data.shape,
                found.record.dtype,
                float(ratio.max(initial=0.0)) / limits.ROLLED_DIVERGE,
                float(ratio.max(initial=0.0)),
                worst=at,
                row_ratio=(ratio / limits.ROLLED_DIVERGE).tolist(),
                row_rms=ratio.tolist(),
                row_verdict=[] if overall == "agree" else verdicts,
            )
        )
        if overall == "diverge":
            where = np.broadcast_to((ratio > limits.ROLLED_DIVERGE).reshape(-1, *([1] * (error.ndim - 1))), error.shape)
            what = f"row rms error is {ratio[worst]:.3g} times the spread of healthy runs"
            self.divergences.append(
                divergence(
                    stage,
                    y.axes,
                    at,
                    float(ratio[worst]) / limits.ROLLED_DIVERGE,
                    False,
                    float(y.data[at]),
                    float(found.values[at]),
                    "rolled",
                    extent(where, y.axes),
                    what,
                )
            )


def _beside(policy: str, mine: Array, theirs: Array | None) -> Array:
    """``mine`` as the policy rounds it, each value ``theirs`` where that is the same step of its grid or the one beside it."""
    rounded = policies.apply(policy, mine)
    if theirs is None:
        return rounded
    other = policies.apply(policy, theirs)
    return np.where(np.abs(other - rounded) <= 1.001 * policies.step(policy, mine), other, rounded)


def _keys(stage: Stage, scores: Array) -> Array:
    """What a choice compares: the scores, and the selection bias where there is one."""
    return biased(EXACT, scores, stage.args[1] if len(stage.args) > 1 else None) if stage.op.name == "select" else scores


def _mean_square(x: Array) -> Array:
    return np.square(x.reshape(len(x), -1)).mean(-1) if x.size else np.zeros(len(x))
