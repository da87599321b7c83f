"""``parity probe``: what a candidate does, seen from outside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from parity.cli import options as shared

if TYPE_CHECKING:
    from parity.ordering.probe import OrderReport
    from parity.speculating.costing import CostReport
    from parity.speculating.lawful import LawReport
    from parity.speculating.rows import RowsReport


@click.group()
def probe() -> None:
    """Questions to a candidate that no single comparison answers."""


_probe_options = shared.stack(
    [
        click.option(
            "--arithmetic", metavar="NAME[,KEY=VALUE…]", help="What the candidate declares of its rounding (default: what is known of it)."
        ),
        click.option("--threads", type=click.IntRange(0, 256), default=0, help="Threads of a library; 0 is its default."),
        click.option("--timeout", type=float, default=600.0, show_default=True, help="Seconds the candidate may take."),
        click.option("--seed", type=int, default=0, show_default=True),
        shared.json_option(),
        click.option("--quiet", is_flag=True, help="The verdict line only."),
    ]
)


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
@click.option(
    "--members", type=click.IntRange(1, 64), default=4, show_default=True, help="Sampled runs of the noise, where choices differ."
)
@_probe_options
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
    return _emit(report, render.rows(report, quiet), json_out)


def _emit(report: RowsReport | OrderReport | CostReport | LawReport, text: str, json_out: str | None) -> int:
    """Print the report's text, or its JSON to ``-``; its exit status."""
    if json_out == "-":
        click.echo(json.dumps(report.to_json()))
        return report.exit_status
    if json_out:
        shared.write(Path(json_out), json.dumps(report.to_json()))
    click.echo(text)
    return report.exit_status


def _formats(ctx: click.Context, param: click.Parameter, text: str) -> tuple[str, ...]:
    """``f32,q4_k`` or ``all``."""
    from native import DTYPES

    names = tuple(DTYPES) if text == "all" else tuple(part.strip() for part in text.split(",") if part.strip())
    unknown = [n for n in names if n not in DTYPES]
    if unknown or not names:
        raise click.BadParameter(f"{', '.join(unknown) or text!r}: expected all, or some of {', '.join(DTYPES)}")
    return tuple(dict.fromkeys(names))


@probe.command()
@click.option("--candidate", default="cpu", show_default=True, help="cpu, cuda, cuda-emu, PATH.so, or f32, f32-pairwise … of NumPy.")
@click.option("--op", "operation", type=click.Choice(("linear", "expert_linear")), default="linear", show_default=True)
@click.option("--weights", default="f32", show_default=True, callback=_formats, metavar="FORMAT,…", help="Weight formats, or all.")
@click.option("--width", "widths", callback=shared.counts, metavar="K,K,…", help="Products in a sum; default: below and beyond 256.")
@click.option("--outputs", type=click.IntRange(1, 4096), default=20, show_default=True, help="Output features; the first one's order.")
@click.option(
    "--block", type=click.IntRange(1, 64), default=16, show_default=True, help="The most rows at once; every M up to it is probed."
)
@click.option("--schedule", metavar="eager|late|N", help="When the work of an emulated library runs; N seeds an order between the two.")
@click.option("--guard/--no-guard", default=None, help="Guard pages around a library's buffers; default: for those that are not ours.")
@_probe_options
def order(
    candidate: str,
    operation: str,
    weights: tuple[str, ...],
    widths: tuple[int, ...],
    outputs: int,
    block: int,
    schedule: str | None,
    guard: bool | None,
    arithmetic: str | None,
    threads: int,
    timeout: float,
    seed: int,
    json_out: str | None,
    quiet: bool,
) -> int:
    """In which order does a candidate's product sum, and how does it round? Measured from outside, by its results alone.

    One addend of a sum is M, another -M, the rest are units that M swallows: the units that are left were added after the two met. From
    this follows the whole tree, also of sums that take several products at a time; then the bits and the rounding of every addition, and
    whether products are added unrounded (FMA).

    What is found is compared with what the candidate declares (its known arithmetic or --arithmetic, and what its library says of itself);
    an accumulator narrower than f32 and rounding other than to nearest are findings in any case. Then every M from 2 to --block: are its
    rows the bits of single rows, and are they summed along the same tree?

    Where a kernel rounds blocks of its inputs to one scale (Q8_0, Q8_1, Q8_K), the order is that of the blocks' sums.

    Exit status: 0 as declared and the same for every M, 1 a finding, 3 no order could be found, 4 the candidate died or misbehaved.
    """
    from parity import candidates
    from parity.cage import Limits
    from parity.ordering import render
    from parity.ordering.probe import probe as probe_order

    parsed = candidates.parse(candidate, schedule=schedule, guard=guard)
    report = probe_order(
        parsed, weights=weights, widths=widths, outputs=outputs, block=block, operation=operation, arithmetic=arithmetic, threads=threads,
        seed=seed, limits=Limits(timeout),
    )  # fmt: skip
    return _emit(report, render.text(report, quiet), json_out)


