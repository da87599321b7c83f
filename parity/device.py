"""``make parity-cuda``, ``make parity-metal``: everything on a real device.

Every family's target op by op, every drafter op by op and fused, local and rolled, and real text; products by matrix units; the order of
every format's products, for M = 1 and M = 2 … 16; the tiny cases under compute-sanitizer where it is; then the speed of the products. With
``--candidate cuda-emu`` or ``metal-emu`` all but real text and speed runs anywhere.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from parity.candidates import LIBRARIES, declared, library_of, parse
from parity.cli import explain
from parity.device_benches import benchmark, figures
from parity.errors import UsageError
from parity.flow import run_candidate
from parity.suite import DRAFTERS, ENTRIES, TARGETS, Entry

TINY = (
    *(Entry(f"{key}-{entry}", f"{key} drafter, {entry}", make, entry=entry) for key, make in DRAFTERS.items() for entry in ("op", "fused")),
    *(Entry(key, f"{key.removesuffix('-t')} target, op", make) for key, make in TARGETS.items()),
)
"""Every tiny case of the suite, drafters both ways."""
DEVICES = ("cuda", "metal")
TOOLS = ("memcheck", "racecheck")
ORDER = "order"

Line = dict[str, Any]
"""What is printed of a step: its key, what it is, its verdict, and where it ran."""


def entries(candidate: str) -> list[Entry]:
    """The cases of the candidate: the tiny ones, one with 16-bit weights by matrix units, and on a device real text."""
    units = [spec for spec in LIBRARIES if spec.startswith(f"{candidate}+")]
    by_units = [replace(e, key=f"{e.key}+{u.partition('+')[2]}", candidate=u) for u in units for e in TINY if e.key.startswith("qwen3-")]
    text = [e for e in ENTRIES if e.key == "c" and candidate in DEVICES]
    return [*(replace(e, candidate=candidate) for e in (*TINY, *text)), *by_units]


def run_case(entry: Entry, out: Path) -> list[Line]:
    """One case: its verdict, and for a tiny one on a device what compute-sanitizer says."""
    case = entry.make(out / "models" / entry.key)
    parsed = parse(entry.candidate, entry.entry)
    report = run_candidate(case, parsed, declared(parsed, None, case), keep=out / entry.key)
    (out / entry.key / "report.json").write_text(json.dumps(report.to_json()))
    where = report.candidate.get("where", "?")
    lines = [{"case": entry.key, "what": entry.title, "verdict": report.verdict, "where": where}]
    if where == "device" and entry.key != "c" and shutil.which("compute-sanitizer"):
        lines += [sanitized(entry, out, tool) for tool in TOOLS]
    return lines


def sanitized(entry: Entry, out: Path, tool: str) -> Line:
    """The candidate's worker on a kept case under compute-sanitizer; any finding of the tool is a failure."""
    folder = out / entry.key
    request = folder / "case" / "request-dump.json"
    body = json.loads(request.read_text()) | {"out": str(folder / f"dump-{tool}")}
    ours = folder / f"request-{tool}.json"
    ours.write_text(json.dumps(body))
    shutil.rmtree(folder / f"dump-{tool}", ignore_errors=True)
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", sys.executable, "-m", "parity.worker", str(ours)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    (folder / f"{tool}.txt").write_text(done.stdout + done.stderr)
    verdict = "clean" if done.returncode == 0 else f"exit {done.returncode}"
    return {"case": entry.key, "what": f"compute-sanitizer {tool}", "verdict": verdict, "where": "device"}


def orders(candidate: str, out: Path) -> list[Line]:
    """Products of every format: summed as declared, and a row's bits the same for every M to 16."""
    from native import DTYPES
    from parity.ordering.probe import probe

    stored = [name for name in DTYPES if name not in ("f64", "i64")]
    report = probe(parse(candidate), weights=stored, widths=(256,), outputs=3, block=16)
    (out / "order.json").write_text(json.dumps(report.to_json()))
    what = f"products of {len(report.kernels)} formats, M = 1 … 16"
    return [{"case": ORDER, "what": what, "verdict": report.verdict, "where": report.candidate["where"]}]


def steps(candidate: str, only: str, out: Path) -> dict[str, Callable[[], list[Line]]]:
    """What is run, or those of it that are named; `UsageError` for a key that nothing has."""
    every: dict[str, Callable[[], list[Line]]] = {e.key: partial(run_case, e, out) for e in entries(candidate)}
    every[ORDER] = partial(orders, candidate, out)
    if unknown := [key for key in only.split(",") if only and key not in every]:
        raise UsageError(f"--only {unknown[0]}: {candidate} has no such case, expected some of {', '.join(every)}")
    return {key: step for key, step in every.items() if not only or key in only.split(",")}


def attempt(key: str, step: Callable[[], list[Line]]) -> list[Line]:
    """A step's lines; one that cannot be run says why and is a failure like any other."""
    try:
        return step()
    except Exception as error:
        explain(error)
        return [{"case": key, "what": "could not be run", "verdict": "error", "where": "-"}]


def main(argv: list[str] | None = None) -> int:
    """Entry point; exit status 0 when every case is parity and every tool clean."""
    parser = argparse.ArgumentParser(prog="parity.device", description=__doc__)
    parser.add_argument("--candidate", default="cuda")
    parser.add_argument("--out", type=Path, default=Path("build/parity-cuda"))
    parser.add_argument("--only", default="", help="keys, comma separated: " + ", ".join((*(e.key for e in TINY), ORDER)))
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.candidate == "cuda" and not shutil.which("compute-sanitizer"):
        print(f"compute-sanitizer is not on the PATH: {' and '.join(TOOLS)} are not run")
    try:
        chosen = steps(options.candidate, options.only, options.out)
        library_of(parse(options.candidate))[0].context().close()
        good = True
        for key, step in chosen.items():
            for line in attempt(key, step):
                good &= line["verdict"] in ("parity", "clean")
                print(f"{line['case']:24s} {line['verdict']:12s} {line['where']:9s} {line['what']}", flush=True)
        if options.candidate in DEVICES:
            benches(options.candidate, options.out)
    except Exception as error:
        return explain(error)
    return 0 if good else 1


def benches(candidate: str, out: Path) -> None:
    """Print the benchmark, and leave it in ``benchmark.json``."""
    results = []
    for result in benchmark(candidate):
        results.append(result)
        print(figures(result), flush=True)
    (out / "benchmark.json").write_text(json.dumps({"date": date.today().isoformat(), "results": results}))


if __name__ == "__main__":
    sys.exit(main())
