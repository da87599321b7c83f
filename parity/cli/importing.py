"""``parity import``: recordings in other formats as dumps, and the gate between two tap captures."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import click

from parity.importers import FORMATS, Imported


@click.command("import")
@click.argument("format", type=click.Choice(FORMATS))
@click.argument("source", type=click.Path(path_type=Path))
@click.option("--case", "case_path", type=click.Path(path_type=Path), help="The case folder that was run.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the dump to write (absent or empty).")
@click.option("--mapping", metavar="FILE|ENGINE", help="A mapping file, or the engine whose shipped one is meant; none: stage paths.")
@click.option("--step", type=click.IntRange(0), help="The step of tensors whose names do not say (STEP/NAME).")
@click.option("--require", multiple=True, metavar="STAGE", help="Stage pattern that must be there, else the exit status is 3.")
@click.option("--against", type=click.Path(path_type=Path), help="strata-taps: the other run of the prompt-against-window gate.")
def import_(
    format: str,
    source: Path,
    case_path: Path | None,
    out: Path | None,
    mapping: str | None,
    step: int | None,
    require: tuple[str, ...],
    against: Path | None,
) -> int:
    """Turn a recording of another engine into a dump of a case; `parity compare OUT --case CASE` then judges it.

    npz, safetensors: tensors named STEP/NAME, as NumPy, PyTorch or MLX save them. transformers: what `parity.adapters.hooks` saved.
    strata: a stage directory. strata-taps: a tap capture (--against OTHER alone compares the prompt path with the window path).

    Exit status: 0 imported, 1 something is wrong with the recording, 2 it cannot be read, 3 a required stage is not in it.
    """
    from parity.case import load
    from parity.errors import UsageError
    from parity.importers import import_recording

    status = _gate(format, source, against) if against is not None else 0
    if against is not None and case_path is None and out is None:
        return status
    if case_path is None or out is None:
        raise UsageError("--case and --out are needed: the case that was run, and the dump to write")
    case = load(case_path)
    done = import_recording(format, source, case, out, mapping, step)
    click.echo("\n".join(_lines(out, case.name, done)))
    absent = [pattern for pattern in require if not any(fnmatchcase(path, pattern) for _, path in done.placed)]
    for pattern in absent:
        click.echo(f"required, not recorded: {pattern}")
    return 1 if done.findings or status else 3 if absent else 0


def _lines(out: Path, name: str, done: Imported) -> list[str]:
    lines = [f"{out}: {len(done.placed)} stages of {name}; {len(done.findings)} findings, {len(done.unmapped)} tensors without a rule"]
    for title, names in (
        ("finding", done.findings),
        ("no rule", done.unmapped),
        ("missing", done.missing),
        ("cannot be seen", done.unseen),
    ):
        lines += [f"{title}: {line}" for line in names]
    return lines


def _gate(format: str, source: Path, against: Path) -> int:
    from dumps.importers import read_tap_records
    from parity.errors import UsageError
    from parity.importers.taps import COSINE, RELATIVE, cross

    if format != "strata-taps":
        raise UsageError(f"--against: only strata-taps has it, not {format}")
    found = cross(read_tap_records(source), read_tap_records(against))
    bad = [c for c in found if not c.passes]
    worst = min(found, key=lambda c: c.cosine)
    click.echo(
        f"prompt path against window path: {len(found) - len(bad)} of {len(found)} taps agree "
        f"(cosine >= {COSINE}, mean |d| / mean |a| <= {RELATIVE}); worst cosine {worst.cosine:.4f}, tap {worst.tap} at {worst.position}"
    )
    for c in bad:
        click.echo(f"position {c.position}, tap {c.tap}: cosine {c.cosine:.4f}, relative {c.relative:.3g}{f': {c.why}' if c.why else ''}")
    return 1 if bad else 0
