"""Choosing a case that can see, and saying what it cannot."""

from __future__ import annotations

import pytest

from oracle.arithmetic import named
from oracle.artifacts import make_artifact
from parity import certifying
from parity.certifying import certify, lines
from parity.cli import main
from parity.making import drafter_case
from tests.parity.conftest import SMALL
from tests.parity.test_sensitivity import factors

ASKED = {"context": 4, "appends": (), "accepts": (), "seed": 0}


def builder(muse):
    return lambda o: drafter_case(
        muse.model, muse.borrowed, block=3, context=o["context"], appends=o["appends"], accepts=o["accepts"], seed=o["seed"]
    )


def test_lengths_and_portions_are_chosen_until_every_convention_can_be_told(muse):
    asked = certify(lambda o: builder(muse)(ASKED), ASKED, named("f32"))
    assert {e.knob for e in asked.blind} >= {"window-1", "window+1"}
    made = certify(builder(muse), ASKED, named("f32"))
    assert not made.blind and made.changed["context"] == 17 and "appends" in made.changed
    assert {"window-1", "window+1", "chunk boundary", "tap order", "eps"} <= {e.knob for e in made.entries}
    text = "\n".join(lines(made))
    assert "chosen for that: context=17" in text and "NOT certified" not in text


def test_what_no_length_may_reach_is_said(muse, monkeypatch):
    monkeypatch.setattr(certifying, "LONGEST", 10)
    made = certify(builder(muse), ASKED, named("f32"))
    assert "NOT certified: window-1" in "\n".join(lines(made))
    assert "the context must be longer than the window of 9" in "\n".join(lines(made))


def test_a_context_of_200_rows_cannot_certify_a_window_of_2048(tmp_path, judged):
    """A window of 1,024 in its place leaves every value as it was: nothing could have told."""
    model, target = make_artifact("muse-glimmer", "tiny", "f32", tmp_path, seed=6, **SMALL, window=2048)
    case = drafter_case(model, target, context=200, block=3)
    found = factors(case)
    assert found["window-1"].factor == found["window+1"].factor == 0.0
    assert not found["window-1"].certified and found["causality"].certified
    report = judged(case, "f32", "attention.window:width=1024", required=("window-1",))
    assert report.exit_status == 3 and report.uncertified == ["window-1"]


def test_the_command_says_what_the_case_certifies(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        main(["case", "make", "--family", "llama", "--context", "6", "--certify", "--out", str(tmp_path / "case")])
    said = capsys.readouterr().out
    assert end.value.code == 0 and "certified: " in said and "causality" in said
