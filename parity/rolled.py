"""Rolled comparison: the oracle rolls forward from the case alone; rows are judged against an ensemble of healthy runs.

`specs/noise-rules.md` 8.3: after every operation a fresh error with that operation's own variance, so that correlations are in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from oracle.arithmetic import Arithmetic
from oracle.readings import Reading, Sampled, Stage, Survey
from oracle.tensor import Array, Tensor
from parity import limits
from parity.case import Case
from parity.local import divergence, extent, recorded
from parity.models import Progress, open_case_model, run
from parity.report import Divergence, StageResult
from parity.threads import threads_for

if TYPE_CHECKING:
    from dumps import Dump

Key = tuple[int, str]


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

    def compare(self, progress: Progress | None = None) -> None:
        say = progress or (lambda _: None)
        survey = Survey(self.arithmetic)
        spreads = []
        with threads_for(open_case_model(self.case)):
            say("rolled: oracle")
            run(self.case, survey, self._keep)
            for member in range(self.members):
                say(f"rolled: sampled run {member + 1} of {self.members}")
                spreads.append(self._member(survey, self.seed + member))
        for key, (stage, y) in self.exact.items():
            if stage.op.kind != "choice":
                # A few members sample a row-wide factor a few times: a row's spread is at least what its own operation contributes.
                own = survey.own[key].mean_square(y.data.shape)
                self._judge(stage, y, np.sqrt(np.maximum(np.mean([s[key] for s in spreads], 0), own)))

    def _member(self, survey: Survey, seed: int) -> dict[Key, Array]:
        """One sampled run: the mean square of every row's deviation from the oracle."""
        spread: dict[Key, Array] = {}

        def tape(stage: Stage, y: Tensor, reading: Reading) -> Tensor:
            if stage.op.kind != "choice":
                spread[stage.key] = _mean_square(y.data - self.exact[stage.key][1].data)
            return y

        run(self.case, Sampled(survey.own, seed), tape)
        return spread

    def _keep(self, stage: Stage, y: Tensor, reading: Reading) -> Tensor:
        bare = Stage(stage.path, stage.op, (), {}, stage.step)
        self.exact[stage.key] = (bare, y)
        return y

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


def _mean_square(x: Array) -> Array:
    return np.square(x.reshape(len(x), -1)).mean(-1) if x.size else np.zeros(len(x))
