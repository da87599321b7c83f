"""The score: planted faults over families and candidates; what the lab finds and names, beside the rules people use today.

``python -m parity.scoring`` writes ``docs/score.md``. A miss is charged to the lab only above the information limit: the factor by which
the fault's largest difference exceeds the tolerance at its stage (`parity.sensitivity`), on the oracle alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from oracle import arithmetic as arithmetics
from oracle.faults import FaultError
from oracle.faults import parse as parse_fault
from oracle.readings import Fault, Faulty, Noise, Reading, Rounded, Stage
from oracle.tensor import Tensor
from parity import limits
from parity.case import Case
from parity.comparing import compare_dump
from parity.models import declared_stages, run
from parity.recording import record
from parity.report import Report, StageResult
from parity.sensitivity import CERTIFIED

# Kind -> severities; {L} is a layer, {S} the scope (draft or target).
CATALOGUE: dict[str, tuple[str, ...]] = {
    "rope.position": (
        "stage={S}.L{L}.q_rope,row=0,heads=1-2,offset=h//2+1",
        "stage={S}.L{L}.k_rope,offset=1",
        "stage={S}.L{L}.q_rope,row=1,heads=0,offset=-1",
    ),
    "rope.theta": ("stage={S}.L{L}.k_rope,factor=50", "stage={S}.L{L}.q_rope,factor=1.01", "stage={S}.L{L}.q_rope,factor=1.0001"),
    "rope.style": ("stage={S}.L{L}.q_rope,style=other",),
    "norm.eps": ("stage={S}.L{L}.xn,factor=1000", "stage={S}.L{L}.xn,factor=10"),
    "norm.offset": ("stage={S}.L{L}.xn", "stage={S}.final_norm"),
    "linear.scale": (
        "stage={S}.L{L}.o,factor=1.01",
        "stage={S}.L{L}.mlp_up,factor=1.001,rows=1",
        "stage={S}.L{L}.q_raw,factor=1.0001,heads=1",
    ),
    "attention.scale": ("stage={S}.L{L}.attn,factor=2", "stage={S}.L{L}.attn,factor=1.01"),
    "attention.causal": ("stage={S}.L{L}.attn",),
    "attention.window": ("stage={S}.L{L}.attn,delta=-1", "stage={S}.L{L}.attn,delta=1"),
    "attention.cell": ("stage={S}.L{L}.attn,cell=1", "stage={S}.L{L}.attn,cell=2,rows=2"),
}
CANDIDATES = ("f32", "bf16", "cpu")
RULES = ("cosine 0.9999 and rel-L2 0.02 per row", "NMSE 5e-4", "allclose of the dtype", "PCC 0.99")


@dataclass
class Tally:
    """Counts of one kind of fault under one candidate."""

    planted: int = 0
    below: int = 0
    found: int = 0
    stage: int = 0
    place: int = 0
    first: int = 0
    top: int = 0
    missed: list[str] = field(default_factory=list)
    rules: dict[str, int] = field(default_factory=lambda: defaultdict(int))


def information_limit(case: Case, fault: Fault, candidate: str) -> float:
    """Largest |difference| / tolerance that the fault makes at its stages, on the oracle alone."""
    arithmetic = arithmetics.named(candidate)
    count = sum(int(np.prod(shape)) for _, _, shape in declared_stages(case))
    lam, lame = limits.gaussian(count), limits.exponential(count)
    worst = [0.0]

    def tape(stage: Stage, y: Tensor, reading: Reading) -> Tensor:
        if fnmatchcase(stage.path, fault.stage):
            wrong = Faulty(Noise(arithmetic), fault).apply(stage).data
            var, acc, half = (np.broadcast_to(np.asarray(p, np.float64), y.data.shape) for p in (y.var, y.acc, y.half))
            tolerance = half + np.sqrt(lam**2 * np.maximum(var - acc, 0) + lame**2 * acc)
            difference = np.abs(wrong - y.data)
            with np.errstate(divide="ignore", invalid="ignore"):
                worst[0] = max(worst[0], float(np.where(difference == 0, 0.0, difference / tolerance).max(initial=0.0)))
        return Tensor(y.data, y.axes)

    run(case, Noise(arithmetic), tape)
    return worst[0]


def faulted(case: Case, spec: str | None, candidate: str, folder: Path) -> Report:
    """Run a candidate with the fault planted and compare in local mode."""
    import native
    from dumps import DumpWriter, open_dump
    from parity.native_reading import Native

    arithmetic = arithmetics.named(candidate)
    with native.open_library("cpu").context(1) as context:
        inner: Reading = Native(context) if candidate == "cpu" else Rounded(arithmetic)
        reading = inner if spec is None else Faulty(inner, parse_fault(spec))
        with DumpWriter(folder, case.describe(), {"candidate": candidate, "fault": spec}, checksums=False) as writer:
            record(case, reading, writer, arithmetics.named("f32") if candidate == "cpu" else arithmetic)
    return compare_dump(case, open_dump(folder), arithmetic, mode="local")


def seen_by_rules(stages: list[StageResult], candidate: str) -> Iterator[str]:
    """Which of today's rules would have failed any stage (their own figures, whole stages)."""
    loose = 1e-5 + 1.6e-2 if candidate == "bf16" else 1e-5 + 1.3e-6
    for s in stages:
        i = s.info
        if not i:
            continue
        if i["cosine"] < 0.9999 or i["nmse"] ** 0.5 > 0.02:
            yield RULES[0]
        if i["nmse"] > 5e-4:
            yield RULES[1]
        if i["max_abs"] > loose * max(1.0, i.get("largest", 1.0)):
            yield RULES[2]
        if i["pcc"] < 0.99:
            yield RULES[3]


