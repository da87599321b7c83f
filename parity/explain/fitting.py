"""How well a hypothesis explains: the candidate against the edited call, inside the diverging region, under the same judge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.kit import EXACT
from oracle.readings import Noise, Stage
from oracle.readings import values as arrays
from oracle.recipes import Visible
from oracle.tensor import Array, Tensor
from parity.explain.base import Hypothesis, Suspect
from parity.judge import Judge, Verdict

NEAR_MISS = 4.0
# Before its noise is worked out a hypothesis is computed for a few rows: it must come this much nearer, or within this many sigma.
SAMPLE_ROWS, NEARER, WITHIN = 6, 0.3, 30.0
# An edited call may not exist (a width that does not divide, a parameter the operation does not have): then it does not explain.
FAILURES = (ValueError, TypeError, AttributeError, IndexError, KeyError, ZeroDivisionError)
_BY_ROW = """linear rms_norm l2_norm rope swiglu gate softcap add silu sigmoid softmax squash hc_read hc_write stream_gate ple_gate
    attention sink_attention expert_linear expert_sum expert_weights delta_read decay part markov_output"""
BY_ROW = frozenset(str.split(_BY_ROW))


@dataclass(frozen=True, eq=False)
class Seen:
    """Visibility as a matrix, bool [row, cell]: some rows of another recipe."""

    rows: NDArray[np.bool_]

    def matrix(self) -> NDArray[np.bool_]:
        return self.rows


def restricted(stage: Stage, rows: NDArray[np.intp]) -> Stage | None:
    """The call for some of its rows only, or None where rows hang together."""
    if stage.op.name not in BY_ROW or not isinstance(stage.args[0], Tensor):
        return None
    count = len(stage.args[0].data)

    def cut(index: int, arg: Any) -> Any:
        if isinstance(arg, Tensor) and len(arg.data) == count and (index == 0 or stage.op.kind != "attention"):
            return Tensor(arg.data[rows], arg.axes)
        return np.asarray(arg)[rows] if stage.op.name == "rope" and index == 1 else arg

    params = stage.params
    if "visible" in params:
        visible: Visible = params["visible"]
        params = params | {"visible": Seen(visible.matrix()[rows])}
    return replace(stage, args=tuple(cut(i, a) for i, a in enumerate(stage.args)), params=params)


@dataclass(frozen=True, eq=False)
class Fit:
    """A hypothesis that was judged: the worst error / tolerance left, and its values with their tolerance inside the region."""

    hypothesis: Hypothesis
    left: float
    values: Array
    tolerance: Array

    def same(self, other: Fit) -> bool:
        """The data cannot tell the two apart."""
        return bool((np.abs(self.values - other.values) <= self.tolerance + other.tolerance).all())


@dataclass
class Fitter:
    """Judges hypotheses about one suspect."""

    judge: Judge
    suspect: Suspect
    sample: NDArray[np.intp] = field(init=False)

    def __post_init__(self) -> None:
        s = self.suspect
        counts = s.where.reshape(len(s.where), -1).sum(1)
        self.sample = np.sort(np.argsort(-counts, kind="stable")[: min(SAMPLE_ROWS, len(s.rows))])

    @cached_property
    def _scale(self) -> tuple[float, float]:
        """(rms of the divergence, rms of the predicted error) over the sampled rows of the region."""
        s, inside = self.suspect, self.suspect.region[self.sample]
        error = (s.c - s.y.data)[self.sample][inside]
        sigma = np.sqrt(s.y.variance())[self.sample][inside]
        return float(np.sqrt(np.mean(np.square(error)))), float(np.sqrt(np.mean(np.square(sigma))))

    def near(self, h: Hypothesis) -> bool:
        """Is the hypothesis worth its noise? Values of a few rows decide."""
        s = self.suspect
        with np.errstate(all="ignore"):
            if h.stage is s.stage:
                y = s.y if h.after is None else h.after(s.y)
                values = y.data[self.sample]
            else:
                part = restricted(h.stage, self.sample) if h.after is None else None
                if part is not None:
                    values = part.op.formula(EXACT, *arrays(part.args), **part.params)
                else:
                    whole = Tensor(h.stage.op.formula(EXACT, *arrays(h.stage.args), **h.stage.params), s.y.axes)
                    values = (whole if h.after is None else h.after(whole)).data[self.sample]
            rest = (s.c[self.sample] - values)[s.region[self.sample]]
            left = float(np.sqrt(np.mean(np.square(rest))))
        error, sigma = self._scale
        return left <= max(NEARER * error, WITHIN * sigma)

    def fit(self, h: Hypothesis) -> Fit | None:
        """The hypothesis judged, or None where it is far off, or cannot be computed at all."""
        try:
            if not self.near(h):
                return None
            merged, verdict = self._judged(h)
        except FAILURES:
            return None
        s, inside = self.suspect, self.suspect.region
        worst = np.where(inside, verdict.ratio, 0.0)
        left = max(float(worst.max(initial=0.0)), float(verdict.row_ratio[s.rows].max(initial=0.0)), verdict.common)
        sigma = np.sqrt(merged.variance())[inside]
        half = np.broadcast_to(np.asarray(merged.half), s.c.shape)[inside]
        values = merged.data[inside]
        return Fit(h, left if np.isfinite(left) else float("inf"), values, half + 2 * sigma + np.abs(values) * 2.0**-22)

    def verdict(self, h: Hypothesis) -> Verdict | None:
        """The whole stage judged under the hypothesis inside the region; None where it cannot be computed."""
        try:
            return self._judged(h)[1]
        except FAILURES:
            return None

    def _judged(self, h: Hypothesis) -> tuple[Tensor, Verdict]:
        s = self.suspect
        # A hypothesis may divide by zero or overflow: then it does not explain.
        with np.errstate(all="ignore"):
            y = s.y if h.stage is s.stage else Noise(self.judge.arithmetic).apply(h.stage)
            merged = self._stored(h.stage, _merged(s, y if h.after is None else h.after(y)))
            c = np.where(s.region, s.c, merged.data) if s.part else s.c
            # Most hypotheses are far off: only near misses are worth their exact partial sums.
            verdict = self.judge.judge(h.stage, merged, c, exact=False)
            if 1 < np.where(s.region, verdict.ratio, 0.0).max(initial=0.0) <= NEAR_MISS:
                verdict = self.judge.judge(h.stage, merged, c)
        return merged, verdict


    def _stored(self, stage: Stage, y: Tensor) -> Tensor:
        """The half-width of a coarse store's rounding goes with the value, not with the one it came from."""
        if np.ndim(y.half) == 0:
            return y
        A = self.judge.arithmetic
        step = A.stored(stage.path).ulp(y.data) * (1.0 if A.truncate else 0.5)
        return replace(y, half=np.where(np.asarray(y.half) > 0, step, 0.0))


def _merged(suspect: Suspect, y: Tensor) -> Tensor:
    """The hypothesis inside the diverging region, the oracle's own value outside: the mistake is only there."""
    region, shape, o = suspect.region, suspect.c.shape, suspect.y

    def pick(new: Any, old: Any) -> Any:
        if np.ndim(new) == 0 and np.ndim(old) == 0 and new == old:
            return new
        return np.where(region, np.broadcast_to(np.asarray(new), shape), np.broadcast_to(np.asarray(old), shape))

    return Tensor(np.where(region, y.data, o.data), o.axes, pick(y.var, o.var), pick(y.acc, o.acc), pick(y.half, o.half))


def fits(fitter: Fitter, hypotheses: Iterator[Hypothesis]) -> list[Fit]:
    """Those of the hypotheses that explain, in the order they were made; of one kind the fallbacks only where nothing else does."""
    found: list[Fit] = []
    for h in hypotheses:
        if h.fallback and any(f.hypothesis.kind == h.kind for f in found):
            continue
        fit = fitter.fit(h)
        if fit is not None and fit.left <= 1:
            found.append(fit)
    return found
