"""Two dumps of the same case, bit for bit: which stages, which rows, how many elements, how far (in ulps of the stored dtype)."""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from oracle.floats import F32, FORMATS
from parity.errors import IdentityMismatch
from parity.identity import moved, placement, same_placement
from parity.reducing import reduced
from parity.render import spans

if TYPE_CHECKING:
    from dumps import Dump, StageRecord


#: Verdict of choices (picks, experts, cells) of two runs that placed their weights differently.
NO_CLAIM = "no claim"


@dataclass
class StageDifference:
    """One stage in both dumps. ``rows``: those with any difference; ``ulps``: the largest, in spacings of the coarser dtype."""

    step: int
    stage: str
    verdict: str
    rows: list[int] = field(default_factory=list)
    elements: int = 0
    of: int = 0
    max_abs: float = 0.0
    ulps: float = 0.0
    reason: str = ""


@dataclass
class Difference:
    """Every stage of either dump, in the recorded order of the first."""

    a: str
    b: str
    stages: list[StageDifference]
    placement: str = ""

    @property
    def first(self) -> StageDifference | None:
        return next((s for s in self.stages if s.verdict not in ("same", NO_CLAIM)), None)

    @property
    def exit_status(self) -> int:
        """1 where anything common differs, 3 where all common stages agree but one side lacks some or nothing is common."""
        verdicts = {s.verdict for s in self.stages}
        if verdicts & {"different", "invalid"}:
            return 1
        return 3 if verdicts & {"only in a", "only in b"} or not verdicts else 0

    def to_json(self) -> dict[str, Any]:
        return {"schema": "dflash-parity-diff/1", "exit_status": self.exit_status, **asdict(self)}


def difference(a: Dump, b: Dump, across_placements: bool = False) -> Difference:
    """Compare two dumps in one pass over their files, a few megabytes at a time. Declared checksums are left to `Dump.verify`.
    Equal values agree, whatever the sign of a zero, and so do two NaN. `IdentityMismatch` where they are of different cases, or of runs
    that placed their weights differently: ``across_placements`` compares their values all the same, and claims nothing of their choices.
    """
    for key in ("family", "role", "dialect", "steps", "identity"):
        mine, theirs = a.case.get(key), b.case.get(key)
        if mine is not None and theirs is not None and mine != theirs:
            raise IdentityMismatch(f"{b.path}: its case differs from that of {a.path} in {key}: not two dumps of the same case")
    placements = placement(a), placement(b)
    if not across_placements:
        same_placement(*placements, f"{b.path} against {a.path}")
    elsewhere = moved(*placements)
    keys = list(dict.fromkeys((step, stage) for d in (a, b) for step in d.steps for stage in d.stages(step)))
    found = [_stage(step, stage, a.get(step, stage), b.get(step, stage)) for step, stage in keys]
    if elsewhere:
        found = [_unclaimed(s, a) for s in found]
    return Difference(str(a.path), str(b.path), found, elsewhere)


def _unclaimed(s: StageDifference, a: Dump) -> StageDifference:
    record = a.get(s.step, s.stage)
    chosen = record is not None and record.dtype in ("i32", "i64")
    return replace(s, verdict=NO_CLAIM, rows=[], elements=0, max_abs=0.0, ulps=0.0, reason="a choice, across placements") if chosen else s


def _stage(step: int, stage: str, a: StageRecord | None, b: StageRecord | None) -> StageDifference:
    if a is None or b is None:
        return StageDifference(step, stage, "only in b" if a is None else "only in a")
    if tuple(a.shape) != tuple(b.shape) or a.row0 != b.row0:
        return StageDifference(
            step, stage, "invalid", reason=f"shape {list(a.shape)} from row {a.row0} against {list(b.shape)} from row {b.row0}"
        )
    if not np.array_equal(a.row_ids, b.row_ids):
        return StageDifference(step, stage, "invalid", reason="rows between the first and the last are absent in one of them")
    coarse = min((FORMATS.get(r.dtype, F32) for r in (a, b)), key=lambda f: f.p)
    parts = list(reduced(a, b, coarse))
    size, elements = int(np.prod(a.shape)), sum(part.elements for part in parts)
    if not elements:
        return StageDifference(step, stage, "same", of=size)
    rows = a.row_ids[np.concatenate([part.differs for part in parts])]
    apart, ulps = max(part.max_abs for part in parts), max(part.ulps for part in parts)
    return StageDifference(step, stage, "different", [int(r) for r in rows], elements, size, apart, ulps)


def headline(d: Difference) -> str:
    """The verdict in one line."""
    same = sum(s.verdict == "same" for s in d.stages)
    if d.first is None and d.stages:
        unclaimed = f"; nothing is claimed of choices across placements ({d.placement})" if d.placement else ""
        return f"SAME {same} stages, bit for bit{unclaimed}"
    if not d.stages:
        return "INCONCLUSIVE the dumps record nothing"
    first = d.first
    assert first is not None
    if d.exit_status == 3:
        return f"INCONCLUSIVE {same} common stages are equal; {len(d.stages) - same} are in one dump only, first {first.stage}"
    first = next(s for s in d.stages if s.verdict in ("different", "invalid"))
    where = (
        f"rows {spans(first.rows)}, {first.elements} of {first.of} elements, up to {first.ulps:.3g} ulps"
        if first.verdict == "different"
        else first.reason
    )
    return f"DIFFERENT first at {first.stage}, step {first.step}: {where}; {same} of {len(d.stages)} stages are equal"


def table(d: Difference) -> str:
    """Every stage that is not the same."""
    from rich.console import Console
    from rich.table import Table

    out = io.StringIO()
    made = Table(box=None, pad_edge=False, header_style="", padding=(0, 2, 0, 0))
    for name in ("step", "stage", "verdict", "rows", "elements", "max abs", "ulps"):
        made.add_column(name)
    for s in d.stages:
        if s.verdict != "same":
            made.add_row(
                str(s.step), s.stage, s.verdict, spans(s.rows) or s.reason, f"{s.elements}/{s.of}", f"{s.max_abs:.3g}", f"{s.ulps:.3g}"
            )
    if made.row_count:
        Console(file=out, width=118, highlight=False, markup=False).print(made)
    return out.getvalue()
