"""Calibration: random small cases, healthy candidates, and what their error / tolerance and rms z are, stage by stage.

A healthy candidate must never diverge; the table this prints shows how much room the limits leave. ``python -m parity.calibration``.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from parity import candidates
from parity.case import Case
from parity.comparing import compare_dump
from parity.making import drafter_case, target_case
from parity.report import Report

CANDIDATES = (
    ("cpu", "op"),
    ("cpu", "fused"),
    ("f32-sequential", "auto"),
    ("f32-pairwise", "auto"),
    ("f32-blocked", "auto"),
    ("bf16", "auto"),
)
BLOCK_FORMATS = ("q8_0", "q4_0", "q4_1", "q5_0", "q4_k", "q5_k", "q6_k")
PLAIN_FORMATS = ("f32", "bf16", "f16")
# Targets with operations that no library has.
NUMPY_TARGETS = ("qwen38-flash-next",)
MEMBERS = 4


def random_case(seed: int, root: Path) -> Case:
    """A case drawn from families, shapes, dialects, weight formats, contexts around the window's edge, and appends."""
    rng = np.random.default_rng([seed, 77])
    family = ("qwen3", "muse-glimmer", "llama")[seed % 3]
    stored = str(rng.choice(BLOCK_FORMATS if rng.random() < 0.4 else PLAIN_FORMATS))
    shape = _shape(rng, stored)
    if family == "llama":
        return _target(rng, stored, shape, root, seed)
    window = int(rng.integers(3, 14))
    shape |= {"block_size": int(rng.integers(2, 9)), "window": window, "mask_token_id": int(rng.integers(0, shape["vocab"]))}
    if family == "qwen3":
        shape |= _generic(rng, shape)
    made = _artifact(family, stored, root, seed, shape)
    context = int(rng.choice([0, 1, window - 1, window, window + 1, 2 * window + 3]))
    rows = shape["block_size"]
    accepts = [int(a) for a in rng.integers(0, rows, int(rng.integers(0, 3)))]
    dialect = _dialect(rng, family, shape["window"])
    appends = _portions(rng, context)
    return drafter_case(
        made[0],
        made[1],
        family=family,
        dialect=dialect,
        appends=appends,
        context=0,
        accepts=accepts,
        seed=seed,
        name=f"random {seed} {family} {stored}",
    )


def _shape(rng: Any, stored: str) -> dict[str, Any]:
    kv = int(rng.integers(1, 4))
    heads = kv * int(rng.integers(1, 4))
    if stored in PLAIN_FORMATS:
        dim = int(rng.choice([4, 6, 8, 16, 32]))
        hidden, intermediate = int(rng.integers(8, 97)), int(rng.integers(8, 129))
    else:
        # Every matrix needs a multiple of its block on the input side, the attention width included.
        unit = 256 if stored.endswith("_k") else 32
        heads, kv, dim = (8, 2, 32) if unit == 256 else (4, 2, 16)
        hidden, intermediate = unit * int(rng.integers(1, 2 if unit == 256 else 4)), unit * int(rng.integers(1, 3))
    vocab = int(rng.integers(17, 200))
    return {"heads": heads, "kv_heads": kv, "head_dim": dim, "hidden": hidden, "intermediate": intermediate, "vocab": vocab}


def _generic(rng: Any, shape: dict[str, Any]) -> dict[str, Any]:
    layers = int(rng.integers(1, 4))
    sliding = tuple(bool(s) for s in rng.integers(0, 2, layers))
    more: dict[str, Any] = {
        "layers": layers,
        "sliding": sliding,
        "target_layers": 6,
        "tap_ids": (1, 3, 4),
        "theta": float(rng.choice([1e4, 1e6])),
    }
    if not any(sliding):
        more["window"] = shape["window"] = None
    causal = rng.integers(0, 3)
    more |= {
        "is_causal": None if causal == 2 else bool(causal),
        "attention_bias": bool(rng.integers(0, 2)),
        "eps": float(rng.choice([1e-6, 1e-5])),
    }
    if rng.random() < 0.4:
        more |= {"embed_scale": float(rng.choice([2.5, 8.0])), "output_multiplier": 0.7, "softcap": float(rng.choice([3.0, 20.0]))}
    return more


