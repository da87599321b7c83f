"""``parity stages`` and ``parity backends``: what there is."""

from __future__ import annotations

import json
from typing import Any

import click

from parity.cli import options as shared


@click.command()
@shared.case_options
def stages(**made: Any) -> int:
    """Every stage of a case in causal order, with axes and shape; nothing is computed. --family alone shows a tiny model's."""
    from parity.cli.build import case_from
    from parity.models import declared_stages

    for (step, path), axes, shape in declared_stages(case_from(made)):
        click.echo(f"{step}  {path:32s} {'x'.join(map(str, shape)):16s} {' '.join(axes)}")
    return 0


@click.command()
@click.option("--json", "as_json", is_flag=True)
def backends(as_json: bool) -> int:
    """Which candidates can run here: NumPy arithmetics and compiled libraries, and why one cannot."""
    from parity.backends import survey

    found = survey()
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return 0
    for b in found:
        click.echo(f"{b['name']:16s} {'ready' if b['ready'] else 'not here':9s} {b['about']}")
    return 0
