"""``parity case``: make, show and export cases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from parity.cli import options as shared


@click.group()
def case() -> None:
    """Cases: all that is needed to reproduce a run, as a folder."""


@case.command()
@shared.case_options
@click.option("--certify", is_flag=True, help="Choose context, portions and values so that every convention of the dialect can be told.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder to write.")
def make(out: Path, certify: bool, **made: Any) -> int:
    """Write a case folder: case.json (model, identities, dialect, steps) and inputs.safetensors (features and ids).

    With --certify the lengths and values that were asked are a start only; what is certified, and what cannot be, is printed.
    """
    from parity.cli.build import case_from
    from parity.errors import UsageError

    if out.exists() and any(out.iterdir()):
        raise UsageError(f"{out}: not empty; choose another folder")
    scratch = out.parent / "models" if made["model"] is None else None
    said: list[str] = []
    if certify:
        from oracle.arithmetic import named
        from parity import certifying

        found = certifying.certify(lambda options: case_from(options, scratch), made, named("f32"))
        built, said = found.case, certifying.lines(found)
    else:
        built = case_from(made, scratch)
    built.save(out)
    click.echo("\n".join([f"{out}: {built.name}, {len(built.steps)} steps", *said]))
    return 0


@case.command()
@click.argument("folder", type=click.Path(path_type=Path))
def show(folder: Path) -> int:
    """Print a case: its model, identities, geometry and steps."""
    from parity.case import load
    from parity.models import declared_stages, open_case_model

    loaded = load(folder)
    click.echo(
        json.dumps(loaded.describe() | {"geometry": open_case_model(loaded).geometry, "stages": len(declared_stages(loaded))}, indent=1)
    )
    return 0


@case.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--weights", is_flag=True, help="Also every weight decoded to f32, as .npy: for an engine without a reader of the format.")
@click.option("--no-artifacts", is_flag=True, help="Leave the model files out; the README names their SHA-256.")
def export(folder: Path, out: Path, weights: bool, no_artifacts: bool) -> int:
    """Write the case FOLDER as a folder OUT that travels: artifacts, inputs, the stages to record, a C header and a README.

    Someone with another engine, and no Python, runs it and sends back a dump: `parity compare OUT/dump` then needs nothing else.
    """
    from parity.case import load
    from parity.exporting import export as write

    loaded = load(folder)
    write(loaded, out, weights=weights, artifacts=not no_artifacts)
    click.echo(f"{out}: {loaded.name}; see {out / 'README.md'}")
    return 0
