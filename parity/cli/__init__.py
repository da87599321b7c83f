"""The command line. Commands load when they are called, so that ``parity --help`` answers at once."""

from __future__ import annotations

import importlib
import keyword
import sys
from typing import Any

import click

COMMANDS = {
    "run": ("run", "oracle against a candidate on a case"),
    "compare": ("dumps", "a saved dump against the oracle"),
    "explain": ("explaining", "why a dump diverges (--minimise)"),
    "import": ("importing", "recordings of other engines as dumps"),
    "diff": ("dumps", "two dumps of the same case"),
    "ties": ("ties", "classify argmax differences of two logit files"),
    "probe": ("probe", "order of sums | rows: block-wide against one by one | cost | law"),
    "greedy": ("greedy", "target alone against target + drafter"),
    "replay": ("replay", "an engine's round trace against the rules"),
    "case": ("case", "make | show | export"),
    "artifact": ("artifact", "make: seeded artifacts of a family"),
    "inspect": ("artifact", "validate an artifact"),
    "convert": ("convert", "SafeTensors <-> GGUF, bit-exact read-back"),
    "stages": ("about", "the stage vocabulary of a family"),
    "faults": ("faults", "list | plant | score: planted mistakes"),
    "backends": ("about", "what can run here, and why not"),
    "bench": ("bench", "ratios against the limits"),
}


class LazyGroup(click.Group):
    """A group whose commands are imported by name when used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"parity.cli.{COMMANDS[name][0]}")
        command: click.Command = getattr(module, f"{name}_" if keyword.iskeyword(name) else name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name="dflash-parity-lab")
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:
    """Is it rounding, or is it a bug? And if it is a bug: which stage, which row, which head?

    A float64 oracle of DFlash drafters and their targets is compared, stage by stage and row by row, with compiled libraries
    and stage dumps of any engine. Tolerances are derived from the declared arithmetic, never asked for.

    Exit status: 0 parity, 1 divergence, 2 bad usage or input, 3 inconclusive, 4 the candidate crashed or hung.
    """
    ctx.ensure_object(dict)["debug"] = debug


def main(argv: list[str] | None = None) -> None:
    """Console script: turns every error of a person's making into one line and an exit status."""
    args = sys.argv[1:] if argv is None else argv
    said: dict[str, Any] = {}
    try:
        status: Any = cli.main(args, prog_name="parity", standalone_mode=False, obj=said)
    except click.exceptions.Exit as e:
        sys.exit(e.exit_code)
    except click.ClickException as e:
        e.show()
        sys.exit(2)
    except click.Abort:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of a pipe went away: not an error of the lab.
        sys.stderr.close()
        sys.exit(0)
    except Exception as e:
        if "--debug" in args:
            raise
        sys.exit(explain(e, said.get("json")))
    sys.exit(status if isinstance(status, int) else 0)


def explain(error: Exception, json_out: str | None = None) -> int:
    """Print an error as one line on stderr; its exit status. An error that is nobody's input is shown as the defect it is.

    That two things are not of one identity is a verdict: it goes to stdout, or as JSON to ``json_out``, a file or ``-``.
    """
    from parity.errors import REFUSALS, CandidateError, IdentityMismatch, is_a

    if isinstance(error, IdentityMismatch):
        return _mismatch(error, json_out)
    if isinstance(error, CandidateError):
        click.echo(f"parity: candidate: {error}", err=True)
        return 4
    if is_a(error, REFUSALS | {"DumpError", "NativeError"}) or isinstance(error, OSError):
        click.echo(f"parity: {error}", err=True)
        return 2
    click.echo(f"parity: internal error, please report it (--debug shows where): {type(error).__name__}: {error}", err=True)
    return 70


def _mismatch(error: Exception, json_out: str | None) -> int:
    import json
    from pathlib import Path

    from parity.report import IDENTITY

    body = json.dumps({"schema": "dflash-parity-identity/1", "verdict": IDENTITY, "exit_status": 1, "text": str(error)})
    click.echo(body if json_out == "-" else f"{IDENTITY.upper()} {error}")
    if json_out not in (None, "-"):
        from parity.cli.options import write

        write(Path(str(json_out)), body)
    return 1
