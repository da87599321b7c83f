"""``make parity``: the main job on the cases that everyone has, one summary table, reports in ``build/parity``.

(a) a tiny Muse Glimmer drafter from a K-quant GGUF, op by op and fused, window and sink crossed, and its target past the window;
(b) a tiny generic drafter from a bf16 SafeTensors folder, three rounds with partial acceptance; (c) SmolLM2 on real text; (d) a planted
fault that must be found; between them a tiny case of every other family and role.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from parity import render
from parity.candidates import declared, parse
from parity.case import Case
from parity.cli import explain
from parity.cli.build import WEIGHTS, seeded
from parity.flow import run_candidate
from parity.making import drafter_case, target_case
from parity.realtext import PROMPT, smollm2, tokenizer
from parity.report import Report

FAULT_STAGE, FAULT_HEADS = "draft.L1.q_rope", [2, 3, 4, 5]
FAULT = f"rope.position:stage={FAULT_STAGE},row=0,heads=2-5,offset=h//2"
VERIFY_ROWS = 16
HEADS: dict[str, dict[str, Any]] = {
    "dflash2": {"conv_kernel": 3, "conv_group": 16, "selector_rank": 32, "selector_top_k": 8},
    "dspark": {"markov_rank": 32, "markov": "gated", "confidence": "markov", "sample_from_anchor": True, "draft_vocab": 200},
}
RING = {"engine": "muser", "sink": "4"}


@dataclass(frozen=True)
class Entry:
    """One line of the suite: how to make the case, the candidate, and the fault planted in it, if any."""

    key: str
    title: str
    make: Callable[[Path], Case]
    candidate: str = "cpu"
    entry: str = "op"
    fault: str | None = None
    schedule: str | None = None


def _muse(models: Path, dialect: dict[str, str], appends: tuple[int, ...]) -> Case:
    model, borrowed = seeded("muse-glimmer", "q4_k", 1, models)
    assert borrowed is not None
    return drafter_case(model, borrowed, dialect=dialect, appends=appends, accepts=(3, 0), seed=2)


def _muse_target(models: Path) -> Case:
    model, _ = seeded("muse-glimmer", "q4_k", 1, models, "target")
    return target_case(model, prefill=40, block=8, seed=2)


def _qwen3(models: Path, accepts: tuple[int, ...]) -> Case:
    model, borrowed = seeded("qwen3", "bf16", 1, models)
    assert borrowed is not None
    return drafter_case(model, borrowed, family="qwen3", appends=(17, 8), accepts=accepts, seed=3)


def _emulated(models: Path) -> Case:
    """As few rows as show every stage: an emulated kernel is a thousand times slower than a compiled one."""
    model, borrowed = seeded("qwen3", "bf16", 1, models)
    assert borrowed is not None
    return drafter_case(model, borrowed, family="qwen3", appends=(5, 2), seed=3)


def _family(models: Path, family: str, role: str) -> Case:
    """A seeded tiny case of a family: two appends and a partial acceptance, or a prefill and a verify window."""
    model, borrowed = seeded(family, WEIGHTS[family], 1, models, role)
    if role == "target" or borrowed is None:
        return target_case(model, prefill=21, block=6, seed=4)
    return drafter_case(model, borrowed, family=family, appends=(17, 8), accepts=(2,), seed=4)


def _heads(models: Path, name: str) -> Case:
    """A generic drafter with the parts of DFlash 2 or DSpark."""
    from oracle.artifacts import make_artifact

    made = make_artifact("qwen3", "tiny", "bf16", models / f"heads-{name}", seed=5, **HEADS[name])
    return drafter_case(made[0], made[1], family="qwen3", appends=(17, 8), accepts=(2,), seed=4)


def _rotating(models: Path) -> Case:
    """A Laguna drafter whose window depends on the last append, as a rotating cache's does."""
    model, borrowed = seeded("laguna", WEIGHTS["laguna"], 1, models, "drafter")
    assert borrowed is not None
    return drafter_case(model, borrowed, family="laguna", dialect={"engine": "mlx-vlm"}, appends=(17, 8), accepts=(2,), seed=4)


