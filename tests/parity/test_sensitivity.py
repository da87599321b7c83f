"""A fixture proves nothing about a convention it cannot see: the ledger says which it can."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oracle.arithmetic import named
from parity import render
from parity.making import drafter_case
from parity.sensitivity import KNOBS, ledger


def factors(case, arithmetic="f32"):
    return {e.knob: e for e in ledger(case, named(arithmetic), 100_000)}


def muse_of(muse, context):
    return drafter_case(muse.model, muse.borrowed, context=context, block=3)


def test_a_context_inside_the_window_cannot_certify_it(muse):
    """Window 9, inclusive: six rows of context and a block of three reach back eight positions."""
    short, long = factors(muse_of(muse, 6)), factors(muse_of(muse, 20))
    assert not short["window-1"].certified and short["window-1"].factor == 0.0
    assert not short["window+1"].certified and short["window+1"].factor == 0.0
    assert long["window-1"].certified and long["window+1"].certified
    assert long["window-1"].stage == "draft.L0.attn" or long["window-1"].stage.endswith(".attn")


def test_a_shorter_window_shows_before_a_longer_one(muse):
    """At nine rows the first block row's own window is full: one less is seen, one more is not yet."""
    edge = factors(muse_of(muse, 7))
    assert edge["window-1"].certified and not edge["window+1"].certified


PLAIN = {"window-1", "window+1", "window at all", "causality", "attention scale", "map of heads", "eps", "norm weight (w or 1+w)"}
PLAIN |= {"rope theta", "rope style", "rope position", "tap+1", "tap-1", "tap order", "tap row", "mask id", "anchor row", "chunk boundary"}


def test_every_convention_of_a_rich_case_is_certified_in_f32(muse):
    found = factors(muse)
    assert set(found) >= PLAIN
    assert all(e.certified for e in found.values()), {k: e.factor for k, e in found.items() if not e.certified}


def test_a_single_append_cannot_certify_the_boundary_of_chunks(muse):
    assert "chunk boundary" not in factors(muse_of(muse, 12))


def test_features_of_no_target_cannot_certify_which_layer_was_tapped(muse):
    found = factors(replace(muse, notes={}))
    assert "tap+1" not in found and found["tap order"].certified


def test_what_a_family_does_not_have_is_left_out(target):
    found = factors(target)
    assert "window-1" not in found and found["causality"].certified


def test_bf16_sees_less_than_f32(muse):
    fine, coarse = factors(muse), factors(muse, "bf16")
    assert coarse["attention scale"].factor < fine["attention scale"].factor


def test_requiring_what_cannot_be_seen_is_inconclusive(judged, muse):
    report = judged(muse_of(muse, 4), "f32", required=("window-1",))
    assert report.exit_status == 3 and report.uncertified == ["window-1"]
    assert render.headline(report).startswith("INCONCLUSIVE this case cannot certify window-1")
    assert "NOT certified by this case: window-1 0.00" in render.text(report)


def test_requiring_what_can_be_seen_changes_nothing(judged, muse):
    assert judged(muse_of(muse, 20), "f32", required=("window-1", "eps")).exit_status == 0


@pytest.mark.parametrize("knob", ["window-1", "causality", "map of heads", "eps", "norm weight (w or 1+w)", "rope theta"])
def test_a_certified_convention_is_one_whose_mistake_is_found(judged, muse, knob):
    """The ledger's promise, kept: plant the mistake, and local mode sees it."""
    assert factors(muse)[knob].certified
    assert judged(muse, "f32", KNOBS[knob]).verdict == "divergence"
