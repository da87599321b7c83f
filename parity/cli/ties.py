"""``parity ties``: for people who have only logits, or only token ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from parity.cli import options as shared
from parity.errors import UsageError

if TYPE_CHECKING:
    from parity.token_streams import Fork


@click.command()
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option(
    "--arithmetic", metavar="NAME[,KEY=VALUE…]", default="f32", show_default=True, help="What the engines declare of their rounding."
)
@click.option("--vocab-size", type=click.IntRange(2, 1 << 24), help="Of raw f32 logits, which carry no shape.")
@click.option("--array", metavar="NAME", help="The array in a file of several.")
@click.option(
    "--model", type=click.Path(path_type=Path), help="The target. For token ids it decides; for logits it only gives the tokens' text."
)
@click.option("--prompt", type=click.Path(path_type=Path), help="Token ids before both streams (with --model).")
@click.option("--members", type=click.IntRange(2, 64), default=8, show_default=True, help="Sampled runs behind a verdict on token ids.")
@click.option("--placement-a", metavar="KEY=VALUE,…", help="Which weights ran where behind A, such as expert_cache=4283.")
@click.option("--placement-b", metavar="KEY=VALUE,…", help="The same of B: where the two differ, nothing is claimed.")
@shared.json_option("The verdict as JSON.")
@click.option("--quiet", is_flag=True, help="The verdict line only.")
def ties(
    a: Path,
    b: Path,
    arithmetic: str,
    vocab_size: int | None,
    array: str | None,
    model: Path | None,
    prompt: Path | None,
    members: int,
    placement_a: str | None,
    placement_b: str | None,
    json_out: str | None,
    quiet: bool,
) -> int:
    """Classify every argmax difference of two logit files A and B as a tie or a divergence.

    A and B hold the logits of the same tokens, row by row: .npy, .npz, .safetensors, raw f32, or llama.cpp's --save-all-logits. The
    noise is read from the two files themselves. With text files of token ids (.txt, .json) instead, --model names the target: its
    margin at the first difference decides.
    """
    from oracle import arithmetic as arithmetics
    from parity.identity import parse_placement, same_placement

    declared = arithmetics.named(arithmetic)
    same_placement(parse_placement(placement_a), parse_placement(placement_b), f"{b} against {a}")
    if a.suffix in (".txt", ".json", ".ids") and b.suffix in (".txt", ".json", ".ids"):
        return _ids(a, b, model, prompt, arithmetic, members, json_out, quiet)
    from parity.logit_files import open_logits
    from parity.ties import classify
    from parity.ties_text import headline, table

    found = classify(open_logits(a, vocab_size, array), open_logits(b, vocab_size, array), declared)
    if json_out == "-":
        click.echo(json.dumps(found.to_json()))
        return found.exit_status
    click.echo(headline(found))
    if not quiet:
        click.echo(table(found, model), nl=False)
    if json_out:
        shared.write(Path(json_out), json.dumps(found.to_json()))
    return found.exit_status


def _ids(
    a: Path, b: Path, model: Path | None, prompt: Path | None, arithmetic: str, members: int, json_out: str | None, quiet: bool
) -> int:
    from parity.token_streams import first_fork, read_ids

    if model is None:
        raise UsageError(f"{a}: token ids alone decide nothing: name the target with --model")
    fork: Fork = first_fork(read_ids(a), read_ids(b), read_ids(prompt) if prompt else [], model, arithmetic, members, shared.progress)
    shared.done()
    if json_out == "-":
        click.echo(json.dumps(fork.to_json()))
        return fork.exit_status
    click.echo(fork.headline())
    if not quiet:
        for line in fork.details():
            click.echo("  " + line)
    if json_out:
        shared.write(Path(json_out), json.dumps(fork.to_json()))
    return fork.exit_status