def _dialect(rng: Any, family: str, window: int | None) -> dict[str, str]:
    if family == "muse-glimmer":
        engine = str(rng.choice(["hf", "llama.cpp", "muser"]))
        return {"engine": engine} | ({"sink": str(int(rng.integers(1, 5)))} if engine == "muser" else {})
    if window is not None and rng.random() < 0.3:
        return {"window_rule": str(rng.choice(["W_LT_left", "W_LT_ctx", "W_ANCHOR", "W_RING"]))}
    return {}


def _portions(rng: Any, rows: int) -> list[int]:
    cuts = sorted(int(c) for c in rng.integers(0, rows + 1, int(rng.integers(0, 3)))) if rows > 1 else []
    edges = [0, *cuts, rows]
    return [b - a for a, b in pairwise(edges) if b > a]


def _artifact(family: str, stored: str, root: Path, seed: int, overrides: dict[str, Any]) -> list[Path]:
    from oracle.artifacts import make_artifact

    return make_artifact(family, "tiny", stored, root / f"case-{seed}", seed=seed, **overrides)


def _target(rng: Any, stored: str, shape: dict[str, Any], root: Path, seed: int) -> Case:
    container = {} if stored in BLOCK_FORMATS else {"container": str(rng.choice(["gguf", "safetensors"]))}
    shape |= {"layers": int(rng.integers(1, 4)), "tied": bool(rng.integers(0, 2)), "theta": float(rng.choice([1e4, 5e5]))}
    made = _artifact("llama", stored, root, seed, shape | container)
    return target_case(
        made[0], prefill=int(rng.choice([0, 1, 9, 23])), block=int(rng.integers(1, 17)), seed=seed, name=f"random {seed} llama {stored}"
    )


def random_muse_target(seed: int, root: Path) -> Case:
    """A Muse Glimmer target of random shape, depth, pattern and window, its prefill and verify window around the window's edge."""
    rng = np.random.default_rng([seed, 78])
    stored = str(rng.choice(BLOCK_FORMATS if rng.random() < 0.4 else PLAIN_FORMATS))
    layers, window = int(rng.integers(1, 3)), int(rng.integers(2, 9))
    more: dict[str, Any] = {
        "layers": layers,
        "sliding": tuple(bool(s) for s in rng.integers(0, 2, layers)),
        "window": window,
        "theta": float(rng.choice([1e4, 5e5])),
        "output_multiplier": float(rng.choice([0.19611613513818404, 0.7, 2.0])),
        "softcap": float(rng.choice([3.0, 20.0])),
        "container": "gguf" if stored in BLOCK_FORMATS else str(rng.choice(["gguf", "safetensors"])),
        "role": "target",
    }
    made = _artifact("muse-glimmer", stored, root, seed, _shape(rng, stored) | more)
    prefill = int(rng.choice([0, 1, window - 1, window, window + 1, 2 * window + 3]))
    name = f"random {seed} muse-glimmer target {stored}"
    return target_case(made[0], prefill=prefill, block=int(rng.integers(1, 9)), seed=seed, name=name)


@dataclass
class Tally:
    """Largest error / tolerance and rms z per (candidate, stage name), and every divergence."""

    ratio: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    rms: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    rolled: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    common: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    alarms: list[str] = field(default_factory=list)
    runs: int = 0

    def add(self, name: str, case: Case, report: Report) -> None:
        self.runs += 1
        for s in report.stages:
            key = (name, s.stage.rpartition(".")[2])
            if s.mode == "rolled":
                self.rolled[key].append(s.rms)
            else:
                self.ratio[key].append(s.ratio)
                self.rms[key].append(s.rms)
                self.common[key].append(s.common)
        if report.verdict != "parity":
            where = report.divergences[0] if report.divergences else None
            self.alarms.append(
                f"{case.name}, {name}: {report.verdict} at {where.stage if where else '?'} ({where.ratio if where else 0:.3g} x)"
            )