def _smollm2(_: Path) -> Case:
    model = smollm2()
    ids = tokenizer(model).encode(PROMPT.read_text())
    return target_case(model, prefill=ids[:-VERIFY_ROWS], block=ids[-VERIFY_ROWS:], name="SmolLM2-135M-Instruct on real text")


# Rows cross the window (24) in W_LE, and sink + window (4 + 24) in the ring.
DRAFTERS: dict[str, Callable[[Path], Case]] = {
    "muse": partial(_muse, dialect={}, appends=(20, 1, 12)),
    "muse-ring": partial(_muse, dialect=RING, appends=(20, 1, 12)),
    "qwen3": partial(_qwen3, accepts=(2, 0, 5)),
    "laguna": partial(_family, family="laguna", role="drafter"),
    "laguna-cache": _rotating,
    "qwen38": partial(_family, family="qwen38-flash-next", role="drafter"),
    "dflash2": partial(_heads, name="dflash2"),
    "dspark": partial(_heads, name="dspark"),
}
TARGETS: dict[str, Callable[[Path], Case]] = {
    "muse-t": _muse_target,
    "laguna-t": partial(_family, family="laguna", role="target"),
    "qwen38-t": partial(_family, family="qwen38-flash-next", role="target"),
    "llama-t": partial(_family, family="llama", role="target"),
}
"""Tiny cases of every family, role and kind of head (of which `parity.device` runs each)."""
ENTRIES = (
    Entry("a-op", "muse q4_k+q6_k, op by op", DRAFTERS["muse"]),
    Entry("a-fused", "muse q4_k+q6_k, fused", DRAFTERS["muse"], entry="fused"),
    Entry("a-ring", "muse ring, fused", DRAFTERS["muse-ring"], entry="fused"),
    Entry("a-target", "muse target q4_k+q6_k, 40 rows", TARGETS["muse-t"]),
    Entry("b", "qwen3 bf16, accepts 2 0 5", DRAFTERS["qwen3"]),
    Entry("b-fused", "qwen3 bf16, fused", DRAFTERS["qwen3"], entry="fused"),
    Entry("laguna", "laguna drafter", DRAFTERS["laguna"]),
    Entry("laguna-fused", "laguna drafter, fused", DRAFTERS["laguna"], entry="fused"),
    Entry("laguna-cache", "laguna rotating cache, fused", DRAFTERS["laguna-cache"], entry="fused"),
    Entry("laguna-t", "laguna target", TARGETS["laguna-t"]),
    Entry("qwen38", "qwen38-flash-next drafter, fused", DRAFTERS["qwen38"], entry="fused"),
    Entry("qwen38-t", "qwen38-flash-next target", TARGETS["qwen38-t"]),
    Entry("llama-t", "llama target", TARGETS["llama-t"]),
    Entry("dflash2", "qwen3 with DFlash 2, fused", DRAFTERS["dflash2"], entry="fused"),
    Entry("dspark", "qwen3 with DSpark, fused", DRAFTERS["dspark"], entry="fused"),
    Entry("cuda-emu", "qwen3 bf16, fused, CUDA emulated", _emulated, candidate="cuda-emu", entry="fused", schedule="late"),
    Entry("metal-emu", "qwen3 bf16, fused, Metal emulated", _emulated, candidate="metal-emu", entry="fused", schedule="late"),
    Entry("c", "SmolLM2-135M, real text", _smollm2),
    Entry("d", f"planted {FAULT.partition(':')[0]} in qwen3", partial(_qwen3, accepts=()), fault=FAULT),
)


LONGEST = ("cuda-emu", "c", "metal-emu")


def as_expected(entry: Entry, report: Report) -> bool:
    """Parity, or for a planted fault: that stage, row and those heads, and no other stage."""
    if entry.fault is None:
        return report.verdict == "parity"
    found = [(d.stage, d.extent.rows, d.extent.heads) for d in report.divergences]
    return found == [(FAULT_STAGE, [0], FAULT_HEADS)]


