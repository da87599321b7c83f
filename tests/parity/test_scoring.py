"""The score counts what it says: found, placed, named, missed above and below the information limit."""

from __future__ import annotations

import pytest

from oracle.faults import parse as parse_fault
from parity import scoring
from parity.scoring import RULES, information_limit, markdown, score, seen_by_rules, specs


def test_the_catalogue_of_a_case_holds_what_exists_in_it(drafter, target):
    assert {kind for kind, _ in specs(drafter)} == set(scoring.CATALOGUE)
    assert all("target." in spec for _, spec in specs(target))


def test_everything_above_the_limit_is_found_placed_and_named(drafter, tmp_path, monkeypatch):
    monkeypatch.setattr(scoring, "CANDIDATES", ("f32",))
    tallies, alarms = score([drafter], tmp_path)
    planted = sum(t.planted for t in tallies.values())
    assert not alarms and planted >= 15
    for what in ("found", "stage", "place", "first"):
        assert sum(getattr(t, what) for t in tallies.values()) == planted, what
    text = markdown(tallies, alarms, [drafter])
    assert "Missed above the limit: none" in text and f"| **all** | f32 | {planted} |" in text


def test_the_information_limit_grows_with_the_fault(drafter):
    small, large = (
        information_limit(drafter, parse_fault(f"linear.scale:stage=draft.L1.o,factor={f}"), "f32") for f in ("1.000001", "1.01")
    )
    assert small < 10 < 1000 < large
    assert information_limit(drafter, parse_fault("linear.scale:stage=draft.L1.o,factor=1.0001"), "bf16") < large


def test_cosine_does_not_see_a_scale_of_one_per_mille(judged, drafter):
    report = judged(drafter, "f32", "linear.scale:stage=draft.L1.o,factor=1.001")
    seen = set(seen_by_rules(report.stages, "f32"))
    assert report.verdict == "divergence" and RULES[0] not in seen and RULES[1] not in seen and RULES[2] in seen


@pytest.mark.slow
def test_the_whole_score_has_no_miss_and_no_alarm(tmp_path):
    cases = scoring.score_cases(tmp_path, 1)
    tallies, alarms = score(cases, tmp_path)
    assert not alarms and not [m for t in tallies.values() for m in t.missed]
