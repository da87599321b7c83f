"""``make parity-cuda``, ``make parity-metal``: everything on a real device.

Every drafter family op by op and fused, local and rolled; the tiny cases under compute-sanitizer where it is; then the speed of the
products. With ``--candidate cuda-emu`` the first part runs anywhere.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from parity.candidates import declared, parse
from parity.cli import explain
from parity.flow import run_candidate
from parity.suite import ENTRIES, Entry

CASES = ("a-op", "a-fused", "a-ring", "b", "b-fused", "laguna", "laguna-fused", "qwen38")
DEVICES = ("cuda", "metal")
TOOLS = ("memcheck", "racecheck")
# The drafters' own sizes: (format, inputs, outputs).
PRODUCTS = (("q4_k", 6656, 19968), ("q5_k", 6656, 19968), ("q6_k", 6656, 19968), ("q8_0", 2560, 7680), ("bf16", 2560, 7680))
ROWS = (1, 7, 16)


def entries(only: str) -> list[Entry]:
    """The drafter cases of the suite."""
    keys = only.split(",") if only else CASES
    return [e for e in ENTRIES if e.key in keys]


def run_case(entry: Entry, candidate: str, out: Path) -> dict[str, Any]:
    """One case with the candidate in the place of the suite's own: its verdict, and where it ran."""
    case = entry.make(out / "models" / entry.key)
    parsed = parse(candidate, entry.entry)
    report = run_candidate(case, parsed, declared(parsed, None, case), keep=out / entry.key)
    (out / entry.key / "report.json").write_text(json.dumps(report.to_json()))
    return {"case": entry.key, "what": entry.title, "verdict": report.verdict, "where": report.candidate.get("where", "?")}


def sanitized(entry: Entry, out: Path, tool: str) -> dict[str, Any]:
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


def seconds_each(issue: Callable[[], None], wait: Callable[[], Any], count: int = 50, rounds: int = 5) -> float:
    """Least wall-clock seconds of one of ``count`` issued calls, over some rounds after a warm-up."""
    best = float("inf")
    for turn in range(rounds + 1):
        wait()
        began = time.perf_counter()
        for _ in range(count):
            issue()
        wait()
        if turn:
            best = min(best, (time.perf_counter() - began) / count)
    return best


def benchmark(candidate: str) -> list[dict[str, Any]]:
    """Products with weights, activations and results on the device: seconds, and bytes of weight per second."""
    import native
    from native.device import OnDevice, linear
    from oracle.artifacts import blocks

    rng = np.random.default_rng(0)
    found = []
    with native.open_library(candidate).context() as context:
        for stored, width, outputs in PRODUCTS:
            raw = blocks.random_blocks(rng, stored, outputs, width, 0.02)
            w = OnDevice(context, native.Stored(raw, stored, (outputs, width)))
            for rows in ROWS:
                x = OnDevice(context, rng.standard_normal((rows, width)).astype(np.float32))
                y = OnDevice(context, np.zeros((rows, outputs), np.float32))
                each = seconds_each(partial(linear, context, x, w, y), y.download)
                flops = 2.0 * rows * width * outputs / each
                rates = {"us": each * 1e6, "GB/s": raw.nbytes / each / 1e9, "TFLOP/s": flops / 1e12}
                found.append({"product": f"{stored} {outputs}x{width} M={rows}", **rates})
                x.release()
                y.release()
            w.release()
    return found


def main(argv: list[str] | None = None) -> int:
    """Entry point; exit status 0 when every case is parity and every tool clean."""
    parser = argparse.ArgumentParser(prog="parity.device", description=__doc__)
    parser.add_argument("--candidate", default="cuda")
    parser.add_argument("--out", type=Path, default=Path("build/parity-cuda"))
    parser.add_argument("--only", default="", help="keys, comma separated: " + ", ".join(CASES))
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    good = True
    try:
        for entry in entries(options.only):
            lines = [run_case(entry, options.candidate, options.out)]
            if lines[0]["where"] == "device" and shutil.which("compute-sanitizer"):
                lines += [sanitized(entry, options.out, tool) for tool in TOOLS]
            for line in lines:
                good &= line["verdict"] in ("parity", "clean")
                print(f"{line['case']:14s} {line['verdict']:12s} {line['where']:9s} {line['what']}", flush=True)
        if options.candidate in DEVICES:
            for result in benchmark(options.candidate):
                rates = f"{result['us']:9.1f} us {result['GB/s']:8.0f} GB/s {result['TFLOP/s']:7.2f} TFLOP/s"
                print(f"{result['product']:32s} {rates}", flush=True)
    except Exception as error:
        return explain(error)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
