"""Minimising a failing case: the smallest that still diverges at the same stage for the same reason, in a bounded number of runs.

Delta debugging over what a case is made of: steps, rows of context, rows of the block, then, on a seeded model of the same family, layers,
vocabulary, widths and heads. A candidate must be one that can be run again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from parity import shrinking
from parity.case import Case
from parity.errors import CandidateError, UsageError
from parity.explain.world import LAYER
from parity.models import open_case_model
from parity.report import Divergence, Report

Runner = Callable[[Case], Report]
RUNS = 60


def key(d: Divergence) -> tuple[str, str]:
    """What must stay: the stage, whatever the layer, and the mistake that explains it best."""
    return LAYER.sub(".L*.", d.stage), d.explanations[0]["kind"] if d.explanations else ""


@dataclass
class Minimiser:
    """``run`` judges a case (in local mode); ``wanted``: the divergence to keep; ``runs``: how many may be made."""

    run: Runner
    wanted: tuple[str, str]
    runs: int = RUNS
    made: int = 0
    log: list[str] = field(default_factory=list)

    def fails(self, case: Case | None) -> Divergence | None:
        """The wanted divergence of a case, or None where it has none, cannot be run, or the runs are used up."""
        if case is None or self.made >= self.runs:
            return None
        self.made += 1
        try:
            report = self.run(case)
        except (UsageError, CandidateError, ValueError):
            return None
        return next((d for d in report.divergences if key(d) == self.wanted), None)

    def keep(self, case: Case, text: str) -> None:
        self.log.append(f"{text}: {size(case)}")


def minimise(case: Case, run: Runner, out: Path, runs: int = RUNS) -> tuple[Case, Minimiser]:
    """The smallest case found (its model in ``out`` where a smaller one does), and how it was found.

    `UsageError` where the case does not diverge at all when it is run.
    """
    first = run(case)
    if not first.divergences:
        raise UsageError(f"{case.name}: run again, it does not diverge; nothing to minimise")
    wanted = first.divergences[0]
    m = Minimiser(run, key(wanted), runs, 1)
    m.keep(case, "as it was")
    case = _steps(m, case, wanted)
    return _model(m, case, out), m


def _steps(m: Minimiser, case: Case, wanted: Divergence) -> Case:
    """Fewer steps, then fewer rows before the last, then fewer rows of it."""
    cut = shrinking.until(case, wanted.step)
    if len(cut.steps) < len(case.steps) and m.fails(cut):
        case = cut
        m.keep(case, "steps after the divergence dropped")
    for index in range(len(case.steps) - 2, -1, -1):
        if case.steps[index].kind == "propose" and m.fails(smaller := shrinking.without_step(case, index)):
            case = smaller
            m.keep(case, f"step {index} dropped")
    merged = shrinking.merged_appends(case)
    if len(merged.steps) < len(case.steps) and m.fails(merged):
        case = merged
        m.keep(case, "appends joined")
    case = _context(m, case)
    return _block(m, case)


def _context(m: Minimiser, case: Case) -> Case:
    """The fewest rows before the last step, by bisection."""
    good, bad, best = 0, shrinking.context_rows(case) + 1, case
    while bad - good > 1 and m.made < m.runs:
        middle = (good + bad) // 2 if good else bad - 1 if bad - 1 > 0 else 1
        smaller = shrinking.without_first_rows(case, middle)
        if smaller is not None and m.fails(smaller):
            good, best = middle, smaller
        else:
            bad = middle
    if good:
        m.keep(best, "context cut")
    return best


def _block(m: Minimiser, case: Case) -> Case:
    """The fewest rows of the last step, by bisection."""
    good, bad, best = len(case.steps[-1].array), 0, case
    while good - bad > 1 and m.made < m.runs:
        middle = (good + bad) // 2
        smaller = shrinking.block_rows(case, middle)
        if m.fails(smaller):
            good, best = middle, smaller
        else:
            bad = middle
    if best is not case:
        m.keep(best, "rows cut")
    return best


def _model(m: Minimiser, case: Case, out: Path) -> Case:
    """The same steps on ever smaller seeded models, as long as they diverge; the model that is kept moves to ``out``."""
    plan = shrinking.planned(case)
    if plan is None:
        return case
    with tempfile.TemporaryDirectory(prefix="parity-minimise-") as scratch:
        current = _tried(m, case, plan, Path(scratch) / "0")
        if current is None:
            m.log.append("a seeded model of the same sizes does not diverge: the model is kept")
            return case
        m.keep(current, "on a seeded model")
        best, progress, number = plan, True, 0
        while progress and m.made < m.runs:
            progress = False
            for smaller in best.halved():
                number += 1
                if _tried(m, case, smaller, Path(scratch) / str(number)) is not None:
                    best, progress = smaller, True
                    m.log.append("smaller: " + ", ".join(f"{k} {v}" for k, v in smaller.sizes.items() if v != plan.sizes.get(k)))
                    break
    final = shrinking.on_seeded_model(case, best, out / "model")
    m.keep(final, "in the end")
    return final


def _tried(m: Minimiser, case: Case, plan: shrinking.Plan, folder: Path) -> Case | None:
    """The case on the plan's model, where that can be made and diverges."""
    try:
        made = shrinking.on_seeded_model(case, plan, folder)
    except ValueError:
        # Not every combination of sizes is a model.
        return None
    return made if m.fails(made) else None


def size(case: Case) -> str:
    """A case's size in words."""
    g = open_case_model(case).geometry
    steps = ", ".join(f"{s.kind} {len(s.array)}@{s.at}" for s in case.steps[:6]) + (", …" if len(case.steps) > 6 else "")
    heads = f"heads {g['heads']}/{g['kv_heads']} of {g['head_dim']}"
    return f"{steps}; {g['layers']} layers, hidden {g['hidden']}, {heads}, vocabulary {g['vocab']}"


def command(folder: Path, candidate: str, entry: str, fault: str | None, arithmetic: str | None) -> str:
    """The one line that reproduces it."""
    import shlex

    parts = ["parity", "run", "--case", str(folder), "--candidate", candidate, "--mode", "local"]
    parts += ["--entry", entry] if entry != "auto" else []
    parts += ["--fault", fault] if fault else []
    parts += ["--arithmetic", arithmetic] if arithmetic else []
    return shlex.join(parts)
