"""Two files of logits of the same tokens (chain and block, baseline and speculative): is a different argmax a tie, or a divergence?

Nothing but the logits is known, so the noise is read from them: in a row, every logit's two values differ by rounding, and the spread
of these differences is the row's noise. Rounding moves all logits of a row alike; a pair that crosses by more than that is no tie.
A mistake that moves *all* logits looks like noise from here: it shows as a spread that no depth of rounding reaches, or in one row and
not in others, and both are said. With the model and a dump, `parity compare` decides at the stage.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from oracle.arithmetic import Arithmetic
from oracle.floats import BF16, F32, FORMATS, FloatFormat
from oracle.ops.argmax import first_argmax
from oracle.tensor import Array
from parity import limits
from parity.errors import UsageError
from parity.logit_files import LogitFile

# A normal sample's median absolute deviation times this is its standard deviation.
MAD = 1.4826
# Spread of a row's differences over (unit roundoff x spread of its logits). Measured on SmolLM2, 30 layers: 40 (worst row 106) for f32,
# 3 for bf16.
AMPLIFICATION = 1024.0
# Beyond this share of the logits' own spread no arithmetic excuses a difference.
LARGEST_SPREAD = 0.1


@dataclass
class Crossing:
    """One row whose two argmax differ, or whose values cannot be judged.

    ``a``, ``b``: the two choices (lowest index on ties); ``gap_a = A[a] - A[b]``, ``gap_b = B[b] - B[a]``, both >= 0 in logits;
    ``noise``: standard deviation of the difference of two logits between the files; ``sigmas = (gap_a + gap_b) / noise``;
    ``ulps``: gap_a in spacings of the store.
    ``verdict``: ``tie``, ``divergence`` or ``invalid``.
    """

    row: int
    a: int
    b: int
    gap_a: float
    gap_b: float
    noise: float
    sigmas: float
    ulps: float
    probability: float
    verdict: str
    reason: str = ""


@dataclass
class Ties:
    """What two files of logits say of each other."""

    a: str
    b: str
    rows: int
    vocab: int
    arithmetic: str
    equal_rows: int = 0
    crossings: list[Crossing] = field(default_factory=list)
    noisy_rows: list[int] = field(default_factory=list)
    amplification: float = 0.0
    limit: float = AMPLIFICATION
    smallest_gap: float = math.inf
    smallest_gap_row: int = -1
    close: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        verdicts = {c.verdict for c in self.crossings}
        if verdicts & {"divergence", "invalid"}:
            return "divergence"
        return "inconclusive" if self.amplification > self.limit or self.noisy_rows else "parity"

    @property
    def exit_status(self) -> int:
        return {"parity": 0, "divergence": 1, "inconclusive": 3}[self.verdict]

    def to_json(self) -> dict[str, Any]:
        made = asdict(self)
        if not math.isfinite(self.smallest_gap):
            made["smallest_gap"] = None
        return {"schema": "dflash-parity-ties/1", "verdict": self.verdict, "exit_status": self.exit_status, **made}


@dataclass(frozen=True, eq=False)
class _Row:
    number: int
    x: Array
    y: Array
    half: float
    sigma: float
    spread: float


def classify(a: LogitFile, b: LogitFile, arithmetic: Arithmetic) -> Ties:
    """Judge every row of two logit files. ``arithmetic``: what the engines declare; its store of ``target.logits`` bounds what is noise.

    Raises `UsageError` where the two do not hold the same rows and vocabulary.
    """
    if (a.rows, a.vocab) != (b.rows, b.vocab):
        raise UsageError(f"{b.path}: expected {a.rows} rows of {a.vocab} logits as in {a.path}, found {b.rows} of {b.vocab}")
    store = min((arithmetic.stored("target.logits"), a.store, b.store), key=lambda f: f.p)
    unit = max(store.u, *(f.u for f in _roundings(arithmetic)))
    found = Ties(str(a.path), str(b.path), a.rows, a.vocab, arithmetic.name)
    sigmas = np.array([_measure(a, b, i, store).sigma for i in range(a.rows)])
    usual = float(np.median(sigmas[sigmas > 0])) if (sigmas > 0).any() else 0.0
    amplified = []
    for i in range(a.rows):
        row = _measure(a, b, i, store)
        _judge(found, row, store, usual)
        if row.sigma > 0 and row.spread > 0:
            amplified.append(row.sigma / (unit * row.spread))
    found.amplification = float(np.median(amplified)) if amplified else 0.0
    found.limit = min(AMPLIFICATION, LARGEST_SPREAD / unit)
    _remark(found)
    return found


def _roundings(arithmetic: Arithmetic) -> list[FloatFormat]:
    """The formats that some value of the forward is rounded to; blocks of signed bytes round like eight bits."""
    words = [w for _, w in arithmetic.store + arithmetic.use]
    return [F32, *(BF16 if w.startswith("q8") else FORMATS[w] for w in words)]


def _measure(a: LogitFile, b: LogitFile, i: int, store: FloatFormat) -> _Row:
    (x, wide_x), (y, wide_y) = a.row(i), b.row(i)
    seen = np.isfinite(x) & np.isfinite(y)
    for values, floor in ((x, a.floor), (y, b.floor)):
        if floor:
            seen &= values > values.min()
    # A common shift of a row (log-probabilities beside logits) changes no choice.
    d = x[seen] - y[seen]
    middle = np.median(d) if d.size else 0.0
    sigma = MAD * float(np.median(np.abs(d - middle))) if d.size else 0.0
    largest = float(np.abs(np.where(np.isfinite(x), x, 0)).max())
    half = float(store.ulp(largest)) / 2 + max(wide_x, wide_y)
    return _Row(i, x, y, half, sigma, float(np.std(x[seen])) if d.size else 0.0)


def _judge(found: Ties, row: _Row, store: FloatFormat, usual: float) -> None:
    if np.isnan(row.x).any() or np.isnan(row.y).any() or np.isposinf(row.x).any() or np.isposinf(row.y).any():
        side = "A" if not np.isfinite(row.x[~np.isneginf(row.x)]).all() else "B"
        bad = row.x if side == "A" else row.y
        at = int(np.flatnonzero(np.isnan(bad) | np.isposinf(bad))[0])
        found.crossings.append(Crossing(row.number, -1, -1, 0, 0, 0, 0, 0, 0, "invalid", f"{side}[{at}] is {bad[at]}"))
        return
    found.equal_rows += bool((row.x == row.y).all())
    i, j = int(first_argmax(row.x)), int(first_argmax(row.y))
    noise = math.sqrt(2) * max(row.sigma, row.half / math.sqrt(3))
    allowed = limits.gaussian(found.rows * found.vocab) * noise
    second = float(np.partition(row.x, -2)[-2])
    gap = float(row.x[i]) - second
    if gap < found.smallest_gap:
        found.smallest_gap, found.smallest_gap_row = gap, row.number
    found.close += gap <= allowed
    outlier = usual > 0 and row.sigma > limits.ROLLED_DIVERGE * usual
    if outlier:
        found.noisy_rows.append(row.number)
    if i == j:
        return
    gap_a, gap_b = float(row.x[i] - row.x[j]), float(row.y[j] - row.y[i])
    crossed = gap_a + gap_b
    verdict, reason = "tie", ""
    if outlier:
        verdict, reason = "divergence", f"its logits differ {row.sigma / usual:.3g} times as much as in other rows"
    elif crossed > allowed:
        verdict, reason = "divergence", f"crossed by {crossed / noise:.3g} sigma, noise explains {allowed / noise:.3g}"
    probability = 0.5 * math.erfc(gap_a / noise / math.sqrt(2)) if noise > 0 else 0.5 * (gap_a == 0)
    ulps = gap_a / float((store if store.p < F32.p else F32).ulp(row.x[i]))
    sigmas = crossed / noise if noise > 0 else math.inf
    found.crossings.append(Crossing(row.number, i, j, gap_a, gap_b, noise, sigmas, ulps, probability, verdict, reason))


def _remark(found: Ties) -> None:
    if found.amplification > found.limit:
        found.notes.append(
            f"the files differ by {found.amplification:.3g} roundings of {found.arithmetic}, more than depth explains "
            f"(limit {found.limit:.3g}): not two runs of one model under this arithmetic; compare stage dumps"
        )
    if found.noisy_rows:
        from parity.render import spans

        found.notes.append(f"rows {spans(found.noisy_rows)} differ over {limits.ROLLED_DIVERGE:.0f} times as much as the others")
    if found.equal_rows == found.rows:
        found.notes.append("all rows are bit-equal: are these two runs, or one file twice?")