def specs(case: Case) -> Iterator[tuple[str, str]]:
    """Every fault of the catalogue that exists in the case: (kind, spec)."""
    scope = "draft" if case.role == "drafter" else "target"
    names = {path for (_, path), _, _ in declared_stages(case)}
    for kind, variants in CATALOGUE.items():
        for variant in variants:
            text = variant.format(S=scope, L=1).replace("style=other", "style=" + ("neox" if _interleaved(case) else "interleaved"))
            stage = text.split(",")[0].removeprefix("stage=")
            if stage in names:
                yield kind, f"{kind}:{text}"


def _interleaved(case: Case) -> bool:
    from parity.models import open_case_model

    g = open_case_model(case).geometry
    return bool((g.get("rope") or g["dialect"]["rope"])["style"] == "interleaved")


def score(cases: list[Case], root: Path) -> tuple[dict[tuple[str, str], Tally], list[str]]:
    """Plant everything everywhere: tallies per (kind, candidate), and the false alarms of clean runs."""
    tallies: dict[tuple[str, str], Tally] = defaultdict(Tally)
    alarms: list[str] = []
    for number, case in enumerate(cases):
        for candidate in CANDIDATES:
            clean = faulted(case, None, candidate, root / f"{number}-{candidate}-clean")
            if clean.verdict != "parity":
                alarms.append(f"{case.name}, {candidate}: {clean.verdict}")
            for i, (kind, spec) in enumerate(specs(case)):
                try:
                    report = faulted(case, spec, candidate, root / f"{number}-{candidate}-{i}")
                except FaultError:
                    continue
                _tally(tallies[kind, candidate], kind, spec, report, information_limit(case, parse_fault(spec), candidate), candidate)
    return dict(tallies), alarms


def _tally(t: Tally, kind: str, spec: str, report: Report, limit: float, candidate: str) -> None:
    fault = parse_fault(spec)
    if limit < CERTIFIED:
        t.below += 1
        return
    t.planted += 1
    for rule in set(seen_by_rules(report.stages, candidate)):
        t.rules[rule] += 1
    if not report.divergences:
        t.missed.append(f"{spec} ({candidate}, {limit:.3g} x)")
        return
    t.found += 1
    first = report.divergences[0]
    t.stage += {d.stage for d in report.divergences} == {fault.stage}
    t.place += (fault.rows is None or first.extent.rows == list(fault.rows)) and (
        fault.heads is None or first.extent.heads == list(fault.heads)
    )
    kinds = [e["kind"] for e in first.explanations]
    t.first += bool(kinds) and kinds[0] == kind
    t.top += kind in kinds[:3]


def markdown(tallies: dict[tuple[str, str], Tally], alarms: list[str], cases: list[Case]) -> str:
    """The committed table."""
    lines = [
        "# The score",
        "",
        f"{len(cases)} cases ({', '.join(sorted({c.family for c in cases}))}), local mode; regenerate with `make score`.",
        "Below: faults whose largest difference is less than 1.5 tolerances at their stage (the information limit); they are not counted.",
        "The last four columns: how many of the same faults each of today's rules would have failed, given the lab's own local comparison",
        "(every stage recomputed from the candidate's inputs), which is more than they usually get.",
        f"False alarms on {len(cases) * len(CANDIDATES)} clean runs: {len(alarms)}.",
        "",
    ]
    header = [
        "fault",
        "candidate",
        "planted",
        "below",
        "found",
        "stage exact",
        "rows and heads exact",
        "named first",
        "in the top three",
        *RULES,
    ]
    lines += ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for (kind, candidate), t in tallies.items():
        counts = [t.planted, t.below, t.found, t.stage, t.place, t.first, t.top, *(t.rules[r] for r in RULES)]
        lines.append(f"| `{kind}` | {candidate} | " + " | ".join(map(str, counts)) + " |")
    for candidate in CANDIDATES:
        chosen = [t for (_, c), t in tallies.items() if c == candidate]
        counts = [sum(getattr(t, n) for t in chosen) for n in ("planted", "below", "found", "stage", "place", "first", "top")]
        counts += [sum(t.rules[r] for t in chosen) for r in RULES]
        lines.append(f"| **all** | {candidate} | " + " | ".join(map(str, counts)) + " |")
    missed = [m for t in tallies.values() for m in t.missed]
    return "\n".join(
        [*lines, "", "Missed above the limit: " + ("; ".join(missed) if missed else "none"), "", *(f"* false alarm: {a}" for a in alarms)]
    )


def score_cases(root: Path, seeds: int) -> list[Case]:
    """A rich tiny case per family and seed: contexts beyond the window, several rounds."""
    from parity.cli.build import WEIGHTS, seeded
    from parity.making import drafter_case, is_target, target_case

    made = []
    for seed in range(seeds):
        for family in ("qwen3", "muse-glimmer", "llama"):
            model, borrowed = seeded(family, WEIGHTS[family], seed, root)
            if is_target(family):
                made.append(target_case(model, prefill=14, block=6, seed=seed))
            elif borrowed is not None:
                made.append(drafter_case(model, borrowed, family=family, appends=(21, 9), accepts=(), seed=seed))
    return made


def main(argv: list[str] | None = None) -> int:
    """Write the table; exit status 1 on a miss above the limit or a false alarm."""
    parser = argparse.ArgumentParser(prog="parity.scoring", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("docs/score.md"))
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="parity-") as root:
        cases = score_cases(Path(root), options.seeds)
        tallies, alarms = score(cases, Path(root))
    text = markdown(tallies, alarms, cases)
    options.out.write_text(text + "\n")
    print(text)
    return 1 if alarms or any(t.missed for t in tallies.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
