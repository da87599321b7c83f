"""The CPU library on random small cases of every family and role, op by op and fused: no divergence in either mode."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity import candidates
from parity.calibrating import DRAWS, Tally, calibrate

LIBRARY = [candidates.parse("cpu", entry) for entry in ("op", "fused")]
QUICK, ALL, CHUNK = 10, 200, 10


def run(draw: str, seeds: range, root: Path) -> Tally:
    tally = Tally()
    calibrate(draw, seeds, root, tally, LIBRARY)
    return tally


def check(draw: str, tally: Tally) -> None:
    assert not tally.alarms, tally.alarms
    entries = {name for _, name in tally.counts}
    assert entries == {"cpu (op)"} | ({"cpu (fused)"} if draw.endswith("drafter") else set())
    assert max(max(v) for v in tally.ratio.values()) <= 1.0


@pytest.mark.parametrize("draw", DRAWS)
def test_ten_cases(draw: str, tmp_path: Path) -> None:
    check(draw, run(draw, range(QUICK), tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("start", range(QUICK, ALL, CHUNK))
@pytest.mark.parametrize("draw", DRAWS)
def test_two_hundred_cases(draw: str, start: int, tmp_path: Path) -> None:
    check(draw, run(draw, range(start, start + CHUNK), tmp_path))
