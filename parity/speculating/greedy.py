"""`parity greedy`: is the text of target + drafter the target's own, token by token and logit row by logit row, and if not, why.

Every difference is a tie (its margin within the noise of two healthy runs) or a divergence; the first differing round is explained by the
rules that it, or a round before it, broke (`checks`), by caches or context that differ from a rebuild, or else by the rows themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from oracle.ops.argmax import first_argmax
from oracle.speculation.acceptance import Shadow, counts, differences, shadow
from oracle.speculation.gates import WINDOW, finding
from oracle.speculation.trace import RoundRecord, Trace
from parity.errors import UsageError
from parity.report import EXIT, plain
from parity.speculating.arms import Arms, run
from parity.speculating.bugs import BUGS
from parity.speculating.checks import Violation, violations
from parity.speculating.foreign import of_trace
from parity.speculating.noise import RowNoise, declared, row_noise
from parity.speculating.proposals import Gap, Proposals
from parity.speculating.proposals import compare as compare_proposals
from parity.speculating.setup import Models, Setup, open_models

SCHEMA = "dflash-parity-greedy/1"


@dataclass(frozen=True)
class Difference:
    """A token that the session chose and the target alone, after the same tokens, does not.

    ``token``: its index among the new tokens; ``gap``: the oracle's logit of the target's choice less that of the session's; ``verdict``:
    tie, divergence, or unjudged without an ensemble.
    """

    token: int
    round: int
    row: int
    target: int
    session: int
    gap: float
    noise: float
    verdict: str


@dataclass(frozen=True)
class Rows:
    """Window rows against single rows: how many, the worst |difference| over its tolerance (NaN: no ensemble), and where."""

    compared: int
    largest: float
    ratio: float
    token: int
    round: int
    row: int

    @property
    def unjudged(self) -> bool:
        """Rows differ and there is no ensemble to say whether as rounding does; rows of equal bits need none."""
        return math.isnan(self.ratio) and self.largest > 0


@dataclass
class GreedyReport:
    """``verdict``: parity, divergence or inconclusive. ``identical``: the texts are equal, ties or not.

    ``proposals``: a compiled or rounding drafter's against the oracle's, fed the same features; None for other drafters. ``cache`` and
    ``context``: per layer, the relative difference from a rebuild; ``rebuild``: half the digits of what they are stored in, far beyond
    what another order of summation leaves, far below what a wrong row is. ``misuse``: what the emulator of an emulated library found.
    """

    setup: dict[str, Any]
    geometry: dict[str, Any]
    tokens: int
    identical: bool
    repeated: bool
    rows: Rows
    differences: list[Difference] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    failure: str | None = None
    cache: dict[int, float] = field(default_factory=dict)
    context: dict[int, float] = field(default_factory=dict)
    acceptance: list[dict[str, Any]] = field(default_factory=list)
    floor: float | None = None
    findings: list[str] = field(default_factory=list)
    explanation: str = ""
    rebuild: float = 2.0**-26
    proposals: Proposals | None = None
    shadow: Shadow | None = None
    misuse: list[str] = field(default_factory=list)

    @property
    def rate(self) -> float | None:
        return next((a["rate"] for a in self.acceptance if a["engine"] == "mlxcel"), None)

    @property
    def broken(self) -> list[str]:
        """Everything that is not parity, one line each."""
        told = list(self.misuse)
        for check in dict.fromkeys(v.check for v in self.violations):
            same = [v for v in self.violations if v.check == check]
            told.append(f"{check}, {len(same)} rounds, first round {same[0].round}: {same[0].what}")
        if wrong := [d for d in self.differences if d.verdict == "divergence"]:
            told.append(f"{len(wrong)} tokens are not the target's, first token {wrong[0].token}: {wrong[0].session} for {wrong[0].target}")
        if self.rows.ratio > 1:
            told.append(
                f"logits of round {self.rows.round} row {self.rows.row}: {self.rows.ratio:.3g} x tolerance from those of a single row"
            )
        if p := self.proposals:
            told += [
                f"proposals: {len(p.wrong)} are not the oracle drafter's, round {d.round} draft {d.draft}: {d.proposed} for {d.oracle}"
                for d in p.wrong[:1]
            ]
            if p.ratio > 1:
                told.append(f"proposals: logits of draft {p.draft} of round {p.round}: {p.ratio:.3g} x tolerance from the oracle drafter's")
        for what, gaps in (("target cache", self.cache), ("drafter context", self.context)):
            if bad := [i for i, g in gaps.items() if not g <= self.rebuild]:
                told.append(f"{what}: layers {', '.join(map(str, bad))} differ from a rebuild by up to {max(gaps[i] for i in bad):.3g}")
        if self.failure:
            told.append(self.failure)
        if self.floor is not None and not (self.rate is not None and self.rate >= self.floor):
            told.append(f"acceptance {self.rate}: below the required {self.floor}")
        return told

    @property
    def verdict(self) -> str:
        if self.broken or not self.repeated:
            return "divergence"
        verdicts = [d.verdict for d in self.differences] + [d.verdict for d in (self.proposals.differences if self.proposals else [])]
        rows = self.rows.unjudged or (self.proposals is not None and self.proposals.unjudged)
        return "inconclusive" if rows or "unjudged" in verdicts else "parity"

    @property
    def exit_status(self) -> int:
        return EXIT[self.verdict]

    def to_json(self) -> dict[str, Any]:
        body = {"schema": SCHEMA, "verdict": self.verdict, "exit_status": self.exit_status, "broken": self.broken}
        out: dict[str, Any] = plain(body | asdict(self))
        return out


def compare(
    setup: Setup, *, arithmetic: str | None = None, members: int = 4, floor: float | None = None, timeout: float = 600.0,
    shadowed: bool = False,
) -> tuple[GreedyReport, Trace]:  # fmt: skip
    """Run both arms and judge: the report and the session's trace.

    ``members``: sampled runs of the noise; 0 leaves rows and choices that differ unjudged, which is inconclusive. ``shadowed``: count
    how often the oracle's drafter is right along the target's own text, too.
    """
    models = open_models(setup)
    if shadowed and models.drafter is None:
        raise UsageError(f"--shadow: drafter {setup.drafter} has no model that could run beside the target")
    made = run(setup, timeout)
    new = made.trace.tokens[len(setup.prompt) :]
    noise = None
    if members:
        noise = row_noise(models.target, [*setup.prompt, *new[:-1]], len(setup.prompt) - 1, *declared(setup.candidate, arithmetic), members)
    trace = of_trace(made.trace)
    # A round's window rows that follow accepted tokens only, by the new token each of them chooses.
    chosen = [(r, j, r.position + j + 1 - len(setup.prompt)) for r in made.trace.rounds for j in range(min(r.accepted + 1, len(r.window)))]
    rows = [x for x in chosen if x[2] < len(new)]
    report = GreedyReport(
        {k: str(v) if k in ("target", "drafter_path") and v else v for k, v in asdict(setup).items()}, _geometry(models, made),
        len(made.trace.emitted), made.trace.emitted == made.alone, made.repeated, _rows(rows, made, noise),
        _differences(rows, made, noise), [*violations(trace), *_forced(made)], made.failure, made.cache_gap, made.context_gap,
        counts(made.trace), floor, _findings(models, made, setup), misuse=made.misuse,
    )  # fmt: skip
    if models.drafter is not None and setup.candidate != "f64" and made.failure is None:
        lent = models.target.embedding, models.target.head
        try:
            report.proposals = compare_proposals(trace, models.drafter, *lent, *declared(setup.candidate, arithmetic), members)
        except Gap as e:
            report.failure = f"the drafter cannot be run again: {e}"
    if shadowed:
        report.shadow = _shadow(models, setup, made.alone)
    report.rebuild = 2.0 ** -(_digits(setup.candidate, arithmetic) // 2)
    report.explanation = _explanation(report, setup)
    return report, made.trace


def _shadow(m: Models, setup: Setup, reference: Sequence[int]) -> Shadow | None:
    """None where the text is shorter than one round."""
    drafts = m.schedule.drafts(m.length)
    if m.drafter is None or len(reference) <= drafts:
        return None
    return shadow(m.target, m.drafter, m.schedule, setup.prompt, reference, drafts)


def _geometry(m: Models, made: Arms) -> dict[str, Any]:
    h = made.trace.header
    return {"family": h.family, "engine": m.schedule.name, "layout": h.layout, "unit": m.schedule.unit, "verify_length": m.length} | {
        "drafts": h.drafts, "block_size": h.block_size, "mask": h.mask, "cache": h.cache, "drafter": h.geometry
    }  # fmt: skip


def _digits(candidate: str, arithmetic: str | None) -> int:
    """Significant bits of a stored key or value."""
    return 53 if candidate == "f64" else declared(candidate, arithmetic)[0].stored("target.L0.k_rope").p


Chosen = tuple[RoundRecord, int, int]


def _rows(rows: Sequence[Chosen], made: Arms, noise: RowNoise | None) -> Rows:
    worst, largest = Rows(0, 0.0, math.nan if noise is None else 0.0, 0, 0, 0), 0.0
    for r, j, token in rows:
        assert r.target_logits is not None
        gap = float(np.abs(r.target_logits[j].astype(np.float64) - made.chain[token]).max())
        gap = math.inf if math.isnan(gap) else gap
        tolerance = noise.tolerance(token) if noise is not None else math.nan
        ratio = (gap / tolerance if tolerance > 0 else math.inf * (gap > 0)) if noise is not None else math.nan
        if gap and (gap > largest if noise is None else ratio > worst.ratio):
            worst = Rows(0, 0.0, ratio, token, r.round, j)
        largest = max(largest, gap)
    # No noise makes a logit that is no number.
    ratio = math.inf if math.isinf(largest) else worst.ratio
    return Rows(len(rows), largest, ratio, worst.token, worst.round, worst.row)


def _differences(rows: Sequence[Chosen], made: Arms, noise: RowNoise | None) -> list[Difference]:
    """Choices of the session that the target alone does not make after the same tokens."""
    found, new = [], made.trace.tokens[len(made.trace.header.prompt) :]
    for r, j, token in rows:
        alone = int(first_argmax(made.chain[token]))
        if new[token] == alone:
            continue
        if noise is None:
            gap, spread, verdict = float(made.chain[token][alone] - made.chain[token][new[token]]), math.nan, "unjudged"
        else:
            gap, spread, tie = noise.tie(token, alone, new[token])
            verdict = "tie" if tie else "divergence"
        found.append(Difference(token, r.round, j, alone, new[token], gap, spread, verdict))
    return found


def _forced(made: Arms) -> list[Violation]:
    """The oracle drafter's rounds accept what it was told to make them accept, by index."""
    if not made.forced:
        return []
    found, asked = [], 0
    reference = [*made.trace.header.prompt, *made.alone]
    for r in made.trace.rounds:
        if not r.proposals:
            continue
        want = made.forced[asked % len(made.forced)]
        asked += 1
        expected = len(r.window) - 1 if want is None else min(want, len(r.window) - 1)
        # Once the text has left the reference the drafter knows nothing any more.
        if made.trace.tokens[: r.position + 1] == reference[: r.position + 1] and r.accepted != expected:
            found.append(Violation(r.round, "forced", f"{r.accepted} drafts accepted where the oracle drafter forced {expected}"))
    return found


