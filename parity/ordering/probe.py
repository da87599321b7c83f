"""`parity probe order`: the order in which a candidate's products are summed, against its declaration and between M = 1 and M = 2 … n."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from parity.cage import Limits, run_worker
from parity.candidates import Candidate
from parity.emulated import read_findings
from parity.errors import CandidateError, UsageError
from parity.ordering import judging
from parity.ordering.inside import Options
from parity.report import EXIT, plain

SCHEMA = "dflash-parity-order/1"
WIDTHS = {1: (100, 803), 32: (96, 800), 256: (256, 1024)}
"""K by the block of the weight's format: below and beyond the blocks and lanes that kernels have, where it can be with a remainder."""


MOST = 1 << 16


@dataclass
class OrderReport:
    """``kernels``: one entry per weight format and width (`docs/order.md`). ``findings``: ``kind, text, weights, width``."""

    candidate: dict[str, Any]
    declared: list[dict[str, Any]]
    options: dict[str, Any]
    kernels: list[dict[str, Any]] = field(default_factory=list)
    findings: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def inconclusive(self) -> list[dict[str, Any]]:
        """Kernels whose order was not found."""
        return [k for k in self.kernels if "irregular" in k or "skipped" in k]

    @property
    def verdict(self) -> str:
        if self.findings:
            return "divergence"
        return "inconclusive" if self.inconclusive or not self.kernels else "parity"

    @property
    def exit_status(self) -> int:
        return EXIT[self.verdict]

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = plain({"schema": SCHEMA, "verdict": self.verdict, "exit_status": self.exit_status} | asdict(self))
        return out


def probe(
    candidate: Candidate,
    *,
    weights: Sequence[str] = ("f32",),
    widths: Sequence[int] = (),
    outputs: int = 20,
    block: int = 16,
    operation: str = "linear",
    arithmetic: str | None = None,
    threads: int = 0,
    seed: int = 0,
    limits: Limits | None = None,
) -> OrderReport:
    """Probe the candidate in a process of its own. `UsageError` for bad input, `CandidateError` where it dies or misbehaves."""
    options = Options(tuple(weights), _widths(weights, widths), outputs, block, operation, seed)
    with tempfile.TemporaryDirectory(prefix="parity-order-") as folder:
        out = Path(folder) / "order.json"
        run_worker(candidate, Path(folder), out, threads=threads, limits=limits, order=asdict(options)).demand_clean()
        found = _answers(out)
        emulator = read_findings(out)
    kernels = found.pop("kernels")
    declared = judging.declarations(candidate, arithmetic, found.get("arithmetic", {}))
    report = OrderReport({"spec": candidate.name} | found, [asdict(d) for d in declared], asdict(options), kernels)
    for finding in emulator:
        report.findings.append({"kind": finding["kind"], "text": finding["text"], "weights": "", "width": 0})
    for kernel in kernels:
        report.findings += [asdict(f) for f in judging.judge(kernel, declared)]
        report.notes += judging.notes(kernel)
    return report


def _answers(out: Path) -> dict[str, Any]:
    try:
        found = json.loads(out.read_text())
        if not isinstance(found, dict) or not isinstance(found.get("kernels"), list):
            raise ValueError("no list of kernels")
    except (OSError, ValueError) as e:
        raise CandidateError(f"the answers of the probe at {out.name} cannot be read: {e}") from None
    return found


def _widths(weights: Sequence[str], widths: Sequence[int]) -> tuple[int, ...]:
    """The widths asked for, each fit for at least one of the formats; without any, those of `WIDTHS`."""
    from oracle.artifacts import blocks

    sizes = {stored: blocks.format_of(stored).values for stored in weights}
    if not widths:
        return tuple(sorted({w for size in sizes.values() for w in WIDTHS[size]}))
    for width in widths:
        if not 2 <= width <= MOST:
            raise UsageError(f"--width {width}: expected 2 to {MOST} products in a sum")
        if all(width % size for size in sizes.values()):
            least = min(sizes.values())
            raise UsageError(f"--width {width}: {', '.join(sizes)} weights come in blocks of {least}; expected a multiple of it")
    for stored, size in sizes.items():
        if all(width % size for width in widths):
            raise UsageError(f"--width: no width fits {stored} weights, which come in blocks of {size}; expected a multiple of it")
    return tuple(widths)
