"""An indexer's selection as the lab judges it: ties, flips and selections that are none."""

from __future__ import annotations

import numpy as np
import pytest

from oracle.arithmetic import PRESETS
from oracle.kit import EXACT
from oracle.ops import OPS
from oracle.readings import Stage
from oracle.tensor import Tensor
from parity.block_choices import block_choices, swapped
from parity.judge import Judge

SCORES = np.array([[0.5, 0.9, 0.0, 0.0, 0.7]])
PARAMS = {"ratio": 2, "budget": 6}
POS, CELLS = np.array([10]), 11


def judged(picked, scores=SCORES, theirs=None, noise=0.0):
    """The single margin of a row whose candidate recorded ``theirs`` and selected ``picked``."""
    recorded = Tensor(scores if theirs is None else theirs, ("row", "block"))
    stage = Stage("target.L3.index_selected", OPS["select_cells"], (recorded, POS, CELLS), PARAMS)
    wanted = OPS["select_cells"].formula(EXACT, recorded.data, POS, CELLS, **PARAMS)
    own = Tensor(scores, ("row", "block"), np.full(scores.shape, noise**2))
    made = block_choices(Judge(PRESETS["f32"], 1000), stage, own, wanted, cells(*picked))
    return made[0]


def cells(*blocks, extra=(10,)):
    mask = np.zeros((1, CELLS))
    for b in blocks:
        mask[0, 2 * b : 2 * b + 2] = 1
    mask[0, list(extra)] = 1
    return mask


def test_what_the_scores_say_agrees_with_the_gap_of_the_last_selected():
    m = judged((0, 1, 4))
    assert (m.verdict, m.choice, m.runner_up, m.candidate) == ("agree", 0, 2, 0)
    assert m.gap == pytest.approx(0.5)


def test_equal_scores_are_a_tie_whichever_is_taken():
    scores = np.array([[0.9, 0.0, 0.8, 0.0, 0.0]])
    assert judged((0, 1, 2), scores).verdict == "agree"
    m = judged((0, 2, 4), scores)
    assert m.verdict == "tie" and "lowest index" in m.rule


def test_a_block_left_out_against_its_own_scores_is_a_flip():
    m = judged((1, 2, 4))
    assert m.verdict == "flip" and "block 0 out" in m.rule


def test_other_scores_within_noise_are_a_tie_and_beyond_it_a_flip():
    close, theirs = np.array([[0.5, 0.9, 0.4999, 0.0, 0.7]]), np.array([[0.4999, 0.9, 0.5, 0.0, 0.7]])
    assert judged((1, 2, 4), close, theirs, noise=1e-3).verdict == "tie"
    assert judged((1, 2, 4), close, theirs, noise=1e-8).verdict == "flip"


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (cells(0, 1, 4, extra=()), "after the last complete block"),
        (cells(0, 1), "2 complete blocks, the rule selects 3"),
        (cells(0, 1, 2, 4), "4 complete blocks"),
        (cells(0, 1, extra=(8, 10)), "a part of block 4"),
    ],
)
def test_what_is_no_selection_is_a_flip_that_says_why(mask, words: str):
    stage = Stage("x", OPS["select_cells"], (Tensor(SCORES, ("row", "block")), POS, CELLS), PARAMS)
    wanted = OPS["select_cells"].formula(EXACT, SCORES, POS, CELLS, **PARAMS)
    m = block_choices(Judge(PRESETS["f32"], 1000), stage, Tensor(SCORES, ("row", "block")), wanted, mask)[0]
    assert m.verdict == "flip" and words in m.rule


def test_swapped_blocks_are_named_both_ways():
    left, extra = swapped(cells(0, 1, 4), cells(1, 2, 4), 2, 0, 5)
    assert (left.tolist(), extra.tolist()) == ([0], [2])
