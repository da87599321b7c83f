"""`parity probe cost`: what a verify window costs by its width, from a table of measurements, with its doubts."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from oracle.speculation.costs import CONFIDENCE, Claim, CostFit, break_even, claim, fit, tokens_per_second
from parity.errors import UsageError
from parity.report import EXIT, plain

SCHEMA = "dflash-parity-cost/1"
COLUMNS = {
    "width": "rows of the verify window",
    "ms": "device time of a round",
    "accepted": "accepted drafts per round",
    "host_ms": "time of a round outside the device",
}
NEEDED = ("width", "ms")
MAX_BYTES, MAX_ROWS = 1 << 20, 4096


@dataclass(frozen=True)
class Width:
    """What the table and the fit say of one width; ``tokens_per_second`` where acceptance is known, ``break_even`` (accepted drafts per
    round) where the classic time is."""

    width: float
    ms: float
    fitted: float
    tokens_per_second: float | None = None
    break_even: float | None = None
    accepted: float | None = None


@dataclass(frozen=True)
class CostReport:
    """``verdict``: parity, or divergence where a claimed line is not one that these measurements allow."""

    source: str
    fit: CostFit
    widths: list[Width]
    claim: Claim | None = None
    classic_ms: float | None = None
    findings: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        return "divergence" if self.claim and not self.claim.holds else "parity"

    @property
    def exit_status(self) -> int:
        return EXIT[self.verdict]

    def to_json(self) -> dict[str, Any]:
        head = {"schema": SCHEMA, "verdict": self.verdict, "exit_status": self.exit_status, "confidence": CONFIDENCE}
        out: dict[str, Any] = plain(head | asdict(self) | {"sse": self.fit.sse})
        return out


def read(path: Path) -> dict[str, list[float]]:
    """The columns of a CSV table (comma, semicolon or tab; the header names them). `UsageError` with the line of what is wrong."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
        text = raw.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"{path}: cannot be read as text: {getattr(e, 'strerror', None) or e.__class__.__name__}") from None
    if len(raw) > MAX_BYTES:
        raise UsageError(f"{path}: more than {MAX_BYTES} bytes: expected a table of widths and times")
    first = text.partition("\n")[0]
    mark = next((m for m in "\t;," if m in first), ",")
    try:
        lines = [(i, [c.strip() for c in row]) for i, row in enumerate(csv.reader(io.StringIO(text), delimiter=mark), 1) if any(row)]
    except csv.Error as e:
        raise UsageError(f"{path}: no table: {e}") from None
    names = lines[0][1] if lines else []
    if missing := [n for n in NEEDED if n not in names]:
        known = ", ".join(f"{name} ({about})" for name, about in COLUMNS.items())
        raise UsageError(f"{path}:1: no column {' and no '.join(missing)}; the header names columns: {known}")
    if len(lines) > MAX_ROWS:
        raise UsageError(f"{path}: more than {MAX_ROWS} lines")
    columns: dict[str, list[float]] = {n: [] for n in names if n in COLUMNS}
    for number, cells in lines[1:]:
        if len(cells) != len(names):
            raise UsageError(f"{path}:{number}: {len(cells)} values for {len(names)} columns")
        for name, cell in zip(names, cells, strict=True):
            if name in columns:
                columns[name].append(_number(f"{path}:{number}", name, cell))
    return columns


def _number(where: str, name: str, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0 or (name == "width" and (value < 1 or value != int(value))):
        raise UsageError(f"{where}: {name}: expected {'a whole number of rows' if name == 'width' else 'a number'}, found {cell[:40]!r}")
    return value


def cost(path: Path, claimed: tuple[float, float] | None = None, classic_ms: float | None = None) -> CostReport:
    """Fit the table at ``path``. ``claimed``: (fixed, per row) that someone states; ``classic_ms``: of a token decoded without drafts."""
    t = read(path)
    try:
        made = fit(t["width"], t["ms"])
    except ValueError as e:
        raise UsageError(f"{path}: {e}") from None
    accepted, hosts = t.get("accepted"), t.get("host_ms")
    widths = []
    for i, (w, ms) in enumerate(zip(t["width"], t["ms"], strict=True)):
        host = hosts[i] if hosts else 0.0
        rate = tokens_per_second(accepted[i], ms, host) if accepted and ms + host > 0 else None
        even = break_even(ms, host, classic_ms) if classic_ms else None
        widths.append(Width(w, ms, made.at(w), rate, even, accepted[i] if accepted else None))
    judged = claim(t["width"], t["ms"], *claimed) if claimed else None
    return CostReport(str(path), made, widths, judged, classic_ms, _findings(made, widths, judged, classic_ms))


def _findings(f: CostFit, widths: list[Width], judged: Claim | None, classic_ms: float | None) -> list[str]:
    told = []
    for w, (fixed, per_row) in zip(widths, f.left_out, strict=False):
        if len(f.left_out) == len(widths) and not f.per_row_range[0] <= per_row <= f.per_row_range[1]:
            told.append(f"without width {w.width:g} the line is {fixed:.4g} + {per_row:.4g} per row: this point carries it")
    if f.per_row_range[0] <= 0 <= f.per_row_range[1]:
        told.append("a cost of nothing per row lies within the confidence interval: these points show no slope")
    rated = [w for w in widths if w.tokens_per_second is not None]
    if rated:
        best = max(rated, key=lambda w: w.tokens_per_second or 0.0)
        told.append(f"fastest at width {best.width:g}: {best.tokens_per_second:.2f} tokens per second")
        if classic_ms and best.break_even is not None and best.accepted is not None and best.accepted < best.break_even:
            told.append(f"no width pays: width {best.width:g} accepts {best.accepted:g} per round and needs {best.break_even:.2f}")
    if judged and not judged.holds:
        a, b = judged.endpoints
        told.append(f"the claimed line misses its narrowest point by {a:+.3g} and its widest by {b:+.3g}")
    return told