def _findings(m: Models, made: Arms, setup: Setup) -> list[str]:
    told = differences(made.trace)
    if setup.gate == "windowed" and (line := finding(m.schedule.drafts(m.length))):
        told.append(line)
    closed = [r.round for r in made.trace.rounds if r.fallback]
    if closed:
        told.append(
            f"the {setup.gate} gate closed before round {closed[0]}; {len(closed)} of {len(made.trace.rounds)} rounds were plain decodes"
        )
    elif setup.gate:
        told.append(f"the {setup.gate} gate (over {WINDOW} rounds) stayed open")
    return told


def _explanation(report: GreedyReport, setup: Setup) -> str:
    """Why the first differing round differs, in the order of evidence: broken rules, caches, rows."""
    first = min([d.round for d in report.differences] + ([report.rows.round] if report.rows.ratio > 1 else []), default=None)
    told = [v for v in report.violations if (first is None or v.round <= first) and v.check != "forced"]
    if told:
        v = told[0]
        kind = next((b.about for b in BUGS.values() if b.check == v.check), v.check)
        return f"round {v.round}: {v.check}: {v.what} ({kind})"
    if first is None:
        return "".join(f"round {v.round}: {v.check}: {v.what}" for v in report.violations[:1])
    bad = [i for i, g in report.cache.items() if not g <= report.rebuild]
    if bad or report.rows.ratio > 1:
        layers = f"; layers {', '.join(map(str, bad))} of the cache differ from a rebuild" if bad else ""
        back = f"its cache ({setup.cache or 'dense'}) gave other rows back than it took"
        return f"round {first}: rollback: no rule of the round is broken and its logits are not those of single rows: {back}{layers}"
    d = report.differences[0]
    return f"round {first}: {d.verdict}: gap {d.gap:.3g} between {d.target} and {d.session}, noise {d.noise:.3g}"
