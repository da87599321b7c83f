"""``parity bench``: ratios against limits measured in the same run."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.option("--only", default="", metavar="TEXT", help="Only benchmarks whose name contains this.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path("build/bench"),
    show_default=True,
    help="Where release-size artifacts are made (3 GB) and kept.",
)
@click.option("--json", "json_out", type=click.Path(path_type=Path), help="The results as JSON.")
def bench(only: str, folder: Path, json_out: Path | None) -> int:
    """Measure the CPU library against NumPy, and the oracle at release size against float64 BLAS. Beyond a limit is exit 1."""
    from parity.benches import all_benches, machine
    from parity.cli.options import write

    click.echo(machine())
    results = []
    for r in all_benches(folder, only):
        results.append(r)
        verdict = "ok" if r.passed else "BEYOND ITS LIMIT"
        click.echo(
            f"{r.name:24s} {r.ours:9.3f} {r.unit} / {r.reference:9.3f} = {r.ratio:5.2f}  (limit {r.limit:g}) {verdict}\n    {r.what}"
        )
    if json_out:
        write(json_out, json.dumps({"machine": machine(), "results": [r.to_json() for r in results]}, indent=1))
    return 0 if results and all(r.passed for r in results) else 1 if results else 2
