"""``parity artifact make`` and ``parity inspect``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from parity.cli.options import FAMILIES, ROLES


@click.group()
def artifact() -> None:
    """Artifacts: model files of every family."""


@artifact.command()
@click.option("--family", type=click.Choice(FAMILIES), required=True)
@click.option("--size", type=click.Choice(("tiny", "small", "release")), default="tiny", show_default=True)
@click.option(
    "--weights", default="bf16", show_default=True, help="Weight format: bf16, f16, f32, q8_0, q4_0, q4_1, q5_0, q4_k, q5_k, q6_k."
)
@click.option("--container", type=click.Choice(("gguf", "safetensors")), help="Default: what the family is published in.")
@click.option("--role", type=click.Choice(ROLES), help="target: the target alone of a family that has a drafter too.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder to write.")
def make(family: str, size: str, weights: str, container: str | None, role: str | None, seed: int, out: Path) -> int:
    """Write seeded artifacts: asymmetric weights, norms away from one, rows of small norm, a wide range of values."""
    from oracle.artifacts import make_artifact
    from parity.errors import UsageError

    try:
        made = make_artifact(family, size, weights, out, seed=seed, container=container, role=role)
    except ValueError as e:
        raise UsageError(str(e)) from None
    for path in made:
        click.echo(str(path))
    return 0


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--target", type=click.Path(path_type=Path), help="Also: does this drafter belong to the target there?")
@click.option("--family", type=click.Choice(FAMILIES), help="Needed where the file does not say.")
@click.option("--loader", help="Also: would this engine's own loader take the drafter? muser-shell, strata, mlxcel or mlx-vlm.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def inspect(path: Path, target: Path | None, family: str | None, loader: str | None, as_json: bool) -> int:
    """Validate an artifact: identity, family, dialect, geometry, tensors and their dtypes, and what is wrong."""
    from oracle.artifacts import inspect_artifact
    from oracle.artifacts.loaders import LOADERS
    from parity.cli.inspecting import lines
    from parity.errors import UsageError

    if loader is not None and loader not in LOADERS:
        raise UsageError(f"--loader {loader}: expected one of {', '.join(LOADERS)}")
    found = inspect_artifact(path, family, target, loader)
    click.echo(json.dumps(found, indent=1, default=str) if as_json else "\n".join(lines(found)))
    return 2 if found["problems"] else 0