@probe.command()
@click.argument("table", type=click.Path(path_type=Path))
@click.option("--claim", metavar="FIXED,PER_ROW", help="A line that someone states for the table: is it one that these points allow?")
@click.option("--classic", "classic_ms", type=click.FloatRange(0, min_open=True), help="Milliseconds per token without drafts.")
@shared.json_option()
@click.option("--quiet", is_flag=True, help="The verdict line only.")
def cost(table: Path, claim: str | None, classic_ms: float | None, json_out: str | None, quiet: bool) -> int:
    """What does a verify window cost by its width? Fixed + per row, with its doubts, from a table of measurements.

    TABLE is CSV whose header names columns: width (rows), ms (device time of a round), and if known accepted (drafts per round) and host_ms
    (the rest of a round), from which tokens per second follow. Printed are the line, 95 % intervals, every residual, the line without each
    point, and which point carries it. Exit status: 0, or 1 where a claimed line is outside what the points allow.
    """
    from parity.speculating import render
    from parity.speculating.costing import cost as measure

    report = measure(table, _line(claim), classic_ms)
    return _emit(report, render.cost(report, quiet), json_out)


def _line(text: str | None) -> tuple[float, float] | None:
    """``77,3.1`` as a line."""
    if text is None:
        return None
    try:
        fixed, per_row = (float(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r}: expected two numbers, FIXED,PER_ROW", param_hint="--claim") from None
    return fixed, per_row


@probe.command()
@click.option("--rule", default="all", show_default=True, help="all, a rule's name, or module:attribute: verify(coins, drafts, q, p).")
@click.option("--vocab", type=click.IntRange(2, 6), default=3, show_default=True, help="Tokens.")
@click.option("--drafts", type=click.IntRange(1, 4), default=2, show_default=True, help="Drafts of a round.")
@click.option("--tokens", type=click.IntRange(1, 5), default=3, show_default=True, help="Emitted tokens whose joint law is compared.")
@click.option("--pairs", type=click.IntRange(1, 64), default=4, show_default=True, help="Pairs of target and draft laws.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@shared.json_option()
@click.option("--quiet", is_flag=True, help="The verdict line only.")
def law(rule: str, vocab: int, drafts: int, tokens: int, pairs: int, seed: int, json_out: str | None, quiet: bool) -> int:
    """Does a sampled verification rule emit tokens by the target's law, whatever drafts?

    Nothing is sampled: the law of the emitted tokens is summed over every random stream in fractions, and compared with the target's. The
    first token at which it breaks is named. Exit status: 0, or 1 where a rule that claims to be lossless is not.
    """
    from parity.speculating import lawful, render

    report = lawful.law(lawful.rules(rule), vocab, drafts, tokens, pairs, seed)
    return _emit(report, render.law(report, quiet), json_out)
