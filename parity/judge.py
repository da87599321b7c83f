"""One stage's verdict: the candidate's values against the oracle's value and its predicted error, element by element.

The rules are those of `specs/noise-rules.md` section 2: stored results by the rounding interval, f32 results by λσ with
suspects re-judged from their exact partial sums, rows by their rms, the stage by a pooled signed test.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle import policies
from oracle.arithmetic import Arithmetic
from oracle.floats import F32, FloatFormat
from oracle.ops.linear import coherent
from oracle.readings import Stage
from oracle.tensor import Array, Tensor
from parity import limits

# Exact sums change a tolerance by far less than `HOPELESS`.
MAX_SUSPECTS, FEW_SUSPECTS, HOPELESS = 512, 64, 1e4
IDENTICAL_SHARE = 0.05


@dataclass
class Verdict:
    """Judgement of one stage, per element reduced to rows.

    ``ratio``: error / tolerance per element (nan where nothing is compared). ``row_ratio [row]``: the worst of a row's elements and
    of its rms against its limit. ``rms [row]``: rms z. ``common``: the pooled signed statistic against its limit.
    """

    ratio: Array
    row_ratio: Array
    rms: Array
    common: float = 0.0
    rejudged: int = 0
    inconclusive: str | None = None
    settled: NDArray[np.bool_] | None = None

    @property
    def worst(self) -> tuple[int, ...]:
        return tuple(int(i) for i in np.unravel_index(np.nanargmax(self.ratio), self.ratio.shape)) if self.ratio.size else ()


@dataclass
class Judge:
    """Judges stages of one comparison: ``arithmetic`` declared, ``count`` elements compared in all."""

    arithmetic: Arithmetic
    count: int
    stored: dict[str, FloatFormat] = field(default_factory=dict)

    def judge(self, stage: Stage, y: Tensor, c: Array, *, exact: bool = True) -> Verdict:
        """``stage`` as consumed, the oracle's value with errors, the candidate's values widened to float64 (finite).

        ``exact``: re-judge suspects from their exact partial sums, which costs more than all the rest.
        """
        store = self.arithmetic.stored(stage.path)
        if stage.op.kind in ("structural", "choice") and y.exact:
            return self._equal(stage, y, c)
        error = np.abs(c - y.data)
        inherited, acc = _split(y)
        sigma = np.sqrt(inherited + acc + np.square(np.broadcast_to(y.half, error.shape)) / 3)
        tail = self._tail(stage)
        tolerance = self._reach(y, tail)
        if y.coarse is not None:
            low, high = self._ends(stage, y, tolerance)
            rounded = True if y.coarse.where is None else y.coarse.where
            sigma = np.where(rounded, np.maximum(sigma, (high - low) * policies.FLIP), sigma)
            tolerance = _within(y, c, low, high, np.zeros(c.shape))
        elif store.p < F32.p:
            low, high = (self.arithmetic.to_storage(stage.path, y.data + side * tolerance) for side in (-1, 1))
            tolerance = _within(y, c, low, high, tolerance)
        ratio = _divide(error, tolerance)
        z = _divide(error, sigma)
        verdict = Verdict(ratio, np.empty(0), _rms_rows(z))
        if exact and store.p >= F32.p and stage.op.rejudge is not None:
            self._rejudge(stage, y, error, z, inherited * (tail / limits.gaussian(self.count)) ** 2, verdict)
        self._rows(stage, store, y, c, sigma, verdict)
        return verdict

    def _equal(self, stage: Stage, y: Tensor, c: Array) -> Verdict:
        """Structural stages agree to the bit, after the store's own rounding."""
        same = self.arithmetic.to_storage(stage.path, y.data) == c
        ratio = np.where(same, 0.0, np.inf)
        rows = ratio.reshape(len(ratio), -1).max(-1, initial=0.0) if ratio.size else np.zeros(len(ratio))
        return Verdict(ratio, rows, np.where(rows > 0, np.inf, 0.0))

    def _tail(self, stage: Stage) -> float:
        """Standard deviations allowed for what is not the stage's own sum: more for what came with inputs that were not recorded.

        Their variance is known, how they vary together is not: what an unseen query erred by moves a whole row of values along a few
        directions, and a sum over those has that energy only on average, as an accumulation has.
        """
        recorded = all(a.exact for a in stage.args if isinstance(a, Tensor))
        return limits.gaussian(self.count) if recorded else limits.exponential(self.count)

    def _reach(self, y: Tensor, tail: float) -> Array:
        """How far a healthy value may lie from ``y`` before it is stored."""
        inherited, acc = _split(y)
        return np.asarray(np.sqrt(tail**2 * inherited + limits.exponential(self.count) ** 2 * acc))

    def _ends(self, stage: Stage, y: Tensor, reach: Array) -> tuple[Array, Array]:
        """Least and largest of what a consumer's grid makes of healthy values, each as the stage stores it; of what only stands beside
        them, what lies within ``reach``."""
        assert y.coarse is not None
        before, where = y.coarse.before, True if y.coarse.where is None else y.coarse.where
        rounded = policies.interval(y.coarse.policy, before.data, self._reach(before, limits.exponential(self.count)) + before.half)
        ends = (np.where(where, end, y.data + side * reach) for side, end in zip((-1, 1), rounded, strict=True))
        low, high = (self.arithmetic.to_storage(stage.path, end) for end in ends)
        return low, high

    def _rejudge(self, stage: Stage, y: Tensor, error: Array, z: Array, inherited: Array, verdict: Verdict) -> None:
        """Elements beyond 5σ again, with their exact partial sums in the declared order (all known ones where none is declared)."""
        A = self.arithmetic
        suspects = np.flatnonzero((z > limits.SUSPECT).ravel())
        if not len(suspects):
            return
        ratio = verdict.ratio.ravel()[suspects]
        worst = suspects[np.argsort(-ratio)[:MAX_SUSPECTS]]
        if (ratio > HOPELESS).any():
            # The stage diverges whatever becomes of them: only what lies near the limit is worth its exact sums, for the extent.
            with np.errstate(divide="ignore"):
                near = np.argsort(np.abs(np.log(ratio)))
            worst = suspects[near[:FEW_SUSPECTS][ratio[near[:FEW_SUSPECTS]] <= HOPELESS]]
        if not len(worst):
            return
        where = np.unravel_index(worst, z.shape)
        assert stage.op.rejudge is not None
        own = A.order_in(stage.op.kind)
        orders = (own,) if A.declared else tuple(dict.fromkeys((own, "sequential", "pairwise", "blocked:64", "lanes:8")))
        exact = np.max([stage.op.rejudge(A, o, y.data, where, *stage.args, **stage.params) for o in orders], 0)
        again = _divide(error[where], limits.gaussian(self.count) * np.sqrt(inherited[where] + exact))
        verdict.ratio[where] = again if A.declared else np.minimum(verdict.ratio[where], again)
        verdict.rejudged = len(worst)
        beyond = verdict.ratio[where] > 1
        if beyond.any() and stage.op.name == "linear":
            self._coherence(stage, y, error, tuple(i[beyond] for i in where), verdict)

    def _coherence(self, stage: Stage, y: Tensor, error: Array, where: tuple[NDArray[Any], ...], verdict: Verdict) -> None:
        """Identical addends make every step's error point one way; variance cannot judge them: bound them, or say so."""
        reach, distinct = coherent(self.arithmetic, y.data, where, *stage.args[:2])
        unsure = (distinct < IDENTICAL_SHARE) & (error[where] <= reach)
        if unsure.any():
            verdict.settled = np.ones(error.shape, bool)
            verdict.settled[tuple(i[unsure] for i in where)] = False
            verdict.inconclusive = (
                f"{int(unsure.sum())} elements are sums of (nearly) identical products, whose rounding errors add up one way: "
                "within that bound, but no variance can judge them"
            )

    def _rows(self, stage: Stage, store: FloatFormat, y: Tensor, c: Array, sigma: Array, verdict: Verdict) -> None:
        rows = len(y.data)
        width = y.data.size // max(rows, 1)
        coarse = store.p < F32.p
        limit = limits.row(_kind(stage), coarse, width, rows, _inherited_share(stage, y, sigma))
        ratio = verdict.ratio if verdict.settled is None else np.where(verdict.settled, verdict.ratio, 0.0)
        element = ratio.reshape(rows, -1).max(-1, initial=0.0) if rows else np.zeros(0)
        verdict.row_ratio = np.maximum(element, verdict.rms / limit)
        # A declared cut is a bias by design: what is common to all rows is then measured from the cut value.
        centre = self.arithmetic.to_storage(stage.path, y.data) if coarse and self.arithmetic.truncate else y.data
        verdict.common = _common_mode(stage, y, c - centre, sigma, coarse)


