"""``make parity-cuda``, ``make parity-metal``: everything on a real device.

Every family's target op by op, every drafter op by op and fused, local and rolled, and real text; the tiny cases under compute-sanitizer
where it is; then the speed of the products. With ``--candidate cuda-emu`` or ``metal-emu`` the tiny cases run anywhere.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import native
from native.device import OnDevice, copy, linear
from oracle.artifacts import blocks
from parity import gpu_peers
from parity.candidates import declared, parse
from parity.cli import explain
from parity.errors import UsageError
from parity.flow import run_candidate
from parity.suite import DRAFTERS, ENTRIES, TARGETS, Entry

if TYPE_CHECKING:
    from native import Context

CASES = (
    *(Entry(f"{key}-{entry}", f"{key}, {entry}", make, entry=entry) for key, make in DRAFTERS.items() for entry in ("op", "fused")),
    *(Entry(key, f"{key}, op", make) for key, make in TARGETS.items()),
)
"""Every tiny case of the suite, drafters both ways."""
LONG = tuple(e for e in ENTRIES if e.key == "c")
"""What takes a device: real text."""
DEVICES = ("cuda", "metal")
TOOLS = ("memcheck", "racecheck")
# The drafters' own sizes: (format, inputs, outputs).
PRODUCTS = (("q4_k", 6656, 19968), ("q5_k", 6656, 19968), ("q6_k", 6656, 19968), ("q8_0", 2560, 7680), ("bf16", 2560, 7680))
ROWS = (1, 7, 16)
COPIED = 1 << 28


def entries(only: str, candidate: str) -> list[Entry]:
    """The cases of the candidate, or those of them that are named; `UsageError` for a key that none has."""
    chosen = [*CASES, *(LONG if candidate in DEVICES else ())]
    keys = [e.key for e in chosen]
    if not only:
        return chosen
    if unknown := [key for key in only.split(",") if key not in keys]:
        raise UsageError(f"--only {unknown[0]}: candidate {candidate} has no such case, expected some of {', '.join(keys)}")
    return [e for e in chosen if e.key in only.split(",")]


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


def peer(library: native.Library) -> tuple[str, gpu_peers.CuBLAS | None, list[str]]:
    """What the library runs on, the device's own product of matrices, and what is missing of it: cuBLAS for CUDA, nothing for Metal."""
    about = f"{library.info.name} {library.info.version}"
    if not library.info.name.startswith("dlab-cuda"):
        return about, None, [f"{library.info.name}: products are compared with a copy alone"]
    try:
        driver = gpu_peers.Driver()
        about = f"{about}, {driver.about()}"
        return about, gpu_peers.CuBLAS(driver), []
    except gpu_peers.PeerError as error:
        return about, None, [f"{error}: no figures of cuBLAS"]


def copy_rate(context: Context, count: int = 50) -> float:
    """Bytes read and written per second by the library's copy within device memory, 256 MB at a time."""
    a, b, last = (OnDevice(context, np.zeros((1, n), np.float32)) for n in (COPIED // 4, COPIED // 4, 1))
    each = seconds_each(partial(copy, context, a, b), last.download, count)
    for held in (a, b, last):
        held.release()
    return 2.0 * COPIED / each


def benchmark(candidate: str, products: Sequence[tuple[str, int, int]] = PRODUCTS, count: int = 50) -> Iterator[dict[str, Any]]:
    """Products with weights, activations and results on the device: seconds, bytes of weight per second and as a part of what a copy
    within the device reads per second; where cuBLAS is, its time on the same weights as bf16 (activations too)."""
    rng = np.random.default_rng(0)
    library = native.open_library(candidate)
    about, blas, missing = peer(library)
    yield {"about": about, "missing": missing}
    with library.context() as context:
        copied = copy_rate(context, count)
        yield {"product": "copy within the device", "GB/s": copied / 1e9}
        for stored, width, outputs in products:
            raw = blocks.random_blocks(rng, stored, outputs, width, 0.02)
            weight = native.Stored(raw, stored, (outputs, width))
            w = OnDevice(context, weight)
            wide = OnDevice(context, native.Stored.of(context.convert(context.dequant(weight), "bf16"), "bf16")) if blas else None
            for rows in ROWS:
                x = rng.standard_normal((rows, width)).astype(np.float32)
                ours, y = OnDevice(context, x), OnDevice(context, np.zeros((rows, outputs), np.float32))
                each = seconds_each(partial(linear, context, ours, w, y), y.download, count)
                flops = 2.0 * rows * width * outputs / each
                rates = {"us": each * 1e6, "GB/s": raw.nbytes / each / 1e9, "TFLOP/s": flops / 1e12}
                rates["of copy"] = raw.nbytes / each / (copied / 2)
                if blas and wide:
                    theirs = OnDevice(context, native.Stored.of(context.convert(x, "bf16"), "bf16"))
                    rates["cuBLAS/ours"] = seconds_each(partial(blas.linear, theirs, wide, y), blas.wait, count) / each
                    theirs.release()
                yield {"product": f"{stored} {outputs}x{width} M={rows}", **rates}
                ours.release()
                y.release()
            for held in (w, wide):
                if held:
                    held.release()
    if blas:
        blas.close()


def figures(result: dict[str, Any]) -> str:
    """One line of the benchmark."""
    if "about" in result:
        return "\n".join([result["about"], *result["missing"]])
    return f"{result['product']:32s} " + "  ".join(f"{value:9.3g} {key}" for key, value in result.items() if key != "product")


def main(argv: list[str] | None = None) -> int:
    """Entry point; exit status 0 when every case is parity and every tool clean."""
    parser = argparse.ArgumentParser(prog="parity.device", description=__doc__)
    parser.add_argument("--candidate", default="cuda")
    parser.add_argument("--out", type=Path, default=Path("build/parity-cuda"))
    parser.add_argument("--only", default="", help="keys, comma separated: " + ", ".join(e.key for e in CASES))
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    good = True
    if options.candidate == "cuda" and not shutil.which("compute-sanitizer"):
        print(f"compute-sanitizer is not on the PATH: {' and '.join(TOOLS)} are not run")
    try:
        for entry in entries(options.only, options.candidate):
            lines = [run_case(entry, options.candidate, options.out)]
            if lines[0]["where"] == "device" and shutil.which("compute-sanitizer"):
                lines += [sanitized(entry, options.out, tool) for tool in TOOLS]
            for line in lines:
                good &= line["verdict"] in ("parity", "clean")
                print(f"{line['case']:14s} {line['verdict']:12s} {line['where']:9s} {line['what']}", flush=True)
        if options.candidate in DEVICES:
            results = []
            for result in benchmark(options.candidate):
                results.append(result)
                print(figures(result), flush=True)
            (options.out / "benchmark.json").write_text(json.dumps({"date": date.today().isoformat(), "results": results}))
    except Exception as error:
        return explain(error)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
