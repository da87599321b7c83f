"""The state of a Qwen3.8-Flash-Next target, its taps and its stages; the rounds of its drafter."""

from __future__ import annotations

import numpy as np
import pytest

from oracle.drafters.qwen38_flash_next import Round, RoundError
from oracle.readings import Shapes
from oracle.tape import Record
from tests.peers.qwen38_cases import CASES, TAPS

CASE = CASES[3]
TARGET, IDS = CASE.target(), CASE.ids


@pytest.mark.parametrize("kept", range(12, 21))
def test_every_row_of_the_last_window_can_be_kept(kept: int):
    """Another window is taken back to ``kept`` rows; what follows is what follows the first ``kept`` tokens."""
    state = TARGET.window(IDS[:12]).state
    ahead = TARGET.window(np.concatenate([IDS[12:kept], (IDS[kept:20] + 1) % 97]), state)
    out = TARGET.window(IDS[kept : kept + 5], ahead.state.keep(kept), TAPS)
    whole = TARGET.window(IDS[: kept + 5], taps=TAPS)
    assert np.abs(out.logits - whole.logits[kept:]).max() < 1e-12
    assert np.abs(out.features - whole.features[kept:]).max() < 1e-12


def test_a_state_is_kept_twice_and_never_mutated():
    first = TARGET.window(IDS[:9]).state
    second = TARGET.window(IDS[9:20], first).state
    once, twice = second.keep(14), second.keep(17).keep(14)
    a, b = (TARGET.window(IDS[14:16], s).logits for s in (once, twice))
    assert np.array_equal(a, b) and first.length == 9 and second.length == 20
    assert second.keep(20) is second and second.keep(0).length == 0
    assert np.array_equal(TARGET.window(IDS[:3], second.keep(0)).logits, TARGET.window(IDS[:3]).logits)


def test_rows_before_the_last_window_are_gone():
    state = TARGET.window(IDS[9:20], TARGET.window(IDS[:9]).state).state
    for n in (8, 21, -1):
        with pytest.raises(ValueError, match=f"20 rows cannot keep {n}: its recurrent states reach back to row 9"):
            state.keep(n)


def test_a_tap_is_what_the_next_layer_reads_and_the_last_one_what_the_head_reads():
    tape = Record()
    out = TARGET.window(IDS, taps=(2, 7), tape=tape)
    assert np.array_equal(out.features[:, :32], tape["target.L3.attn_hc.hc_read"].data)
    assert np.array_equal(out.features[:, 32:], tape["target.final_hc.hc_read"].data)


def test_a_window_sees_no_later_token():
    one, other = TARGET.window(IDS[:30]), TARGET.window(np.concatenate([IDS[:25], (IDS[25:30] + 1) % 97]))
    difference = np.abs(one.logits - other.logits).max(1)
    assert difference[:25].max() < 1e-12 and difference[25:].min() > 1e-3


def test_stages_have_the_shapes_that_the_shapes_reading_says():
    real, shapes = Record(), Record()
    state = TARGET.window(IDS[:2], tape=real).state
    TARGET.window(IDS[2:12], state, tape=real, step=1)
    state = TARGET.window(IDS[:2], tape=shapes, reading=Shapes()).state
    TARGET.window(IDS[2:12], state, tape=shapes, reading=Shapes(), step=1)
    assert {k: (v.axes, v.data.shape) for k, v in real.items()} == {k: (v.axes, v.data.shape) for k, v in shapes.items()}


def test_an_anchor_row_predicts_the_next_position():
    now = Round(anchor=8, position=20)
    assert now.block(4, 96, 7).tolist() == [8, 96, 96, 96]
    assert now.predicted(4).tolist() == [21, 22, 23, 24]
    assert now.window([1, 2, 3, 4]).tolist() == [8, 1, 2, 3, 4]
    with pytest.raises(RoundError, match="block of 8 rows: this drafter takes 1 to 7"):
        now.block(8, 96, 7)


@pytest.mark.parametrize("accepted", range(5))
def test_a_round_commits_the_anchor_and_the_accepted_and_moves_to_the_next_pick(accepted: int):
    candidates = [1, 2, 3, 4]
    picks = candidates[:accepted] + [50 + i for i in range(accepted, 5)]
    out = Round(8, 20).verified(candidates, picks)
    assert out.accepted == accepted and out.emitted == (*candidates[:accepted], 50 + accepted)
    assert out.next == Round(50 + accepted, 20 + accepted + 1)
    with pytest.raises(RoundError, match="4 picks for a window of 5 rows"):
        Round(8, 20).verified(candidates, picks[:4])