def _within(y: Tensor, c: Array, low: Array, high: Array, reach: Array) -> Array:
    """Allowed distance under ``low <= c <= high``, the ends of a rounding that is monotone: nearly every element has one value.

    ``reach``: what is allowed at least, where the element is not already outside.
    """
    inside = (low <= c) & (c <= high)
    allowed = np.where(c >= y.data, high - y.data, y.data - low)
    # An element outside its interval is always beyond 1, one inside always within, whatever side of y the interval lies on.
    error = np.abs(c - y.data)
    return np.asarray(np.where(inside, np.maximum(allowed, error), np.minimum(np.maximum(allowed, reach), error * (1 - 2**-20))))


def _inherited_share(stage: Stage, y: Tensor, sigma: Array) -> float:
    """Share of a stage's variance that came with its inputs: what they err by, all the outputs of a row have from the same few values."""
    if all(a.exact for a in stage.args if isinstance(a, Tensor)) or not y.data.size:
        return 0.0
    return float(np.mean(np.divide(_split(y)[0], np.square(sigma), out=np.zeros(sigma.shape), where=sigma > 0)))


def _split(y: Tensor) -> tuple[Array, Array]:
    """(variance judged by λ, variance of the last accumulation judged by λe)."""
    var = np.broadcast_to(np.asarray(y.var, np.float64), y.data.shape)
    acc = np.broadcast_to(np.asarray(y.acc, np.float64), y.data.shape)
    return np.maximum(var - acc, 0.0), acc


