"""The Python interface for tests and notebooks: `compare` a dump, `assert_parity` of a candidate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oracle import arithmetic as arithmetics
from parity import candidates, render
from parity.candidates import open_writer
from parity.case import Case, load
from parity.comparing import compare_dump
from parity.errors import UsageError
from parity.flow import run_callable, run_candidate
from parity.making import drafter_case, target_case
from parity.report import Report

if TYPE_CHECKING:
    from dumps import Dump

__all__ = ["assert_parity", "compare", "drafter_case", "open_writer", "target_case"]


def compare(dump: Dump | str | Path, case: Case | str | Path | None = None, mode: str = "both", arithmetic: str = "f32") -> Report:
    """Compare a dump (or its path) with the oracle.

    ``case``: the case or its folder; None takes the folder ``case`` beside the dump. Raises `UsageError` and `DumpError`.
    """
    from dumps import open_dump

    opened = open_dump(dump) if isinstance(dump, str | Path) else dump
    if case is None:
        case = Path(opened.path).parent / "case"
        if not (case / "case.json").exists():
            raise UsageError(f"{opened.path}: no case was given and there is none at {case}")
    return compare_dump(load(Path(case)) if isinstance(case, str | Path) else case, opened, arithmetics.named(arithmetic), mode=mode)


def assert_parity(
    candidate: str | Callable[[Path, Path], Any], case: Case, *, arithmetic: str | None = None, mode: str = "both", entry: str = "auto"
) -> Report:
    """Run ``candidate`` on ``case`` and raise `AssertionError` with the report as its message unless the verdict is parity.

    ``candidate``: what ``--candidate`` takes, or a function ``(case_folder, dump_path)`` that leaves a dump. Returns the report.
    """
    if callable(candidate):
        report = run_callable(case, candidate, arithmetics.named(arithmetic or "f32"), mode=mode)
    else:
        parsed = candidates.parse(candidate, entry)
        report = run_candidate(case, parsed, candidates.declared(parsed, arithmetic, case), mode=mode)
    if report.verdict != "parity":
        raise AssertionError("\n" + render.text(report))
    return report
