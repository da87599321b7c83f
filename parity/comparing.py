"""Comparing a dump with the oracle on its case: identity first, then stage by stage (DESIGN section 6)."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable
from dataclasses import asdict
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import numpy as np

from oracle.arithmetic import Arithmetic
from oracle.readings import Noise
from parity.case import Case
from parity.errors import IdentityMismatch, UsageError
from parity.explain.patterns import recurrence
from parity.explain.world import World
from parity.identity import check_identity
from parity.judge import Judge
from parity.local import EXPLAINED, Local
from parity.models import Progress, declared_stages, open_case_model, run
from parity.report import IDENTITY, Divergence, Report, finding
from parity.rolled import Rolled
from parity.sensitivity import KNOBS, ledger
from parity.threads import threads_for

if TYPE_CHECKING:
    from dumps import Dump

MODES = {"local": ("local",), "rolled": ("rolled",), "both": ("local", "rolled")}


def compare_dump(
    case: Case,
    dump: Dump,
    arithmetic: Arithmetic,
    *,
    mode: str = "both",
    members: int = 8,
    required: Iterable[str] = (),
    certify: bool = False,
    repeats: Iterable[Dump] = (),
    partial: bool = False,
    explained: int = EXPLAINED,
    progress: Progress | None = None,
) -> Report:
    """Judge ``dump`` against the oracle.

    ``required``: stage patterns whose absence is *missing* (inconclusive), not merely unseen, or conventions of `sensitivity.KNOBS`
    that the case must be able to certify. ``certify``: add the sensitivity ledger. ``repeats``: dumps of further runs of the same
    candidate on the same case: a divergence that differs between them is not reproducible. ``partial``: take what an unfinished dump holds.
    ``explained``: how many divergences are explained in full.
    """
    if mode not in MODES:
        raise UsageError(f"mode {mode!r}: expected {', '.join(MODES)}")
    report = Report(
        case.describe(), open_case_model(case).geometry, asdict(arithmetic), dict(dump.provenance), MODES[mode], versions=versions()
    )
    try:
        check_identity(case, dump, partial)
    except IdentityMismatch as mismatch:
        report.findings.append(finding(IDENTITY, str(mismatch)))
        return report
    report.notes += open_case_model(case).hazards
    names = declared_stages(case)
    total = sum(int(np.prod(shape)) for _, _, shape in names)
    wanted = tuple(required)
    _presence(report, dump, [key for key, _, _ in names], tuple(r for r in wanted if r not in KNOBS))
    say = progress or (lambda _: None)
    if certify or any(r in KNOBS for r in wanted):
        say("sensitivity: what this case could see")
        with threads_for(open_case_model(case)):
            entries = ledger(case, arithmetic, total)
        report.sensitivity = [asdict(e) | {"certified": e.certified} for e in entries]
        certified = {e.knob for e in entries if e.certified}
        report.uncertified = [r for r in wanted if r in KNOBS and r not in certified]
    if "local" in report.modes:
        began = time.perf_counter()
        say("local: oracle on the candidate's inputs")
        tape = Local(dump, arithmetic, Judge(arithmetic, total), explained=explained, world=World(dump, case, tuple(repeats)))
        with threads_for(open_case_model(case)):
            run(case, Noise(arithmetic), tape)
        report.stages += tape.stages
        _recurrences(case, tape)
        report.divergences += tape.divergences
        report.consequences += tape.consequences
        report.margins += tape.margins
        if unjudged := tape.undecided.note():
            report.notes.append(unjudged)
        report.timing["local_s"] = time.perf_counter() - began
        _storage(report, arithmetic, tape)
        _activations(report, arithmetic)
    if "rolled" in report.modes:
        began = time.perf_counter()
        rolled = Rolled(case, dump, arithmetic, members)
        rolled.compare(progress)
        report.stages += rolled.stages
        _merge_rolled(report, rolled.divergences, [key for key, _, _ in names])
        report.timing["rolled_s"] = time.perf_counter() - began
    return report


def _recurrences(case: Case, tape: Local) -> None:
    """The steps in which a stage diverges, among those in which it was compared, on each of its divergences."""
    compared: dict[str, list[int]] = {}
    diverging: dict[str, list[int]] = {}
    for s in tape.stages:
        compared.setdefault(s.stage, []).append(s.step)
    for d in tape.divergences:
        diverging.setdefault(d.stage, []).append(d.step)
    for d in tape.divergences:
        d.extent.steps = sorted(set(diverging[d.stage]))
        d.extent.recurrence = recurrence(case, sorted(set(compared.get(d.stage, []))), d.extent.steps)


def _presence(report: Report, dump: Dump, keys: list[tuple[int, str]], required: tuple[str, ...]) -> None:
    known = set(keys)
    for key in keys:
        if dump.get(*key) is None:
            label = f"{key[0]}:{key[1]}"
            (report.missing if any(fnmatchcase(key[1], p) for p in required) else report.unseen).append(label)
    report.extra = [f"{step}:{stage}" for step in dump.steps for stage in dump.stages(step) if (step, stage) not in known]
    if not any(dump.get(*key) is not None for key in keys):
        report.notes.append("the dump records no stage of this case: nothing was compared")


def _storage(report: Report, arithmetic: Arithmetic, tape: Local) -> None:
    for dtype, stages in sorted(tape.storage.items()):
        names = ", ".join(sorted(stages)[:6]) + (", …" if len(stages) > 6 else "")
        report.notes.append(
            f"storage: {len(stages)} stages hold only values representable in {dtype} ({names}), "
            f"while the declared arithmetic {arithmetic.name!r} stores f32: declare it (--arithmetic {dtype})"
        )


def _activations(report: Report, arithmetic: Arithmetic) -> None:
    """Where all first divergences are roundings that an engine may do, say so: the declaration is wrong, not the engine."""
    first = report.divergences[:EXPLAINED]
    kinds = {d.explanations[0]["kind"].rpartition(".")[2] if d.explanations else "" for d in first}
    if "activations" in kinds and kinds <= {"activations", "storage", "dtype", "angles"}:
        report.notes.append(
            f"quantised activations: the first {len(first)} of {len(report.divergences)} divergences are what an engine does that rounds "
            f"activations before its products, which {arithmetic.name!r} does not declare; judge it by what it does "
            "(--arithmetic, see the explanations) before calling any of them a bug"
        )


def _merge_rolled(report: Report, rolled: list[Divergence], order: list[tuple[int, str]]) -> None:
    """A rolled divergence at or after a local one is its consequence; one before every local one stands by itself."""
    place = {key: i for i, key in enumerate(order)}
    first = min((place[d.step, d.stage] for d in report.divergences), default=len(order))
    for d in rolled:
        (report.divergences if place[d.step, d.stage] < first else report.consequences).append(d)
    report.divergences.sort(key=lambda d: place.get((d.step, d.stage), len(order)))


def versions() -> dict[str, str]:
    import scipy

    return {"python": platform.python_version(), "numpy": np.__version__, "scipy": scipy.__version__, "machine": platform.machine()}
