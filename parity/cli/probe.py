"""``parity probe``: what a candidate does, seen from outside."""

from __future__ import annotations

import json
from pathlib import Path

import click

from parity.cli import options as shared


@click.group()
def probe() -> None:
    """Questions to a candidate that no single comparison answers."""


@probe.command()
@click.option("--family", type=click.Choice(shared.FAMILIES), help="The seeded tiny target of this family, where no file is given.")
@click.option("--target", "target_path", type=click.Path(path_type=Path), help="The target: GGUF file or SafeTensors folder.")
@click.option("--candidate", default="cpu", show_default=True, help="cpu, f32, bf16, f64, PATH.so, or module:callable.")
@click.option(
    "--block", type=click.IntRange(1, 64), default=8, show_default=True, help="The widest window; every width from 2 on is probed."
)
@click.option(
    "--context", "contexts", callback=shared.counts, metavar="N,N,…", help="Rows before the window; default: 8, and past the widest window."
)
@click.option("--draws", type=click.IntRange(1, 16), default=1, show_default=True, help="Different tokens.")
@click.option("--allow-inexact", is_flag=True, help="Open the gate although rows differ (exit 0); never remembered.")
@click.option("--memory", type=click.Path(path_type=Path), help="Remember verdicts in this file, and answer from it.")
@click.option("--fault", metavar="SPEC", help="Plant a mistake in the candidate (see parity faults).")
@click.option("--arithmetic", metavar="NAME[,KEY=VALUE…]", help="What the candidate declares of its rounding.")
@click.option(
    "--members", type=click.IntRange(1, 64), default=4, show_default=True, help="Sampled runs of the noise, where choices differ."
)
@click.option("--threads", type=click.IntRange(0, 256), default=0)
@click.option("--timeout", type=float, default=600.0, show_default=True, help="Seconds each arm may take.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "json_out", metavar="FILE|-", help="The report as JSON.")
@click.option("--quiet", is_flag=True, help="The verdict line only.")
def rows(
    family: str | None,
    target_path: Path | None,
    candidate: str,
    block: int,
    contexts: tuple[int, ...],
    draws: int,
    allow_inexact: bool,
    memory: Path | None,
    fault: str | None,
    arithmetic: str | None,
    members: int,
    threads: int,
    timeout: float,
    seed: int,
    json_out: str | None,
    quiet: bool,
) -> int:
    """Does a window of several rows give the bytes of single rows? Every width, short and past the window.

    The gate is fail-closed: it opens (exit 0) only where every width is exact, or by --allow-inexact. Two
    one-by-one runs are compared first.
    """
    from oracle.models import open_target
    from parity.cli.greedy import files
    from parity.speculating import render
    from parity.speculating import rows as probing

    path, _ = files(family, target_path, None, seed)
    key = probing.identity(open_target(path), candidate, block) | {"fault": fault, "contexts": list(contexts), "draws": draws}
    known = probing.remembered(memory, key) if memory else None
    if known is not None:
        report = probing.RowsReport(key, [], "" if known["exact"] else "rows differ from single rows", allow_inexact, remembered=True)
        report.geometry = {"family": key["family"]}
        report.known_exact = bool(known["exact"])
    else:
        report = probing.probe(
            path, candidate, block, contexts=contexts, draws=draws, arithmetic=arithmetic, members=members, threads=threads,
            timeout=timeout, fault=fault, override=allow_inexact, progress=shared.progress,
        )  # fmt: skip
        report.key = key
        shared.done()
        if memory:
            probing.remember(memory, report)
    if json_out == "-":
        click.echo(json.dumps(report.to_json()))
        return report.exit_status
    if json_out:
        shared.write(Path(json_out), json.dumps(report.to_json()))
    click.echo(render.rows(report, quiet))
    return report.exit_status
