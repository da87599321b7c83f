"""Option groups shared by commands, and what every command does with a report."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from parity.errors import UsageError

if TYPE_CHECKING:
    from parity.report import Report

F = TypeVar("F", bound=Callable[..., Any])
FAMILIES = ("muse-glimmer", "qwen3", "qwen38-flash-next", "laguna", "llama")
ROLES = ("drafter", "target")


def pairs(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    """``key=value,…`` options as a dict."""
    made: dict[str, str] = {}
    for pair in (p for text in texts for p in text.split(",") if p):
        key, eq, value = pair.partition("=")
        if not eq:
            raise click.BadParameter(f"{pair!r}: expected key=value")
        made[key.strip()] = value.strip()
    return made


def counts(ctx: click.Context, param: click.Parameter, text: str | None) -> tuple[int, ...]:
    """``3,0,7`` as numbers."""
    try:
        return tuple(int(part) for part in (text or "").split(",") if part)
    except ValueError:
        raise click.BadParameter(f"{text!r}: expected whole numbers separated by commas") from None


def stack(options: list[Any]) -> Callable[[F], F]:
    """Several options as one decorator, in the order given."""

    def decorate(f: F) -> F:
        for option in reversed(options):
            f = option(f)
        return f

    return decorate


def _noted(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Where JSON goes is known to whoever ends the command with an error that is a verdict (`parity.cli.explain`)."""
    ctx.ensure_object(dict)["json"] = value
    return value


def json_option(about: str = "The report as JSON.") -> Callable[[F], F]:
    """``--json FILE|-``, as every command with a verdict has it."""
    return click.option("--json", "json_out", metavar="FILE|-", callback=_noted, help=about)


case_options = stack(
    [
        click.option("--family", type=click.Choice(FAMILIES), help="Needed where the file does not say, and to make a seeded model."),
        click.option("--role", type=click.Choice(ROLES), help="Of a family that has both; default: what the files say, else drafter."),
        click.option(
            "--model", type=click.Path(path_type=Path), help="GGUF file or SafeTensors folder; without it a seeded tiny model is made."
        ),
        click.option("--borrowed", type=click.Path(path_type=Path), help="A drafter's target (or a file with its embedding and head)."),
        click.option(
            "--dialect",
            multiple=True,
            callback=pairs,
            metavar="KEY=VALUE,…",
            help="Switches of the family's dialect (engine=muser, window=24 …).",
        ),
        click.option("--weights", default=None, help="Weight format of a seeded model (bf16, q4_k, q8_0 …)."),
        click.option("--block", type=click.IntRange(1, 4096), help="Rows fed: the block of a drafter, the verify window of a target."),
        click.option(
            "--context", type=click.IntRange(0, 1 << 20), default=48, show_default=True, help="Committed rows, or tokens of the prefill."
        ),
        click.option("--appends", callback=counts, metavar="N,N,…", help="Commit the context in these portions."),
        click.option("--accepts", callback=counts, metavar="N,N,…", help="Further rounds: drafts accepted in each."),
        click.option("--prompt-file", type=click.Path(path_type=Path), help="Real text for a target (needs the extra `real`)."),
        click.option("--seed", type=int, default=0, show_default=True),
    ]
)

judge_options = stack(
    [
        click.option(
            "--arithmetic", metavar="NAME[,KEY=VALUE…]", help="What the candidate declares of its rounding (default: what is known of it)."
        ),
        click.option("--mode", type=click.Choice(("local", "rolled", "both")), default="both", show_default=True),
        click.option("--members", type=click.IntRange(2, 64), default=8, show_default=True, help="Sampled runs of the rolled ensemble."),
        click.option(
            "--require", multiple=True, metavar="STAGE", help="Stage pattern that must be recorded, else the verdict is inconclusive."
        ),
    ]
)

report_options = stack(
    [
        json_option(),
        click.option("--junit", type=click.Path(path_type=Path), help="The report as JUnit XML."),
        click.option("--every-stage", is_flag=True, help="One line per stage and layer instead of one per stage name."),
        click.option("--quiet", is_flag=True, help="The verdict line only."),
    ]
)


def emit(report: Report, json_out: str | None, junit: Path | None, every_stage: bool, quiet: bool) -> int:
    """Print and write a report; its exit status."""
    from parity import render

    if json_out == "-":
        click.echo(json.dumps(report.to_json()))
    else:
        width = min(max(_columns(), 80), 160)
        click.echo(
            render.headline(report) if quiet else render.text(report, every_stage=every_stage, color=sys.stdout.isatty(), width=width),
            nl=quiet,
        )
        if json_out:
            write(Path(json_out), json.dumps(report.to_json()))
    if junit:
        write(junit, render.junit({report.case["name"]: report}))
    return report.exit_status


def _columns() -> int:
    import shutil

    return shutil.get_terminal_size((118, 24)).columns


def write(path: Path, text: str) -> None:
    """Write a report file whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".part")
        temporary.write_text(text)
        temporary.replace(path)
    except OSError as e:
        raise UsageError(f"{path}: cannot be written: {e.strerror}") from None


def progress(text: str) -> None:
    """Log line on stderr, only for a person who watches."""
    if sys.stderr.isatty():
        click.echo(f"\r\033[K{text}", nl=False, err=True)


def done() -> None:
    if sys.stderr.isatty():
        click.echo("\r\033[K", nl=False, err=True)
