"""What a comparison found, as data: typed, JSON-ready, stable (`docs/report-schema.md`)."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

SCHEMA = "dflash-parity-report/1"
EXIT = {"parity": 0, "divergence": 1, "inconclusive": 3}
IDENTITY = "identity-mismatch"
"""The verdict on what is not of the case it should be compared on; exit status 1."""
CAGE = {
    "hang": "it did not finish in its time",
    "abort": "it aborted",
    "uncaught-exception": "a C++ exception left it",
    "exception": "a Python exception left it",
    "exit": "it ended the process itself",
    "crash": "a fatal signal ended it",
    "killed": "the system, or itself, ended it with SIGKILL",
    "stack-overflow": "it ran out of stack",
    "out-of-memory": "it ran out of memory",
    "write-outside": "it wrote outside a buffer it was given",
    "read-outside": "it read outside a buffer it was given",
    "changed-input": "it changed one of its inputs",
    "left-behind": "it left a process behind",
    "closed-output": "it closed or replaced standard output or standard error",
    "floating-point-mode": "it left the floating-point mode changed",
    "dump-deleted": "its dump was there and is gone",
    "record-twice": "it recorded the same rows twice",
    "bad-dump": "its dump is not well formed",
    "no-dump": "it left no dump",
    "failed": "it reported a failure of its own",
}
"""Kinds of finding of the cage, and what each means. All are exit status 4."""


@dataclass
class StageResult:
    """One stage in one mode.

    ``ratio``: worst error / tolerance, of elements and rows; ``rms``: largest rms z (rolled: error / spread) of a row; ``common``: pooled
    signed test against its limit; ``pass_factor``: the factor on the tolerance that would have passed. ``row_ratio``, ``row_rms``:
    the same per row; ``row_verdict``: per row, or empty where every row agrees.
    """

    step: int
    stage: str
    mode: str
    verdict: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str = ""
    ratio: float = 0.0
    rms: float = 0.0
    common: float = 0.0
    worst: tuple[int, ...] = ()
    row_ratio: list[float] = field(default_factory=list)
    row_rms: list[float] = field(default_factory=list)
    row_verdict: list[str] = field(default_factory=list)
    rejudged: int = 0
    reason: str = ""
    info: dict[str, float] = field(default_factory=dict)

    @property
    def pass_factor(self) -> float:
        return max(self.ratio, self.common)


@dataclass
class Extent:
    """Which rows, heads and how many elements of a stage diverge.

    ``along``: axis -> runs ``[first, last]`` of its diverging indices; ``patterns``: axis -> how they lie (contiguous, every 2, the last).
    ``steps``: the steps in which the same stage diverges; ``recurrence``: when it does (from a length on, only after a partial accept).
    """

    rows: list[int]
    heads: list[int] | None
    elements: int
    of: int
    along: dict[str, list[list[int]]] = field(default_factory=dict)
    patterns: dict[str, str] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)
    recurrence: str = ""


@dataclass
class Divergence:
    """One independent divergence, at its worst element. A stage with several mistakes has one entry for each."""

    step: int
    stage: str
    layer: int | None
    row: int
    head: int | None
    element: tuple[int, ...]
    ratio: float
    proven: bool
    oracle: float
    candidate: float
    mode: str
    extent: Extent
    what: str = ""
    signature: list[dict[str, Any]] = field(default_factory=list)
    explanations: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Margin:
    """One discrete choice: the oracle's gap between its choice and the next, its noise, and the candidate's choice.

    ``verdict``: agree, tie (a different choice within noise) or flip (a different choice beyond it).
    """

    step: int
    stage: str
    row: int
    choice: int
    runner_up: int
    gap: float
    noise: float
    flip_probability: float
    candidate: int
    candidate_gap: float
    ulps: float
    verdict: str
    rule: str = ""


@dataclass
class Report:
    """The whole finding. ``verdict``: parity, divergence or inconclusive; or what an emulator found first (race, hazard, out-of-bounds,
    uninitialised, divergent-sync, api), identity-mismatch where nothing could be compared, what the candidate did to the process it ran
    in (`CAGE`), or not-reproducible. ``divergences[0]`` is the first in causal order."""

    case: dict[str, Any]
    geometry: dict[str, Any]
    arithmetic: dict[str, Any]
    candidate: dict[str, Any]
    modes: tuple[str, ...]
    stages: list[StageResult] = field(default_factory=list)
    divergences: list[Divergence] = field(default_factory=list)
    consequences: list[Divergence] = field(default_factory=list)
    margins: list[Margin] = field(default_factory=list)
    sensitivity: list[dict[str, Any]] = field(default_factory=list)
    uncertified: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    findings: list[dict[str, Any]] = field(default_factory=list)
    repeat: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    timing: dict[str, float] = field(default_factory=dict)

    @property
    def first_divergence(self) -> Divergence | None:
        return self.divergences[0] if self.divergences else None

    @property
    def inconclusive(self) -> list[StageResult]:
        return [s for s in self.stages if s.verdict == "inconclusive"]

    @property
    def verdict(self) -> str:
        if self.findings:
            return str(self.findings[0]["kind"])
        if self.repeat is not None and not self.repeat["reproducible"]:
            return "not-reproducible"
        if self.divergences:
            return "divergence"
        return "inconclusive" if self.missing or self.uncertified or self.inconclusive or not self.compared else "parity"

    @property
    def compared(self) -> int:
        return sum(1 for s in self.stages if s.verdict != "unseen")

    @property
    def exit_status(self) -> int:
        return 4 if self.verdict in CAGE else EXIT.get(self.verdict, 1)

    def counts(self) -> Counter[str]:
        return Counter(s.verdict for s in self.stages)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; infinities and NaN become strings."""
        body = {k: v for k, v in vars(self).items() if k != "stages"}
        body = {k: [asdict(x) for x in v] if k in ("divergences", "consequences", "margins") else v for k, v in body.items()}
        body["stages"] = [vars(stage) | {"pass_factor": stage.pass_factor} for stage in self.stages]
        head = {"schema": SCHEMA, "verdict": self.verdict, "exit_status": self.exit_status}
        first = asdict(self.first_divergence) if self.first_divergence else None
        clean: dict[str, Any] = plain(head | {"first_divergence": first} | body)
        return clean


def finding(kind: str, text: str, stage: str | None = None, stderr: str = "") -> dict[str, Any]:
    """One of `Report.findings`: what was announced last, and the end of what the process wrote, where there is a process."""
    return {"kind": kind, "text": text, "count": 1, "places": (), "stage": stage, "stderr": stderr}


def plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value
