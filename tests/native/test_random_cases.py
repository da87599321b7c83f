"""The CPU library on random small cases of every family and role, op by op and fused: no divergence."""

from __future__ import annotations

from pathlib import Path

import pytest

from dumps import open_dump
from parity import candidates
from parity.calibrating import DRAWS, Tally, calibrate
from parity.comparing import compare_dump

LIBRARY = [candidates.parse("cpu", entry) for entry in ("op", "fused")]
QUICK, ALL, CHUNK = 10, 200, 10


@pytest.mark.parametrize("draw", DRAWS)
def test_ten_cases(draw: str, tmp_path: Path) -> None:
    """In local mode; drafters op by op and fused in turn."""
    for seed in range(QUICK):
        case = DRAWS[draw](seed, tmp_path)
        candidate = LIBRARY[seed % 2 if case.role == "drafter" else 0]
        candidates.execute(candidate, case, tmp_path / f"dump-{seed}", None, threads=1)
        arithmetic = candidates.declared(candidate, None)
        report = compare_dump(case, open_dump(tmp_path / f"dump-{seed}"), arithmetic, mode="local")
        assert report.verdict == "parity", (case.name, candidate.name, report.divergences[:2])
        assert not [s for s in report.unseen if not s.endswith(":draft.head")], (case.name, candidate.name, report.unseen[:3])


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, ALL, CHUNK))
@pytest.mark.parametrize("draw", DRAWS)
def test_two_hundred_cases(draw: str, start: int, tmp_path: Path) -> None:
    """In both modes and by both entries."""
    tally = Tally()
    calibrate(draw, range(start, start + CHUNK), tmp_path, tally, LIBRARY)
    assert not tally.alarms, tally.alarms
    assert {name for _, name in tally.counts} == {c.name for c in LIBRARY if draw.endswith("drafter") or c.entry == "op"}
    assert max(max(v) for v in tally.ratio.values()) <= 1.0
