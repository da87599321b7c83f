"""Healthy candidates never diverge: random shapes, dialects, weight formats, contexts around the window, several appends."""

from __future__ import annotations

import pytest

from parity.calibration import Tally, calibrate, markdown, random_case, random_muse_target

QUICK, ALL, CHUNK = 30, 200, 5
QUICK_TARGETS, ALL_TARGETS = 10, 50


def run(start: int, root, chunk: int = CHUNK, draw=random_case) -> Tally:
    tally = Tally()
    calibrate(range(start, start + chunk), root, tally, draw)
    return tally


@pytest.mark.parametrize("start", range(0, QUICK, CHUNK))
def test_no_false_divergence(start, tmp_path):
    tally = run(start, tmp_path)
    assert tally.runs > 4 * CHUNK and not tally.alarms, tally.alarms
    assert max(max(v) for v in tally.ratio.values()) <= 1.0


@pytest.mark.parametrize("start", range(0, QUICK_TARGETS, CHUNK))
def test_no_false_divergence_of_a_muse_target(start, tmp_path):
    tally = run(start, tmp_path, draw=random_muse_target)
    assert tally.runs == 5 * CHUNK and not tally.alarms, tally.alarms
    assert max(max(v) for v in tally.ratio.values()) <= 1.0
    assert {"embed_norm", "post_attn_norm", "attn_gated", "logits"} <= {stage for _, stage in tally.ratio}


@pytest.mark.slow
@pytest.mark.parametrize("start", range(QUICK_TARGETS, ALL_TARGETS, 10))
def test_no_false_divergence_of_a_muse_target_at_length(start, tmp_path):
    tally = run(start, tmp_path, 10, random_muse_target)
    assert not tally.alarms, tally.alarms


@pytest.mark.slow
@pytest.mark.parametrize("start", range(QUICK, ALL, 10))
def test_no_false_divergence_at_length(start, tmp_path):
    tally = run(start, tmp_path, 10)
    assert not tally.alarms, tally.alarms


def test_the_table_names_every_alarm_and_stage():
    tally = Tally(runs=2, alarms=["random 1, cpu: divergence at draft.L0.o (3 x)"])
    tally.ratio["cpu", "o"].append(0.5)
    tally.rms["cpu", "o"].append(0.9)
    tally.common["cpu", "o"].append(0.1)
    text = markdown(tally, 1)
    assert "1 false divergences" in text and "| `o` | 1 | 0.50 | 0.50 | 0.90 | 0.90 | 0.10 | - | - |" in text and "draft.L0.o" in text
