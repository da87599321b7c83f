"""Healthy candidates on random cases: every family and role, every arithmetic that has a name, the compiled library op by op and fused."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from oracle.arithmetic import PRESETS, DeclarationError
from parity import candidates
from parity.calibrating import generic, laguna, muse, qwen38
from parity.calibrating.tally import Tally
from parity.candidates import Candidate
from parity.case import Case
from parity.comparing import compare_dump
from parity.report import Report

if TYPE_CHECKING:
    from dumps import Dump

Draw = Callable[[int, Path], Case]

DRAWS: dict[str, Draw] = {
    "qwen3 drafter": generic.drafter,
    "dflash 2 drafter": generic.dflash2,
    "dspark drafter": generic.dspark,
    "muse-glimmer drafter": muse.drafter,
    "laguna drafter": laguna.drafter,
    "qwen38-flash-next drafter": qwen38.drafter,
    "llama target": generic.llama,
    "muse-glimmer target": muse.target,
    "laguna target": laguna.target,
    "qwen38-flash-next target": qwen38.target,
}
MEMBERS = 4
LEFT_OUT = 0.6


def healthy() -> list[Candidate]:
    """The library, op by op and fused, and NumPy in every arithmetic that has a name."""
    libraries = [candidates.parse("cpu", entry) for entry in ("op", "fused")]
    return libraries + [Candidate(name, "numpy") for name in PRESETS if name not in candidates.LIBRARIES.values()]


def takes(candidate: Candidate, case: Case) -> bool:
    """Whether the candidate has what the case needs: the library's fused entry is a drafter."""
    return candidate.entry != "fused" or case.role == "drafter"


def thinned(dump: Dump, seed: int) -> Dump:
    """A dump of an engine that records some stages only: each name is left out with probability `LEFT_OUT`."""
    rng = np.random.default_rng(seed)
    names = sorted({record.stage.rpartition(".")[2] for record in dump.records()})
    return dump.without([name for name in names if rng.random() < LEFT_OUT])


def healthy_reports(case: Case, root: Path, among: Iterable[Candidate], seed: int) -> Iterator[tuple[str, Report, Report]]:
    """(name, report, report on the thinned dump) of every candidate of ``among`` that takes the case; they run in this process."""
    from dumps import open_dump

    for candidate in among:
        if takes(candidate, case):
            out = root / "dumps" / candidate.name.replace(" ", "-")
            try:
                candidates.execute(candidate, case, out, None, threads=1)
            except DeclarationError:  # blocks of its activations do not fit the rows of this case
                shutil.rmtree(out, ignore_errors=True)
                continue
            dump, arithmetic = open_dump(out), candidates.declared(candidate, None, case)
            full, partial = (compare_dump(case, d, arithmetic, members=MEMBERS) for d in (dump, thinned(dump, seed)))
            yield candidate.name, full, partial
            shutil.rmtree(out)


def calibrate(draw: str, seeds: Iterable[int], root: Path, tally: Tally, among: Iterable[Candidate] | None = None) -> None:
    """Run the cases that `DRAWS` ``[draw]`` makes of ``seeds``, with ``among`` or all candidates, into the tally."""
    chosen = healthy() if among is None else list(among)
    for seed in seeds:
        case = DRAWS[draw](seed, root)
        for name, report, partial in healthy_reports(case, root, chosen, seed):
            tally.add(draw, name, case, report)
            tally.add_thinned(name, case, partial)
        shutil.rmtree(root / f"case-{seed}", ignore_errors=True)
