"""`parity replay`: a foreign engine's round trace against the rules, and against the oracle's target where its files are given.

With a target, the trace's windows are run again after the tokens it committed: picks that are not the target's are ties or violations, and
those are tried against the cache bugs of `bugs`, one by one: the one whose picks are the recorded ones in every round is the explanation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from oracle.models import Target
from oracle.ops.argmax import first_argmax
from oracle.speculation.caches import BLOCK_ROWS, CacheError, TargetCache, new_cache
from oracle.tensor import Array
from parity.errors import UsageError
from parity.report import EXIT, plain
from parity.speculating.bugs import BUGS, Bug, CropCache
from parity.speculating.checks import CHECKS, Violation, seen, violations
from parity.speculating.foreign import Foreign, Round, read
from parity.speculating.noise import declared, row_noise

SCHEMA = "dflash-parity-replay/1"


@dataclass(frozen=True)
class Pick:
    """A recorded choice that is not the oracle target's after the same tokens; ``verdict`` tie, violation or unjudged."""

    round: int
    row: int
    target: int
    recorded: int
    gap: float
    noise: float
    verdict: str


@dataclass
class ReplayReport:
    """``verdict``: parity, divergence, or inconclusive where a required check could not be made."""

    source: str
    rounds: int
    seen: dict[str, int]
    violations: list[Violation]
    picks: list[Pick] = field(default_factory=list)
    compared: int = 0
    missing: list[str] = field(default_factory=list)
    explanation: str = ""
    header: dict[str, Any] = field(default_factory=dict)
    accepted: int = 0
    drafted: int = 0

    @property
    def verdict(self) -> str:
        if self.violations:
            return "divergence"
        return "inconclusive" if self.missing or any(p.verdict == "unjudged" for p in self.picks) else "parity"

    @property
    def exit_status(self) -> int:
        return EXIT[self.verdict]

    @property
    def by_check(self) -> dict[str, int]:
        return dict(Counter(v.check for v in self.violations))

    def to_json(self) -> dict[str, Any]:
        head = {"schema": SCHEMA, "verdict": self.verdict, "exit_status": self.exit_status, "by_check": self.by_check}
        out: dict[str, Any] = plain(head | asdict(self))
        return out


def replay(
    path: Path, target: Target | None = None, *, required: Iterable[str] = (), arithmetic: str | None = None, members: int = 4
) -> ReplayReport:
    """Check the trace at ``path``. `UsageError` for a file that is no trace, or a required check that does not exist."""
    trace = read(path)
    if unknown := [c for c in required if c not in (*CHECKS, "target")]:
        raise UsageError(f"--require {unknown[0]}: expected one of {', '.join((*CHECKS, 'target'))}")
    return check(trace, target, required=required, arithmetic=arithmetic, members=members)


def check(
    trace: Foreign, target: Target | None = None, *, required: Iterable[str] = (), arithmetic: str | None = None, members: int = 4
) -> ReplayReport:
    """Check a trace that is already read."""
    counts = seen(trace)
    spoken = [r for r in trace.rounds if not r.fallback]
    report = ReplayReport(trace.source, len(trace.rounds), counts, violations(trace), header=trace.header)
    report.accepted, report.drafted = sum(r.accepted for r in spoken), sum(len(r.window) - 1 for r in spoken)
    report.missing = [c for c in required if (target is None if c == "target" else not counts[c])]
    if target is not None:
        _against(report, trace, target, arithmetic, members)
    if not report.explanation and report.violations:
        v = report.violations[0]
        report.explanation = next((b.about for b in BUGS.values() if b.check == v.check), "")
    return report


