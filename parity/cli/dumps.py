"""``parity compare`` and ``parity diff``: saved dumps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from parity.cli import options as shared

if TYPE_CHECKING:
    from parity.report import Report


def _judged(
    dump: Path, case_path: Path | None, arithmetic: str | None, mode: str, members: int, require: tuple[str, ...], certify: bool = False
) -> Report:
    """A saved dump judged against the oracle on its case."""
    from dumps import open_dump
    from oracle import arithmetic as arithmetics
    from parity.case import load
    from parity.comparing import compare_dump
    from parity.errors import UsageError

    judged = arithmetics.named(arithmetic or "f32")
    opened = open_dump(dump)
    folder = case_path or dump.parent / "case"
    if not (folder / "case.json").exists():
        raise UsageError(f"{dump}: there is no case at {folder}; name it with --case")
    options: dict[str, Any] = {"mode": mode, "members": members, "required": require, "certify": certify}
    report = compare_dump(load(folder), opened, judged, **options, progress=shared.progress)
    shared.done()
    return report


@click.command()
@click.argument("dump", type=click.Path(path_type=Path))
@click.option("--case", "case_path", type=click.Path(path_type=Path), help="The case folder (default: `case` beside the dump).")
@shared.judge_options
@shared.report_options
def compare(
    dump: Path,
    case_path: Path | None,
    arithmetic: str | None,
    mode: str,
    members: int,
    require: tuple[str, ...],
    json_out: str | None,
    junit: Path | None,
    every_stage: bool,
    quiet: bool,
) -> int:
    """Compare a saved dump (a folder or one packed .safetensors file) with the oracle on its case."""
    report = _judged(dump, case_path, arithmetic, mode, members, require, certify=True)
    return shared.emit(report, json_out, junit, every_stage, quiet)


@click.command()
@click.argument("dump", type=click.Path(path_type=Path))
@click.option("--case", "case_path", type=click.Path(path_type=Path), help="The case folder (default: `case` beside the dump).")
@click.option("--arithmetic", metavar="NAME[,KEY=VALUE…]", help="What the candidate declares of its rounding.")
@click.option("--json", "json_out", metavar="FILE|-", help="The report as JSON.")
def explain(dump: Path, case_path: Path | None, arithmetic: str | None, json_out: str | None) -> int:
    """Say why a dump diverges: each diverging stage, its extent, and the mistakes that bring it back within noise.

    Only the dump and its case are needed: one operation is re-applied from the recorded inputs with each mistake it could hold. Nothing is
    printed that does not explain.
    """
    from parity.render import describe, explanations, headline

    report = _judged(dump, case_path, arithmetic, "local", 2, ())
    if json_out == "-":
        click.echo(json.dumps(report.to_json()))
        return report.exit_status
    click.echo(headline(report))
    for d in report.divergences:
        click.echo("  " + describe(d))
        for line in explanations(d) or ["no mistake of the catalogue explains it"]:
            click.echo("      " + line)
    for note in report.notes:
        click.echo("  note: " + note)
    if json_out:
        shared.write(Path(json_out), json.dumps(report.to_json()))
    return report.exit_status


@click.command()
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--json", "json_out", metavar="FILE|-", help="The differences as JSON.")
@click.option("--quiet", is_flag=True, help="The verdict line only.")
def diff(a: Path, b: Path, json_out: str | None, quiet: bool) -> int:
    """Compare two dumps of the same case bit for bit: every stage, its rows, and how far apart they are. No oracle, no tolerance."""
    from dumps import open_dump
    from parity.diffing import difference, headline, table

    found = difference(open_dump(a), open_dump(b))
    if json_out == "-":
        click.echo(json.dumps(found.to_json(), indent=1))
        return found.exit_status
    click.echo(headline(found))
    if not quiet:
        click.echo(table(found), nl=False)
    if json_out:
        shared.write(Path(json_out), json.dumps(found.to_json(), indent=1))
    return found.exit_status
