"""`parity replay`: a foreign engine's round trace against the rules, and against the oracle's target where its files are given.

With a target, the trace's windows are run again after the tokens it committed: picks that are not the target's are ties or violations, and
those are tried against the cache bugs of `bugs`, one by one: the one whose picks are the recorded ones in every round is the explanation.
With the drafter too, its proposals are run again from the features that it was given, and those features compared with the target's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from oracle.models import Drafter, Target
from oracle.ops.argmax import first_argmax
from oracle.speculation import acceptance
from oracle.speculation.caches import BLOCK_ROWS, CacheError, new_cache
from parity.errors import UsageError
from parity.identity import same_files
from parity.report import EXIT, plain
from parity.speculating.bugs import BUGS, Bug, CropCache
from parity.speculating.checks import CHECKS, Violation, seen, violations
from parity.speculating.feeds import Row, Taps, compare_taps, kept_rows, members_of, proposals_of, run_windows
from parity.speculating.feeds import counterfactual as around_the_drafter
from parity.speculating.foreign import Foreign, read
from parity.speculating.noise import declared, row_noise
from parity.speculating.proposals import Draft, Gap, Proposals, missing

SCHEMA = "dflash-parity-replay/1"
ENOUGH = 8
MODELS = ("target", "drafter", "taps")
"""What ``--require`` names beside the checks: that the target's picks, the drafter's proposals, its recorded features were looked at."""


@dataclass(frozen=True)
class Pick:
    """A recorded choice that is not the oracle target's after the same tokens; ``verdict`` tie, violation or unjudged; further behind
    `ENOUGH` violations, which decide without them."""

    round: int
    row: int
    target: int
    recorded: int
    gap: float
    noise: float
    verdict: str


@dataclass
class ReplayReport:
    """``verdict``: parity, divergence, or inconclusive where a required check could not be made.

    ``proposals`` and ``taps``: the drafter run again, and the features it was given, where it is known; ``fed``: whose features it was
    run from, ``recorded`` or ``target``. ``moved``: from which round on weights ran elsewhere, so that its tokens are not claimed.
    """

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
    acceptance: list[dict[str, Any]] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    proposals: Proposals | None = None
    taps: Taps | None = None
    fed: str = ""
    moved: str = ""

    @property
    def verdict(self) -> str:
        if self.violations:
            return "divergence"
        verdicts = [p.verdict for p in self.picks] + [d.verdict for d in (self.proposals.differences if self.proposals else [])]
        return "inconclusive" if self.missing or self.moved or "unjudged" in verdicts else "parity"

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


@dataclass(frozen=True)
class _Count:
    fallback: bool
    proposals: tuple[int, ...]
    window: tuple[int, ...]
    accepted: int
    kept: int


@dataclass(frozen=True)
class _Counted:
    rounds: list[_Count]


def replay(
    path: Path, target: Target | None = None, drafter: Drafter | None = None, *, required: Iterable[str] = (),
    arithmetic: str | None = None, members: int = 4,
) -> ReplayReport:  # fmt: skip
    """Check the trace at ``path``. `UsageError` for a file that is no trace, or a required check that does not exist."""
    trace = read(path)
    if unknown := [c for c in required if c not in (*CHECKS, *MODELS)]:
        raise UsageError(f"--require {unknown[0]}: expected one of {', '.join((*CHECKS, *MODELS))}")
    return check(trace, target, drafter, required=required, arithmetic=arithmetic, members=members)


def check(
    trace: Foreign, target: Target | None = None, drafter: Drafter | None = None, *, required: Iterable[str] = (),
    arithmetic: str | None = None, members: int = 4,
) -> ReplayReport:  # fmt: skip
    """Check a trace that is already read. `IdentityMismatch` where it says that it was made with other files than those opened."""
    _same_files(trace, target, drafter)
    counts = seen(trace)
    spoken = [r for r in trace.rounds if not r.fallback]
    report = ReplayReport(trace.source, len(trace.rounds), counts, violations(trace), header=trace.header)
    report.accepted, report.drafted = sum(r.accepted for r in spoken), sum(len(r.window) - 1 for r in spoken)
    counted = _Counted([_Count(r.fallback, r.proposals, r.window, r.accepted, kept_rows(r)) for r in trace.rounds])
    report.acceptance, report.findings = acceptance.counts(counted), acceptance.differences(counted)
    known = counts | {"target": int(target is not None), "drafter": int(drafter is not None)}
    known["taps"] = int(not missing(trace)) if drafter is not None else 0
    report.missing = [c for c in required if not known[c]]
    if drafter is not None and target is None:
        raise UsageError(f"{trace.source}: a drafter is run with its target's embedding and head: name the target too (--target PATH)")
    if target is not None and (moves := trace.moves):
        report.moved = f"from round {moves[0]} on weights ran elsewhere ({moves[1]}): no claim about its tokens from there on"
        trace = replace(trace, rounds=trace.rounds[: moves[0]])
    if target is not None and trace.rounds:
        _against(report, trace, target, arithmetic, members)
        if drafter is not None:
            _drafted(report, trace, target, drafter, arithmetic, members)
    report.violations.sort(key=lambda v: v.round)
    if not report.explanation and report.violations:
        v = report.violations[0]
        report.explanation = next((b.about for b in BUGS.values() if b.check == v.check), "")
    return report


def _same_files(trace: Foreign, target: Target | None, drafter: Drafter | None) -> None:
    """``identity`` of the header, SHA-256 by file name of ``target`` and ``drafter``, against what was opened."""
    said = trace.header.get("identity", {})
    if not isinstance(said, dict):
        raise UsageError(f"{trace.source}: identity: expected an object with target and drafter, found {str(said)[:60]!r}")
    for name, model in (("target", target), ("drafter", drafter)):
        if name in said and model is not None and model.identity is not None:
            same_files(said[name], model.identity.sha256, f"{trace.source}: identity.{name}")


def _against(report: ReplayReport, trace: Foreign, target: Target, arithmetic: str | None, members: int) -> None:
    if trace.prompt is None:
        raise UsageError(f"{trace.source}: the header has no prompt: the target cannot be run after it")
    _check_ids(trace, target)
    runs = [out.logits for out in run_windows(trace, target, new_cache(target))[1:]]
    wrong = [
        (i, j, int(first_argmax(rows[j])), p, rows)
        for i, rows in enumerate(runs)
        for j, p in enumerate(_recorded(trace, i))
        if j < len(rows)
    ]
    report.compared = len(wrong)
    for number, row, mine, theirs, rows in [w for w in wrong if w[2] != w[3]]:
        gap = float(rows[row][mine] - rows[row][theirs]) if 0 <= theirs < rows.shape[1] else float("inf")
        enough = sum(p.verdict == "violation" for p in report.picks) >= ENOUGH
        noise, verdict = (float("nan"), "further") if enough else _judge(trace, target, number, row, mine, theirs, arithmetic, members)
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
    told += f"{len(report.picks)} of {report.compared} picks differ" + (
        f"; explained by: {report.explanation}" if report.explanation else ""
    )
    report.violations.append(Violation(first.round, check, told))


def _drafted(report: ReplayReport, trace: Foreign, target: Target, drafter: Drafter, arithmetic: str | None, members: int) -> None:
    """The features that became context, and the proposals made of them."""
    from oracle.artifacts.pairing import mismatches

    if wrong := mismatches(drafter.dialect.family, drafter.geometry, target.embedding, target.geometry):
        raise UsageError(f"{trace.source}: the target is not this drafter's: {'; '.join(wrong)}")
    if trace.prompt is None:
        raise UsageError(f"{trace.source}: the header has no prompt: the drafter cannot be run after it")
    noise = declared("f32", arithmetic)
    exact, sampled = members_of(trace, target, drafter.tap_ids, noise[0], members)
    if members and (trace.taps is not None or any(r.taps is not None for r in trace.rounds)):
        report.taps = compare_taps(trace, exact, sampled, noise[1])
        report.violations += _wrong_features(trace, report.taps.wrong)
    report.fed = "target" if missing(trace) else "recorded"
    try:
        report.proposals = proposals_of(trace, drafter, target, exact, sampled, *noise, members)
    except Gap as e:
        short = trace.taps is not None and len(trace.taps) != len(trace.prompt)
        report.violations.append(Violation(-1 if short else 0, "context.first" if short else "context.position", str(e)))
        return
    p = report.proposals
    if p.ratio > 1:
        told = f"logits of draft {p.draft}: {p.ratio:.3g} x tolerance from those of the drafter run again from the {report.fed} features"
        report.violations.append(Violation(p.round, "proposals", told))
    if not p.wrong:
        return
    about = around_the_drafter(trace, drafter, target, exact)
    check = next((b.check for b in BUGS.values() if b.about == about), "proposals")
    report.explanation = report.explanation or about
    report.violations.append(Violation(p.wrong[0].round, check, _wrong_proposal(p.wrong[0], p, about, report.fed)))


def _wrong_proposal(d: Draft, p: Proposals, about: str, fed: str) -> str:
    ahead = "" if d.gap != d.gap else f" (ahead by {d.gap:.3g}, noise {d.noise:.2g})"
    source = "the recorded features" if fed == "recorded" else "the target's features"
    told = f"draft {d.draft} is {d.proposed}, from {source} it is {d.oracle}{ahead}; {len(p.wrong)} of {p.rows} drafts differ"
    return told + (f"; explained by: {about}" if about else "")


def _wrong_features(trace: Foreign, wrong: list[Row]) -> list[Violation]:
    """One violation per round whose context rows hold other features than those of their positions."""
    found = []
    for number in dict.fromkeys(r.round for r in wrong):
        rows = [r for r in wrong if r.round == number]
        held = [f"position {r.position} was given the features of {r.holds}" for r in rows if r.holds]
        told = "; ".join(held[:3]) or f"position {rows[0].position} was given features that are those of no position of the trace"
        more = f"; {len(rows)} rows in all" if len(rows) > 1 else ""
        check = "context.first" if number < 0 else "context.rows"
        found.append(Violation(number, check, f"{told} ({rows[0].ratio:.3g} x tolerance){more}"))
    return found


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
        *(t for r in trace.rounds[:number] for t in r.window[: kept_rows(r)]),
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
            runs = [out.logits for out in run_windows(trace, target, found.cache(target, min(rows, BLOCK_ROWS)))[1:]]
        except (CacheError, ValueError):
            continue
        if all(int(first_argmax(y[j])) == p for i, y in enumerate(runs) for j, p in enumerate(_recorded(trace, i)) if j < len(y)):
            return found.about
    return ""


CROP = Bug("crop.off-by-one", BUGS["crop.off-by-one"].about, "crop", None, CropCache)
