"""``parity explain``: why a dump diverges, and the smallest case that still does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from parity.cli import options as shared

if TYPE_CHECKING:
    from dumps import Dump
    from parity.case import Case


@click.command()
@click.argument("dump", type=click.Path(path_type=Path))
@click.option("--case", "case_path", type=click.Path(path_type=Path), help="The case folder (default: `case` beside the dump).")
@click.option("--arithmetic", metavar="NAME[,KEY=VALUE…]", help="What the candidate declares of its rounding.")
@click.option(
    "--again", multiple=True, type=click.Path(path_type=Path), metavar="DUMP", help="A further run of the same candidate: does it repeat?"
)
@click.option("--minimise", is_flag=True, help="Then shrink the case to the smallest that still diverges so.")
@click.option("--candidate", help="What to run for --minimise (default: as the dump says).")
@click.option("--fault", metavar="SPEC", help="The mistake planted in it (default: as the dump says).")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the minimised case (default: `minimised` beside the dump).")
@click.option("--runs", type=click.IntRange(1, 10_000), default=60, show_default=True, help="How often --minimise may run the candidate.")
@click.option("--timeout", type=float, default=600.0, show_default=True, help="Seconds each run may take.")
@shared.json_option()
def explain(
    dump: Path,
    case_path: Path | None,
    arithmetic: str | None,
    again: tuple[Path, ...],
    minimise: bool,
    json_out: str | None,
    **options: Any,
) -> int:
    """Say why a dump diverges: each diverging stage, its extent, how it looks, and the mistakes that bring it back within noise.

    Only the dump and its case are needed: one operation is re-applied from the recorded inputs with each mistake it could hold. Nothing is
    printed that does not explain; mistakes that the case cannot tell apart are shown as such. A stage with several mistakes is taken apart.
    --minimise runs the candidate again on ever smaller cases and writes the smallest that diverges at the same stage for the same reason.
    """
    from dumps import open_dump
    from parity.case import load
    from parity.cli.dumps import judged
    from parity.render import describe, explanations, headline

    opened = open_dump(dump)
    report = judged(opened, case_path, arithmetic, "local", 2, (), repeats=tuple(open_dump(a) for a in again))
    if json_out == "-":
        click.echo(json.dumps(report.to_json()))
    else:
        click.echo(headline(report))
        for d in report.divergences:
            click.echo("  " + describe(d))
            for line in explanations(d):
                click.echo("      " + line)
            if not d.explanations:
                click.echo("      no mistake of the catalogue explains it")
        for note in report.notes:
            click.echo("  note: " + note)
    if json_out and json_out != "-":
        shared.write(Path(json_out), json.dumps(report.to_json()))
    if minimise and report.divergences:
        _minimise(load(case_path or dump.parent / "case"), opened, arithmetic, options, json_out == "-")
    return report.exit_status


def _minimise(case: Case, dump: Dump, arithmetic: str | None, options: dict[str, Any], quiet: bool) -> None:
    """Shrink, save, and print the line that reproduces it."""
    from parity import candidates
    from parity.errors import UsageError
    from parity.flow import run_candidate
    from parity.minimise import command, minimise

    spec, entry = _recorded_candidate(dump) if options["candidate"] is None else (options["candidate"], "auto")
    fault = options["fault"] or dump.provenance.get("fault")
    try:
        candidate = candidates.parse(spec, entry)
    except UsageError as e:
        raise UsageError(f"--minimise needs a candidate that can be run again (--candidate): {e}") from None
    out = (options["out"] or Path(dump.path).parent / "minimised").resolve()
    if out.exists() and any(out.iterdir()):
        raise UsageError(f"{out}: not empty; choose another folder (--out)")
    judged_by = candidates.declared(candidate, arithmetic, case)

    def run(smaller: Case) -> Any:
        return run_candidate(smaller, candidate, judged_by, mode="local", fault=fault, timeout=options["timeout"])

    smallest, how = minimise(case, run, out, options["runs"])
    smallest.save(out / "case")
    line = command(out / "case", spec, entry, fault, arithmetic)
    shared.write(out / "reproduce.txt", line + "\n")
    for entry_line in [] if quiet else how.log:
        click.echo("  minimise: " + entry_line)
    click.echo(f"minimised in {how.made} runs; reproduce it with\n{line}", err=quiet)


def _recorded_candidate(dump: Dump) -> tuple[str, str]:
    """(spec, entry) of the candidate that left the dump, as its provenance says."""
    name = str(dump.provenance.get("candidate", ""))
    spec, _, entry = name.partition(" (")
    return spec, entry.rstrip(")") or "auto"
