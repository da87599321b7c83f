"""``parity greedy``: the target alone against the same target with a drafter."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click

from parity.cli import options as shared
from parity.errors import UsageError


@click.command()
@click.option("--family", type=click.Choice(shared.FAMILIES), help="A seeded tiny pair of this family, where no files are given.")
@click.option("--target", "target_path", type=click.Path(path_type=Path), help="The target: GGUF file or SafeTensors folder.")
@click.option("--model", type=click.Path(path_type=Path), help="The drafter, for --drafter model and steered.")
@click.option(
    "--drafter",
    type=click.Choice(("model", "steered", "oracle", "lookup", "random")),
    help="Who drafts; default: model where there is one, else oracle. steered: the model runs, drafts accepted as --accepts says are sent.",
)
@click.option("--candidate", default="f64", show_default=True, help="What runs both: f64, a NumPy arithmetic, cpu, cuda-emu …, PATH.so.")
@click.option("--entry", type=click.Choice(("auto", "op", "fused")), default="auto", help="How a library's drafter runs.")
@click.option("--dialect", multiple=True, callback=shared.pairs, metavar="KEY=VALUE,…", help="Switches of the drafter's dialect.")
@click.option("--engine", help="Whose rounds: z-lab, transformers, llama.cpp, muser, strata, mlxcel; default by family.")
@click.option("--verify", type=click.IntRange(1, 512), help="Verify length in the engine's own unit (drafts, candidates or rows).")
@click.option("--accepts", default="0,1,2,full,random", show_default=True, help="Forced accept lengths, in turn.")
@click.option("--cache", help="How the target's cache takes rows back: dense, saving-ring, buffered, ring-with-slack …, kept-rows, replay.")
@click.option("--gate", type=click.Choice(("windowed", "latch")), help="Stop speculating where it does not pay.")
@click.option("--tokens", type=click.IntRange(1, 65536), default=256, show_default=True, help="New tokens.")
@click.option(
    "--prompt-file", type=click.Path(path_type=Path), help="Real text (a GGUF target with its vocabulary; needs the extra `real`)."
)
@click.option("--context", type=click.IntRange(1, 1 << 16), default=24, show_default=True, help="Tokens of a seeded prompt.")
@click.option("--min-acceptance", type=click.FloatRange(0, 1), help="Accepted / drafted below this is exit 1.")
@click.option("--shadow", is_flag=True, help="Count how often the drafter is right along the target's own text, place by place.")
@click.option("--plant", metavar="BUG", help="Plant a mistake in the round loop (window.zeros, crop.off-by-one, rollback.ring …).")
@click.option("--trace", "trace_out", type=click.Path(path_type=Path), help="Write the rounds as JSON lines, for parity replay.")
@click.option("--record", multiple=True, type=click.Choice(("taps", "logits")), help="What the trace holds of them too, row by row.")
@click.option("--arithmetic", metavar="NAME[,KEY=VALUE…]", help="What the candidate declares of its rounding.")
@click.option(
    "--members", type=click.IntRange(0, 64), default=4, show_default=True,
    help="Sampled runs of the noise; 0 leaves rows and choices that differ unjudged (exit 3).",
)
@click.option("--threads", type=click.IntRange(0, 256), default=0, help="Threads of a library.")
@click.option("--timeout", type=float, default=600.0, show_default=True, help="Seconds a compiled candidate may take.")
@click.option("--seed", type=int, default=0, show_default=True)
@shared.json_option()
@click.option("--quiet", is_flag=True, help="The verdict line only.")
def greedy(
    family: str | None,
    target_path: Path | None,
    model: Path | None,
    drafter: str | None,
    candidate: str,
    entry: str,
    dialect: dict[str, str],
    engine: str | None,
    verify: int | None,
    accepts: str,
    cache: str | None,
    gate: str | None,
    tokens: int,
    prompt_file: Path | None,
    context: int,
    min_acceptance: float | None,
    shadow: bool,
    plant: str | None,
    trace_out: Path | None,
    record: tuple[str, ...],
    arithmetic: str | None,
    members: int,
    threads: int,
    timeout: float,
    seed: int,
    json_out: str | None,
    quiet: bool,
) -> int:
    """Decode greedily with the target alone and with a drafter, and compare every token and every logit row.

    A draft proposes and never decides, so the texts are equal whatever drafts. Every difference is a tie (within the noise of two healthy
    runs) or a divergence, and the first differing round is explained: proposal, window, accept, bonus, rollback or context.
    """
    from parity.speculating import render
    from parity.speculating.greedy import compare
    from parity.speculating.setup import Setup

    target_path, model = files(family, target_path, model, seed)
    kind = drafter or ("model" if model is not None else "oracle")
    model = model if kind in ("model", "steered") else None
    setup = Setup(
        target_path, prompt_ids(target_path, prompt_file, context, seed), tokens, kind, model, family,
        tuple(dialect.items()), engine, verify, lengths(accepts), cache, gate, candidate, entry, plant, seed=seed, threads=threads,
    )  # fmt: skip
    report, trace = compare(setup, arithmetic=arithmetic, members=members, floor=min_acceptance, timeout=timeout, shadowed=shadow)
    if trace_out:
        trace.header = replace(trace.header, identity=_identity(target_path, model, family, dialect))
        shared.write(trace_out, trace.lines(record))
    if json_out == "-":
        click.echo(json.dumps(report.to_json()))
        return report.exit_status
    if json_out:
        shared.write(Path(json_out), json.dumps(report.to_json()))
    click.echo(render.greedy(report, quiet))
    return report.exit_status


def files(family: str | None, target: Path | None, model: Path | None, seed: int) -> tuple[Path, Path | None]:
    """(target, drafter): as named, or the seeded tiny pair of the family."""
    from parity.cli.build import WEIGHTS, seeded

    if target is not None:
        return target, model
    if model is not None:
        raise UsageError(f"{model}: a drafter is verified by its target: name it (--target PATH)")
    if family is None:
        raise UsageError("name a target (--target PATH) or a family whose seeded tiny pair to use (--family)")
    first, second = seeded(family, WEIGHTS[family], seed)
    return (first, None) if second is None else (second, first)


def _identity(target: Path, model: Path | None, family: str | None, dialect: dict[str, str]) -> dict[str, dict[str, str]]:
    """SHA-256 of the files of both, by name: what a trace is known by."""
    from oracle.models import open_drafter, open_target

    opened = {"target": open_target(target).identity}
    if model is not None:
        opened["drafter"] = open_drafter(model, dialect, family).identity
    return {name: found.sha256 for name, found in opened.items() if found is not None}


def prompt_ids(target: Path, prompt_file: Path | None, context: int, seed: int) -> tuple[int, ...]:
    """Token ids of the prompt: a text's, or seeded ones that the target can embed."""
    import numpy as np

    from oracle.models import open_target
    from parity.cli.build import tokens as text_tokens

    if prompt_file is not None:
        return tuple(text_tokens(target, prompt_file))
    g = open_target(target).geometry
    ids = np.random.default_rng(seed).integers(0, g.vocab, context)
    return tuple(int(i) for i in np.where(np.isin(ids, getattr(g, "placeholders", ())), 0, ids))


def lengths(text: str) -> tuple[int | None, ...]:
    """``0,1,2,full,random`` as accept lengths: None is all, -1 a random number."""
    words: dict[str, int | None] = {"full": None, "random": -1}
    try:
        made = tuple(words[w] if w in words else int(w) for w in text.split(",") if w)
    except ValueError:
        made = ()
    if not made or any(n is not None and n < -1 for n in made):
        raise UsageError(f"--accepts {text}: expected whole numbers, full or random, separated by commas")
    return made
