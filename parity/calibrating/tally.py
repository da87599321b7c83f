"""What healthy runs left of their tolerances, per candidate and stage name, and the table of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np

from parity.case import Case
from parity.report import Report


@dataclass
class Tally:
    """Largest error / tolerance and rms z per (candidate, stage name), and every divergence.

    ``cases``: names of the cases of each draw; ``counts``: runs per (draw, candidate); ``thinned``: runs that were compared a second
    time, on a random part of their stages.
    """

    ratio: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    rms: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    rolled: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    common: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    cases: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    thinned: int = 0
    alarms: list[str] = field(default_factory=list)

    @property
    def runs(self) -> int:
        return self.counts.total()

    def add(self, draw: str, name: str, case: Case, report: Report) -> None:
        self.counts[draw, name] += 1
        self.cases[draw].add(case.name)
        for s in report.stages:
            key = (name, s.stage.rpartition(".")[2])
            if s.mode == "rolled":
                self.rolled[key].append(s.rms)
            else:
                self.ratio[key].append(s.ratio)
                self.rms[key].append(s.rms)
                self.common[key].append(s.common)
        self._alarm(name, case, report)

    def add_thinned(self, name: str, case: Case, report: Report) -> None:
        """The same run, of which some stages only were recorded: its verdict counts, its ratios are those of the full one or wider."""
        self.thinned += 1
        self._alarm(f"{name}, some stages", case, report)

    def _alarm(self, name: str, case: Case, report: Report) -> None:
        if report.verdict != "parity":
            where = report.divergences[0] if report.divergences else None
            self.alarms.append(
                f"{case.name}, {name}: {report.verdict} at {where.stage if where else '?'} ({where.ratio if where else 0:.3g} x)"
            )

    def merge(self, other: Tally) -> None:
        """Add the runs of ``other``."""
        for mine, theirs in ((self.ratio, other.ratio), (self.rms, other.rms), (self.rolled, other.rolled), (self.common, other.common)):
            for key, found in theirs.items():
                mine[key] += found
        for draw, names in other.cases.items():
            self.cases[draw] |= names
        self.counts += other.counts
        self.thinned += other.thinned
        self.alarms += other.alarms


def markdown(tally: Tally) -> str:
    """The committed table: per stage name and candidate, quantiles over all runs and steps."""
    cases = sum(len(c) for c in tally.cases.values())
    lines = [
        "# Calibration of the tolerances",
        "",
        f"{cases} random small cases (`parity/calibrating`), {tally.runs} runs of healthy candidates, {tally.thinned} of them compared",
        "a second time as if six stage names in ten had not been recorded (local and rolled, as the full ones):",
        f"{len(tally.alarms)} false divergences. Regenerate with `make calibration`. Columns: largest error / tolerance (local),",
        "largest rms z of a row, largest pooled signed statistic against its limit, largest row error / spread in rolled mode (limit 12).",
        "Where a stage is stored in bf16 or f16 the first is 1 by construction: an element is inside its rounding interval or it is not.",
        "",
        *_runs(tally),
        "",
    ]
    names = list(dict.fromkeys(name for name, _ in tally.ratio))
    stages = list(dict.fromkeys(stage for _, stage in tally.ratio))
    for name in names:
        lines += [
            f"## {name}",
            "",
            "| stage | n | error/T median | error/T max | rms z median | rms z max | pooled max | rolled median | rolled max |",
        ]
        lines += ["|---|---|---|---|---|---|---|---|---|"]
        for stage in stages:
            key = (name, stage)
            if key in tally.ratio:
                lines.append(_line(stage, tally.ratio[key], tally.rms[key], tally.common[key], tally.rolled.get(key, [])))
        lines.append("")
    return "\n".join(lines + [f"* {a}" for a in tally.alarms])


def _runs(tally: Tally) -> list[str]:
    """How often each candidate ran on each family and role; a dash where it lacks an operation or a part."""
    names = list(dict.fromkeys(name for _, name in tally.counts))
    lines = [f"| drawn | {' | '.join(names)} |", f"|---{'|---' * len(names)}|"]
    return lines + [f"| {draw} | {' | '.join(str(tally.counts[draw, n] or '-') for n in names)} |" for draw in tally.cases]


def _line(stage: str, ratio: list[float], rms: list[float], common: list[float], rolled: list[float]) -> str:
    def pair(values: list[float]) -> str:
        return f"{np.median(values):.2f} | {max(values):.2f}" if values else "- | -"

    return f"| `{stage}` | {len(ratio)} | {pair(ratio)} | {pair(rms)} | {max(common, default=0.0):.2f} | {pair(rolled)} |"
