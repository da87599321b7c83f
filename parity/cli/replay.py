"""``parity replay``: an engine's round trace against the rules."""

from __future__ import annotations

import json
from pathlib import Path

import click

from parity.cli import options as shared


@click.command()
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--target", "target_path", type=click.Path(path_type=Path), help="The target's files: its picks are then compared too.")
@click.option("--model", type=click.Path(path_type=Path), help="The drafter's files: its proposals are then run again (with --target).")
@click.option("--family", type=click.Choice(shared.FAMILIES), help="The drafter's family, where its files do not say.")
@click.option("--dialect", multiple=True, callback=shared.pairs, metavar="KEY=VALUE,…", help="Switches of the drafter's dialect.")
@click.option("--require", multiple=True, metavar="CHECK", help="A check that must be possible from what was recorded, else inconclusive.")
@click.option("--arithmetic", metavar="NAME[,KEY=VALUE…]", help="What the engine declares of its rounding (default: f32).")
@click.option(
    "--members", type=click.IntRange(0, 64), default=4, show_default=True,
    help="Sampled runs of the noise; 0 leaves choices that differ unjudged (exit 3).",
)
@shared.json_option()
@click.option("--quiet", is_flag=True, help="The verdict line only.")
def replay(
    trace: Path,
    target_path: Path | None,
    model: Path | None,
    family: str | None,
    dialect: dict[str, str],
    require: tuple[str, ...],
    arithmetic: str | None,
    members: int,
    json_out: str | None,
    quiet: bool,
) -> int:
    """Check the rounds that an engine recorded (JSON lines, docs/round-trace.md) one by one.

    Proposals are the argmax of the recorded logits, the verify window holds the proposals, accepts follow the rule, the bonus row is right,
    context rows are the committed ones, positions advance, caches are taken back. Each violation is named with its round.
    With --target every window is run again; with --model too, every block, from the recorded features or the target's own.
    """
    from oracle.models import open_drafter, open_target
    from parity.speculating import render
    from parity.speculating.replay import replay as check

    target = open_target(target_path) if target_path else None
    drafter = open_drafter(model, dialect, family) if model else None
    report = check(trace, target, drafter, required=require, arithmetic=arithmetic, members=members)
    if json_out == "-":
        click.echo(json.dumps(report.to_json()))
        return report.exit_status
    if json_out:
        shared.write(Path(json_out), json.dumps(report.to_json()))
    click.echo(render.replay(report, quiet))
    return report.exit_status
