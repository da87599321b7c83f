"""The score: the whole catalogue planted over families, candidates and seeds; what the lab finds, places and names.

``python -m parity.scoring`` (or ``parity faults score``) writes ``docs/score.md``. A miss is charged to the lab only above the information
limit: the factor by which the fault's largest difference exceeds the tolerance at its stage, on the oracle alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from oracle import arithmetic as arithmetics
from oracle.readings import Reading, Rounded
from parity.case import Case
from parity.errors import UsageError
from parity.memory import MemoryDump
from parity.recording import record
from parity.scoring_calls import Outcome, planted_calls
from parity.scoring_cases import CASES, score_case
from parity.scoring_runs import fused_runs, judged, planted_runs, sampled_calls
from parity.scoring_table import markdown

CANDIDATES = ("f32", "bf16", "cpu", "cpu (fused)")
# The library has no fused drafter for these, and none for targets.
NOT_FUSED = ("qwen3, DFlash 2", "qwen3, DSpark", "qwen3, sinks")
SAMPLE = 3


@dataclass
class Part:
    """What one case gave under one candidate."""

    outcomes: list[Outcome] = field(default_factory=list)
    sample: list[tuple[str, bool]] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)
    clean: int = 0

    def add(self, other: Part) -> None:
        self.outcomes += other.outcomes
        self.sample += other.sample
        self.alarms += other.alarms
        self.clean += other.clean


def cases_named(names: Sequence[str]) -> tuple[str, ...]:
    """The cases of these names (all where none is named); `UsageError` for one that does not exist."""
    for name in names:
        if name not in CASES:
            raise UsageError(f"case {name!r} of the score is unknown; known: {', '.join(CASES)}")
    return tuple(names) or tuple(CASES)


@contextmanager
def _reading(candidate: str) -> Iterator[Reading]:
    if candidate != "cpu":
        yield Rounded(arithmetics.named(candidate))
        return
    import native
    from parity.native_reading import Native

    with native.open_library("cpu").context(1) as context:
        yield Native(context)


def exists(name: str, candidate: str) -> bool:
    """Whether a candidate can run the case."""
    return candidate != "cpu (fused)" or (CASES[name][1] == "drafter" and name not in NOT_FUSED)


def part(name: str, candidate: str, seed: int, types: tuple[str, ...] = ("call", "case or step", "artifact", "dump")) -> Part:
    """One case, one candidate, one seed: everything planted."""
    with tempfile.TemporaryDirectory(prefix="parity-") as folder:
        root = Path(folder)
        case = score_case(name, seed, root)
        return _fused(case, root) if candidate == "cpu (fused)" else _by_operation(case, candidate, seed, root, types)


def _by_operation(case: Case, candidate: str, seed: int, root: Path, types: tuple[str, ...]) -> Part:
    made = Part(clean=1)
    with _reading(candidate) as reading:
        dump = MemoryDump(case.describe(), {"candidate": candidate})
        record(case, reading, dump, arithmetics.named("f32" if candidate == "cpu" else candidate))
        _healthy(made, case, dump, candidate, required=("*",))
        if "call" in types:
            made.outcomes += planted_calls(case, dump, reading, arithmetics.named(candidate), candidate, seed)
            made.sample += sampled_calls(case, reading, candidate, made.outcomes, SAMPLE, seed)
        # What is recorded, and what is fed, does not depend on the arithmetic: the dumps of one candidate stand for all.
        rest = tuple(t for t in types if t != "call" and (candidate == "f32" or t == "artifact"))
        made.outcomes += planted_runs(case, reading, candidate, root, rest)
    return made


def _fused(case: Case, root: Path) -> Part:
    import native
    from parity.native_drafter import run_fused

    made = Part(clean=1)
    with native.open_library("cpu").context(1) as context:
        dump = MemoryDump(case.describe(), {"candidate": "cpu (fused)"})
        run_fused(case, context, dump)
        _healthy(made, case, dump, "cpu", required=())
        made.outcomes += fused_runs(case, context, root)
    return made


def _healthy(made: Part, case: Case, dump: MemoryDump, candidate: str, required: tuple[str, ...]) -> None:
    report = judged(case, dump, candidate, required)
    if report.verdict != "parity":
        made.alarms.append(f"{case.name}, {candidate}: {report.verdict}")


def _one(keep: Path | None, task: tuple[str, str, int]) -> Part:
    """A part, kept in (and taken from) a file where there is a folder for it."""
    name, candidate, seed = task
    file = None if keep is None else keep / f"{'-'.join(f'{name}-{candidate}-{seed}'.replace(',', '').split())}.json"
    if file is not None and file.exists():
        raw = json.loads(file.read_text())
        return Part([Outcome(**o) for o in raw["outcomes"]], [(t, ok) for t, ok in raw["sample"]], raw["alarms"], raw["clean"])
    made = part(name, candidate, seed)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(made)))
    return made


def scored(names: Sequence[str], candidates: Sequence[str], seeds: int, jobs: int, keep: Path | None = None) -> tuple[str, bool]:
    """The table over these cases, candidates and seeds, and whether anything was missed or raised a false alarm."""
    tasks = [(n, c, s) for s in range(seeds) for c in candidates for n in names if exists(n, c)]
    whole = Part()
    if jobs == 1:
        for task in tasks:
            whole.add(_one(keep, task))
    else:
        with ProcessPoolExecutor(jobs) as pool:
            for made in pool.map(partial(_one, keep), tasks):
                whole.add(made)
    failed = bool(whole.alarms) or any(o.above and not o.found for o in whole.outcomes)
    return markdown(whole.outcomes, whole.sample, whole.alarms, whole.clean), failed


def main(argv: list[str] | None = None) -> int:
    """Write the table; exit status 1 on a miss above the limit or a false alarm."""
    parser = argparse.ArgumentParser(prog="parity.scoring", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/score.md"))
    options = parser.parse_args(argv)
    text, failed = scored(tuple(CASES), CANDIDATES, options.seeds, options.jobs, options.keep)
    options.out.write_text(text)
    print(text)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