def healthy_reports(case: Case, root: Path) -> Iterator[tuple[str, Report]]:
    """Every candidate's report on the case; the candidates run in this process."""
    from dumps import open_dump

    folder = root / case.name.replace(" ", "-")
    for spec, entry in CANDIDATES:
        if case.role == "target" and (entry == "fused" or (spec == "cpu" and case.family in NUMPY_TARGETS)):
            continue
        candidate = candidates.parse(spec, entry)
        out = folder / f"{spec}-{entry}"
        candidates.execute(candidate, case, out, None, threads=1)
        yield candidate.name, compare_dump(case, open_dump(out), candidates.declared(candidate, None), members=MEMBERS)
    shutil.rmtree(folder, ignore_errors=True)


def calibrate(seeds: range, root: Path, tally: Tally, draw: Callable[[int, Path], Case] = random_case) -> None:
    """Run the cases that ``draw`` makes of ``seeds`` with every candidate into the tally."""
    for seed in seeds:
        case = draw(seed, root)
        for name, report in healthy_reports(case, root):
            tally.add(name, case, report)
        shutil.rmtree(root / f"case-{seed}", ignore_errors=True)


def markdown(tally: Tally, cases: int) -> str:
    """The committed table: per stage name and candidate, quantiles over all runs and steps."""
    lines = [
        "# Calibration of the tolerances",
        "",
        f"{cases} random small cases (`parity/calibration.py`), {tally.runs} runs of healthy candidates,",
        f"{len(tally.alarms)} false divergences. Regenerate with `make calibration`. Columns: largest error / tolerance (local),",
        "largest rms z of a row, largest pooled signed statistic against its limit, largest row error / spread in rolled mode (limit 12).",
        "For bf16 the first is 1 by construction: an element is inside its rounding interval or it is not.",
        "",
    ]
    names = list(dict.fromkeys(name for name, _ in tally.ratio))
    stages = list(dict.fromkeys(stage for _, stage in tally.ratio))
    for name in names:
        lines += [
            f"## {name}",
            "",
            "| stage | n | error/T median | error/T max | rms z median | rms z max | pooled max | rolled median | rolled max |",
        ]
        lines += ["|---|---|---|---|---|---|---|---|---|"]
        for stage in stages:
            key = (name, stage)
            if key in tally.ratio:
                lines.append(_line(stage, tally.ratio[key], tally.rms[key], tally.common[key], tally.rolled.get(key, [])))
        lines.append("")
    return "\n".join(lines + [f"* {a}" for a in tally.alarms])


def _line(stage: str, ratio: list[float], rms: list[float], common: list[float], rolled: list[float]) -> str:
    def pair(values: list[float]) -> str:
        return f"{np.median(values):.2f} | {max(values):.2f}" if values else "- | -"

    return f"| `{stage}` | {len(ratio)} | {pair(ratio)} | {pair(rms)} | {max(common, default=0.0):.2f} | {pair(rolled)} |"


def main(argv: list[str] | None = None) -> int:
    """Write the table; exit status 1 where a healthy candidate diverged."""
    parser = argparse.ArgumentParser(prog="parity.calibration", description=__doc__)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("docs/calibration.md"))
    options = parser.parse_args(argv)
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="parity-") as root:
        calibrate(range(options.cases), Path(root), tally)
        calibrate(range(options.cases // 4), Path(root), tally, random_muse_target)
    options.out.write_text(markdown(tally, options.cases + options.cases // 4) + "\n")
    print(f"{tally.runs} runs, {len(tally.alarms)} false divergences; table in {options.out}")
    for alarm in tally.alarms:
        print(f"  {alarm}")
    return 1 if tally.alarms else 0


if __name__ == "__main__":
    sys.exit(main())