def _divide(error: Array, by: Array) -> Array:
    """error / by, 0 where the error is 0, infinite where only the divisor is."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(error == 0, 0.0, np.where(by > 0, error / by, np.inf))


def _kind(stage: Stage) -> str:
    """The row limits that hold: those of a norm where few factors multiply many elements."""
    return stage.op.kind if stage.op.factor(*stage.args) is None else "norm"


def _rms_rows(z: Array) -> Array:
    with np.errstate(invalid="ignore", over="ignore"):
        return np.sqrt(np.square(z.reshape(len(z), -1)).mean(-1)) if z.size else np.zeros(len(z))


def _common_mode(stage: Stage, y: Tensor, error: Array, sigma: Array, coarse: bool) -> float:
    """Pooled signed test over distinct rows: a relative error shared by all rows is small in each and the same in all."""
    rows = len(y.data)
    if rows < 4 or stage.op.kind in ("structural", "choice"):
        return 0.0
    flat = y.data.reshape(rows, -1)
    # Equal rows (the masks of a block at layer 0) make equal errors: they count once. So do equal factors.
    factor = stage.op.factor(*stage.args)
    alike = flat if factor is None else factor.reshape(rows, -1)
    distinct = np.array(list({row.tobytes(): i for i, row in enumerate(alike)}.values()))
    if len(distinct) < 4:
        return 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        signed = np.where(sigma > 0, error / sigma, 0.0) * np.sign(y.data)
    per_row = np.clip(signed, -10, 10).reshape(rows, -1)[distinct].mean(-1)
    found, count = abs(float(per_row.mean())), len(distinct)
    width = flat.shape[1]
    if stage.op.carried:
        width, count = y.data.shape[1], 1
    inherited = _inherited_share(stage, y, sigma)
    limit = limits.pooled(_kind(stage), coarse, width, count, inherited)
    if found > limit and not stage.op.carried:
        limit = limits.pooled(_kind(stage), coarse, _independent(flat[distinct]), count, inherited)
    return found / limit


def _independent(rows: Array) -> int:
    """Elements of a row [row, dim] that can err by themselves: equal ones, as a coarsely quantised row normed without a weight has
    them, err alike. With n_k of a value, (Σ n_k)² / Σ n_k² is the width of as many independent elements."""
    repeats = np.concatenate([np.square(np.unique(np.abs(row), return_counts=True)[1]).sum(keepdims=True) for row in rows])
    return int(rows.shape[1] ** 2 / float(np.mean(repeats)))
