"""``parity run``: oracle against a candidate on a case."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from parity.cli import options as shared


@click.command()
@shared.case_options
@click.option("--case", "case_path", type=click.Path(path_type=Path), help="A saved case folder instead of the options above.")
@click.option(
    "--candidate",
    default="cpu",
    show_default=True,
    help="cpu, cuda, metal, cuda-emu, metal-emu, f32, f64, a preset, llama.cpp, PATH.so, module:callable.",
)
@click.option("--entry", type=click.Choice(("auto", "op", "fused")), default="auto", show_default=True, help="Which entry of a library.")
@click.option("--mapping", type=click.Path(path_type=Path), help="A mapping file in place of an adapter's own (docs/engines.md).")
@click.option("--schedule", metavar="eager|late|N", help="When the work of an emulated library runs; N seeds an order between the two.")
@click.option("--fault", metavar="SPEC", help="Plant a mistake in the candidate, e.g. norm.eps:factor=10 (see parity faults).")
@click.option("--threads", type=click.IntRange(0, 256), default=0, help="Threads of a library; 0 is its default.")
@click.option("--timeout", type=float, default=600.0, show_default=True, help="Seconds the candidate may take.")
@click.option("--memory", type=click.FloatRange(min=0.1), help="GiB the candidate may allocate, mapped files not counted.")
@click.option("--repeat", type=click.IntRange(1, 100), default=1, show_default=True, help="Runs of the candidate, compared bit for bit.")
@click.option("--guard/--no-guard", default=None, help="Guard pages around a library's buffers; default: for those that are not ours.")
@click.option("--keep", type=click.Path(path_type=Path), help="Keep the case and the dump in this folder.")
@shared.judge_options
@shared.report_options
def run(
    case_path: Path | None,
    candidate: str,
    entry: str,
    mapping: Path | None,
    schedule: str | None,
    fault: str | None,
    threads: int,
    timeout: float,
    memory: float | None,
    repeat: int,
    guard: bool | None,
    keep: Path | None,
    arithmetic: str | None,
    mode: str,
    members: int,
    require: tuple[str, ...],
    json_out: str | None,
    junit: Path | None,
    every_stage: bool,
    quiet: bool,
    **made: Any,
) -> int:
    """Run a candidate on a case in a process of its own and compare every stage it records with the oracle.

    The case comes from --case, from files (--model, --borrowed), or from a seeded tiny model (--family alone). In local mode each
    stage is recomputed from the candidate's own recorded inputs, so an error shows where it is made; in rolled mode the oracle rolls
    forward by itself, so what was not recorded shows too.
    """
    from parity import candidates
    from parity.case import load
    from parity.cli.build import case_from
    from parity.faults import parse as parse_fault
    from parity.flow import run_candidate

    parsed = candidates.parse(candidate, entry, None if mapping is None else str(mapping.resolve()), schedule, guard)
    if fault:
        parse_fault(fault)
    case = load(case_path) if case_path else case_from(made)
    judged = candidates.declared(parsed, arithmetic, case)
    report = run_candidate(
        case,
        parsed,
        judged,
        mode=mode,
        members=members,
        fault=fault,
        required=require,
        certify=True,
        keep=keep,
        threads=threads,
        timeout=timeout,
        memory=None if memory is None else int(memory * 2**30),
        repeat=repeat,
        progress=shared.progress,
    )
    shared.done()
    return shared.emit(report, json_out, junit, every_stage, quiet)