def _against(report: ReplayReport, trace: Foreign, target: Target, arithmetic: str | None, members: int) -> None:
    if trace.prompt is None:
        raise UsageError(f"{trace.source}: the header has no prompt: the target cannot be run after it")
    _check_ids(trace, target)
    runs = run_windows(trace, target, new_cache(target))
    wrong = [
        (i, j, int(first_argmax(rows[j])), p, rows)
        for i, rows in enumerate(runs)
        for j, p in enumerate(_recorded(trace, i))
        if j < len(rows)
    ]
    report.compared = len(wrong)
    for number, row, mine, theirs, rows in [w for w in wrong if w[2] != w[3]]:
        gap = float(rows[row][mine] - rows[row][theirs]) if 0 <= theirs < rows.shape[1] else float("inf")
        noise, verdict = _judge(trace, target, number, row, mine, theirs, arithmetic, members)
        report.picks.append(Pick(number, row, mine, theirs, gap, noise, verdict))
    bad = [p for p in report.picks if p.verdict == "violation"]
    if not bad:
        return
    report.explanation = counterfactual(trace, target)
    check = next(
        (b.check for b in BUGS.values() if b.about and report.explanation.startswith(b.about)), "rollback" if bad[0].round else "picks"
    )
    first = bad[0]
    told = f"row {first.row} picked {first.recorded}, the target picks {first.target} (ahead by {first.gap:.3g}, noise {first.noise:.2g}); "
    told += f"{len(bad)} of {report.compared} picks differ" + (f"; explained by: {report.explanation}" if report.explanation else "")
    report.violations.append(Violation(first.round, check, told))
    report.violations.sort(key=lambda v: v.round)


def _check_ids(trace: Foreign, target: Target) -> None:
    vocab = target.geometry.vocab
    for n, r in enumerate(trace.rounds):
        if any(not 0 <= t < vocab for t in (*r.window, r.bonus)):
            raise UsageError(f"{trace.source}:{r.line}: round {n}: a token id outside this target's vocabulary of {vocab}")
    if any(not 0 <= t < vocab for t in trace.prompt or ()):
        raise UsageError(f"{trace.source}: the prompt has token ids outside this target's vocabulary of {vocab}")


def _recorded(trace: Foreign, number: int) -> tuple[int, ...]:
    r = trace.rounds[number]
    if r.picks is not None:
        return r.picks
    return tuple(x.pick for x in r.target_logits) if r.target_logits is not None else ()


def run_windows(trace: Foreign, target: Target, cache: TargetCache) -> list[Array]:
    """The target's logits [row, vocab] of every round's window, each after the rows that the trace committed before it."""
    assert trace.prompt is not None
    out, rows = target.window(trace.prompt), []
    cache.begin(len(trace.prompt))
    cache.append(out.state, trace.prompt)
    cache.commit(len(trace.prompt))
    for r in trace.rounds:
        cache.begin(len(r.window))
        out = target.window(r.window, cache.state())
        cache.append(out.state, r.window)
        cache.commit(min(_kept(r), len(r.window)))
        rows.append(out.logits)
    return rows


def _kept(r: Round) -> int:
    return max(r.accepted + 1 if r.kept is None else r.kept, 0)


def _judge(
    trace: Foreign, target: Target, number: int, row: int, mine: int, theirs: int, arithmetic: str | None, members: int
) -> tuple[float, str]:
    """(noise, verdict) of one differing pick, from an ensemble over the tokens before it."""
    if not members:
        return float("nan"), "unjudged"
    if not 0 <= theirs < target.geometry.vocab:
        return 0.0, "violation"
    tokens = [
        *(trace.prompt or ()),
        *(t for r in trace.rounds[:number] for t in r.window[: _kept(r)]),
        *trace.rounds[number].window[: row + 1],
    ]
    noise = row_noise(target, tokens, len(tokens) - 1, *declared("f32", arithmetic), members)
    _, spread, tie = noise.tie(0, mine, theirs)
    return spread, "tie" if tie else "violation"


def counterfactual(trace: Foreign, target: Target) -> str:
    """The cache bug under which the target's picks are the recorded ones in every round; nothing where none explains them all."""
    rows = max((len(r.window) for r in trace.rounds), default=1)
    for found in [b for b in BUGS.values() if b.cache is not None and b.possible(target)] + [CROP]:
        assert found.cache is not None
        try:
            runs = run_windows(trace, target, found.cache(target, min(rows, BLOCK_ROWS)))
        except (CacheError, ValueError):
            continue
        if all(int(first_argmax(y[j])) == p for i, y in enumerate(runs) for j, p in enumerate(_recorded(trace, i)) if j < len(y)):
            return found.about
    return ""


CROP = Bug("crop.off-by-one", BUGS["crop.off-by-one"].about, "crop", None, CropCache)