def main(argv: list[str] | None = None) -> int:
    """Run the suite; exit status 0 when every entry is as expected."""
    parser = argparse.ArgumentParser(prog="parity.suite", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/parity"))
    parser.add_argument("--only", default="", help="keys, comma separated: " + ", ".join(e.key for e in ENTRIES))
    options = parser.parse_args(argv)
    chosen = [e for e in ENTRIES if not options.only or e.key in options.only.split(",")]
    console = Console(width=None if sys.stdout.isatty() else render.WIDTH)
    results: dict[str, tuple[Report | None, str, float]] = {}
    # Two at a time, the longest first; each in a process of its own, since small cases are bound by Python. An emulated library that is
    # not built is compiled by the entry that needs it.
    with _bar(console) as bar, ProcessPoolExecutor(min(len(chosen), os.cpu_count() or 1)) as pool:
        task = bar.add_task("comparing", total=len(chosen))
        first = [e for key in LONGEST for e in chosen if e.key == key]
        waiting = {pool.submit(_one, e, options.out): e for e in [*first, *(e for e in chosen if e not in first)]}
        for done in as_completed(waiting):
            results[waiting[done].key] = done.result()
            bar.update(task, advance=1, description=f"comparing ({', '.join(e.key for f, e in waiting.items() if not f.done())})")
    finished = [(e, *results[e.key]) for e in chosen]
    console.print(_summary(finished))
    _details(console, finished)
    console.print(f"reports: {options.out}", highlight=False)
    return 0 if all(r is not None and as_expected(e, r) for e, r, _, _ in finished) else 1


def _bar(console: Console) -> Progress:
    return Progress(TextColumn("{task.description}"), BarColumn(24), TimeElapsedColumn(), console=console, transient=True)


def _one(entry: Entry, out: Path) -> tuple[Report | None, str, float]:
    """Run one entry and write its reports: (report, error, seconds)."""
    began = time.perf_counter()
    folder = out / entry.key
    try:
        case = entry.make(out / "models" / entry.key)
        candidate = parse(entry.candidate, entry.entry, schedule=entry.schedule)
        report = run_candidate(case, candidate, declared(candidate, None, case), fault=entry.fault, keep=folder, certify=True)
    except Exception as e:
        explain(e)
        return None, str(e), time.perf_counter() - began
    (folder / "report.txt").write_text(render.text(report, every_stage=True))
    (folder / "report.json").write_text(json.dumps(report.to_json()))
    (folder / "junit.xml").write_text(render.junit({entry.key: report}))
    return report, "", time.perf_counter() - began


def _summary(results: list[tuple[Entry, Report | None, str, float]]) -> Table:
    table = Table(
        caption="local: worst error / tolerance; rolled: worst row error / spread of healthy runs",
        caption_justify="left",
        box=None,
        pad_edge=False,
        header_style="bold",
        padding=(0, 2, 0, 0),
    )
    for name in ("case", "what", "verdict", "local", "rolled", "s"):
        table.add_column(name, no_wrap=name != "what", justify="left" if name in ("case", "what", "verdict") else "right")
    for entry, report, error, seconds in results:
        if report is None:
            table.add_row(entry.key, entry.title, f"[red]error[/]: {error[:60]}", "", "", f"{seconds:.1f}")
            continue
        good = as_expected(entry, report)
        word = report.verdict if entry.fault is None else ("found as planted" if good else f"NOT as planted: {report.verdict}")
        local = max((s.pass_factor for s in report.stages if s.mode == "local"), default=0.0)
        rolled = max((s.rms for s in report.stages if s.mode == "rolled"), default=0.0)
        if ties := sum(m.verdict == "tie" for m in report.margins):
            word += f", {ties} ties"
        table.add_row(entry.key, entry.title, f"[{'green' if good else 'red'}]{word}[/]", f"{local:.3g}", f"{rolled:.3g}", f"{seconds:.1f}")
    return table


def _details(console: Console, results: list[tuple[Entry, Report | None, str, float]]) -> None:
    """The planted fault's headline, and that of everything unexpected."""
    for entry, report, _, _ in results:
        if report is not None and (entry.fault or not as_expected(entry, report)):
            console.print(f"{entry.key}: {render.headline(report)}", highlight=False, markup=False)
            for d in report.divergences[:3]:
                console.print(f"   {render.describe(d)}", highlight=False, markup=False)


if __name__ == "__main__":
    sys.exit(main())
