"""``parity faults``: list, plant, score."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import click

from parity.cli import options as shared


@click.group()
def faults() -> None:
    """Mistakes to plant, to show what a divergence looks like and that the lab would have seen it."""


@faults.command("list")
@click.option("--family", type=click.Choice(shared.FAMILIES), help="Only what can be planted in a seeded tiny model of this family.")
@click.option("--role", type=click.Choice(shared.ROLES), help="Of a family that has both; default: drafter.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def list_(family: str | None, role: str | None, as_json: bool) -> int:
    """The kinds of fault by type, their keys with defaults, what makes them milder, and the public reports they stand for."""
    from parity.faults import KINDS, type_of

    chosen = list(KINDS.values())
    if family is not None:
        from parity.faults.existing import kinds_of

        there = kinds_of(family, role)
        chosen = [k for k in chosen if k.name in there]
    if as_json:
        rows = [
            {
                "kind": k.name,
                "type": type_of(k),
                "stage": k.stage,
                "keys": k.defaults,
                "dial": k.dial,
                "about": k.about,
                "reports": k.reports,
            }
            for k in chosen
        ]
        click.echo(json.dumps(rows, indent=1))
        return 0
    for title in dict.fromkeys(type_of(k) for k in chosen):
        click.echo(f"{title} faults")
        for k in (k for k in chosen if type_of(k) == title):
            keys = ",".join(f"{key}={value}" for key, value in k.defaults.items())
            dial = f" [dial: {k.dial}]" if k.dial else ""
            click.echo(f"  {k.name + (':' + keys if keys else ''):44s} {k.about}{dial} ({', '.join(k.reports)})")
    click.echo("call faults also take stage=GLOB, rows=0-3 and heads=2-13, dump faults stage=GLOB; docs/faults.md says more")
    return 0


@faults.command()
@click.argument("spec")
@shared.case_options
@click.option("--case", "case_path", type=click.Path(path_type=Path), help="A saved case folder instead of the options above.")
@click.option("--candidate", default="f32", show_default=True, help="Who makes the mistake: cpu, f32, bf16, f64 or a preset of NumPy.")
@click.option("--entry", type=click.Choice(("auto", "op", "fused")), default="auto", show_default=True, help="Which entry of a library.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder to write.")
def plant(spec: str, case_path: Path | None, candidate: str, entry: str, out: Path, **made: Any) -> int:
    """Write the healthy case (OUT/case) and the dump of a candidate that made the mistake SPEC (OUT/dump).

    An artifact fault leaves the wrong model in OUT/artifact as well. `parity compare OUT/dump` and `parity explain OUT/dump` go on
    from there.
    """
    from parity import candidates
    from parity.case import load
    from parity.cli.build import case_from
    from parity.errors import UsageError
    from parity.faults import parse

    fault = parse(spec)
    if out.exists() and any(out.iterdir()):
        raise UsageError(f"{out}: not empty; choose another folder")
    case = load(case_path) if case_path else case_from(made, out / "models" if made["model"] is None else None)
    case.save(out / "case")
    try:
        candidates.execute(candidates.parse(candidate, entry), load(out / "case"), out / "dump", spec)
    except Exception:
        shutil.rmtree(out / "dump", ignore_errors=True)
        raise
    click.echo(f"{out}: {case.name}, candidate {candidate}, fault {fault.kind}; now: parity explain {out / 'dump'}")
    return 0


@faults.command()
@click.option("--seeds", type=click.IntRange(1, 1000), default=1, show_default=True)
@click.option("--case", "names", multiple=True, help="Only these cases of the score (default: all).")
@click.option("--candidate", "chosen", multiple=True, help="Only these: f32, bf16, cpu, cpu (fused).")
@click.option("--jobs", type=click.IntRange(1, 256), default=2, show_default=True, help="Processes.")
@click.option("--keep", type=click.Path(path_type=Path), help="Keep every outcome here, and go on from what is there.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the table here (docs/score.md).")
def score(seeds: int, names: tuple[str, ...], chosen: tuple[str, ...], jobs: int, keep: Path | None, out: Path | None) -> int:
    """Plant the whole catalogue in every family under every candidate, and count what is found and named.

    Exit status 1 on a miss above the information limit or a false alarm of a healthy run.
    """
    from parity.scoring import CANDIDATES, cases_named, scored

    wrong = [c for c in chosen if c not in CANDIDATES]
    if wrong:
        raise click.BadParameter(f"candidate {wrong[0]!r}: expected one of {', '.join(CANDIDATES)}")
    text, failed = scored(cases_named(names), chosen or CANDIDATES, seeds, jobs, keep)
    if out:
        shared.write(out, text)
    click.echo(text)
    return 1 if failed else 0
