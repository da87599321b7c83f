"""``parity compare`` and ``parity diff``: saved dumps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from parity.cli import options as shared

if TYPE_CHECKING:
    from dumps import Dump
    from parity.report import Report


def judged(
    opened: Dump,
    case_path: Path | None,
    arithmetic: str | None,
    mode: str,
    members: int,
    require: tuple[str, ...],
    certify: bool = False,
    repeats: tuple[Dump, ...] = (),
) -> Report:
    """A saved dump judged against the oracle on its case (default: the folder ``case`` beside it)."""
    from oracle import arithmetic as arithmetics
    from parity.case import load
    from parity.comparing import compare_dump
    from parity.errors import UsageError

    declared = arithmetics.named(arithmetic or "f32")
    folder = case_path or Path(opened.path).parent / "case"
    if not (folder / "case.json").exists():
        raise UsageError(f"{opened.path}: there is no case at {folder}; name it with --case")
    options: dict[str, Any] = {"mode": mode, "members": members, "required": require, "certify": certify, "repeats": repeats}
    report = compare_dump(load(folder), opened, declared, **options, progress=shared.progress)
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
    from dumps import open_dump

    report = judged(open_dump(dump), case_path, arithmetic, mode, members, require, certify=True)
    return shared.emit(report, json_out, junit, every_stage, quiet)


@click.command()
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@shared.json_option("The differences as JSON.")
@click.option("--verify", is_flag=True, help="Check the SHA-256 of every record first.")
@click.option(
    "--across-placements", is_flag=True, help="Compare values of runs that placed their weights differently; no claim about their choices."
)
@click.option("--quiet", is_flag=True, help="The verdict line only.")
def diff(a: Path, b: Path, json_out: str | None, verify: bool, across_placements: bool, quiet: bool) -> int:
    """Compare two dumps of the same case bit for bit: every stage, its rows, and how far apart they are. No oracle, no tolerance."""
    from dumps import open_dump
    from parity.diffing import difference, headline, table

    dumps = open_dump(a), open_dump(b)
    if verify:
        for dump in dumps:
            dump.verify()
    found = difference(*dumps, across_placements)
    if json_out == "-":
        click.echo(json.dumps(found.to_json(), indent=1))
        return found.exit_status
    click.echo(headline(found))
    if not quiet:
        click.echo(table(found), nl=False)
    if json_out:
        shared.write(Path(json_out), json.dumps(found.to_json(), indent=1))
    return found.exit_status
