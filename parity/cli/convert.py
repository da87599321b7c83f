"""``parity convert``."""

from __future__ import annotations

from pathlib import Path

import click

from parity.cli.options import FAMILIES


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("destination", type=click.Path(path_type=Path))
@click.option("--family", type=click.Choice(FAMILIES), help="Needed where the file does not say.")
def convert(source: Path, destination: Path, family: str | None) -> int:
    """Convert SOURCE, a GGUF file or a SafeTensors folder, into the other kind at DESTINATION (a name ending in .gguf, or a folder).

    Tensors keep their stored format bit for bit; a Llama's q and k rows change their pairing. The result is read back and compared,
    every value to the bit, before it gets its name. What the other container cannot hold is refused.
    """
    from oracle.artifacts.convert import convert_artifact

    made = convert_artifact(source, destination, family)
    click.echo(f"CONVERTED {made.family}: {made.tensors} tensors, every value read back to the bit - {made.path}")
    for note in made.notes:
        click.echo(f"  note: {note}")
    return 0
