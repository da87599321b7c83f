"""Healthy Laguna candidates never diverge: random drafters and targets, experts few and many, windows of every engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.calibration import Tally, calibrate
from parity.calibration_laguna import random_laguna

QUICK, ALL, CHUNK = 4, 100, 2


def run(start: int, root: Path, chunk: int) -> Tally:
    tally = Tally()
    calibrate(range(start, start + chunk), root, tally, random_laguna)
    return tally


@pytest.mark.parametrize("start", range(0, QUICK, CHUNK))
def test_no_false_divergence(start: int, tmp_path: Path) -> None:
    tally = run(start, tmp_path, CHUNK)
    assert tally.runs > 4 * CHUNK and not tally.alarms, tally.alarms
    assert {"router_scores", "expert_weights", "expert_down", "expert_out", "shared_out", "attn_gated", "tap_norm"} <= {
        stage for _, stage in tally.ratio
    }


@pytest.mark.slow
@pytest.mark.parametrize("start", range(QUICK, ALL, 10))
def test_no_false_divergence_at_length(start: int, tmp_path: Path) -> None:
    tally = run(start, tmp_path, 10)
    assert not tally.alarms, tally.alarms
