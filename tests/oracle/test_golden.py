"""`specs/dflash-generic.md` section 20: numbers on which two independent implementations agree."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oracle.drafters import forward
from oracle.drafters.weights import DrafterWeights
from oracle.readings import Exact
from oracle.tape import Machine
from oracle.weights import Weight
from tests.oracle import golden_drafter as tiny

FULL = ("none", (False, False), (False, False), None)
CAUSAL = ("W_LT", (True, True), (True, True), 4)
BOTH = ("W_LT", (True, True), (False, False), 4)
MIXED = ("W_LT", (True, False), (True, False), 4)
INCLUSIVE = ("W_LE", (True, True), (False, False), 4)

GOLDEN = [
    (
        FULL,
        0,
        [-0.443597384, 1.528098782, 0.772736623, -0.354000912, -0.751957152, -0.985224299, 0.677418448, 1.876227004],
        5.419602898,
        [6, 6, 5],
        5e-9,
    ),
    (
        FULL,
        1,
        [-0.706275351, 0.746213382, 1.101052676, 0.186490936, -0.929073275, -1.173532521, 0.543663625, 1.897170377],
        8.051638908,
        [6, 6, 6],
        5e-9,
    ),
    (
        CAUSAL,
        0,
        [-0.256478117, 1.450449934, 0.575078244, -0.174119706, -0.63216955, -1.209451916, 0.547309909, 2.008243383],
        8.277838303,
        [6, 6, 6],
        5e-9,
    ),
    (
        CAUSAL,
        1,
        [-0.892780235, -0.010660866, 1.165107052, 0.664138634, -0.83584845, -1.292954768, 0.2481935, 1.80430578],
        6.975734451,
        [6, 6, 0],
        5e-9,
    ),
    (
        BOTH,
        0,
        [0.391283551, 1.905444998, -0.954164643, -0.444530076, 0.631539067, -1.075034206, 0.102492896, 1.540566613],
        8.535773848,
        [0, 6, 6],
        5e-9,
    ),
    (
        BOTH,
        1,
        [-0.210122931, 1.853686168, 0.199395906, -0.488759, -0.253400124, -1.078112086, 0.454321353, 1.949367198],
        9.696492240,
        [6, 6, 6],
        5e-9,
    ),
    (
        MIXED,
        0,
        [0.097071733, 2.249030813, -0.018467124, -0.963951122, -0.150890947, -0.644406151, 0.488867379, 1.571604413],
        7.818408337,
        [0, 6, 0],
        5e-9,
    ),
    (
        MIXED,
        1,
        [-0.88069764, 0.003225763, 1.159321153, 0.658477706, -0.835067054, -1.297930283, 0.246761334, 1.813144911],
        6.481347159,
        [6, 6, 7],
        5e-9,
    ),
    (
        INCLUSIVE,
        0,
        [0.024345938, 1.928274858, -0.408344423, -0.466875616, 0.260355529, -1.14490986, 0.233284582, 1.851031167],
        7.302838761,
        None,
        1e-6,
    ),
    (
        INCLUSIVE,
        1,
        [-0.122683103, 1.959450201, -0.030359872, -0.561338943, -0.049597261, -1.054007342, 0.370814495, 1.902608447],
        9.478333136,
        None,
        1e-6,
    ),
]


DFLASH2 = [
    (
        [1.267261771, -1.2623044, -0.977716489, 1.020717879, 0.502635612, 0.622769036, -0.947435297, -1.389780345],
        1.078353318,
        [3, 1, 7],
        [3, 8, 0],
    ),
    (
        [1.32405334, 0.851621662, -0.478105246, -0.810455469, -0.219854003, 1.40515109, 0.731683607, -1.544599162],
        6.347331067,
        [1, 7, 7],
        [8, 0, 8],
    ),
]


def two_rounds(
    rule: str,
    sliding: tuple[bool, bool],
    causal: tuple[bool, bool],
    window: int | None,
    w: DrafterWeights | None = None,
    **switches: object,
) -> list[forward.Block]:
    w, g, d = w or tiny.weights(), tiny.geometry(sliding, window), tiny.dialect(rule, causal, window, **switches)
    reading = Exact()
    m, context, blocks = Machine(reading).at("draft"), forward.Context(), []
    ids = np.array([tiny.ANCHOR] + [tiny.MASK] * (tiny.BLOCK - 1))
    for start, stop in ((0, 5), (5, 7)):
        forward.append(m, w, g, d, context, reading.lift(tiny.FEATURES[start:stop], ("row", "dim")), start)
        blocks.append(forward.propose(m, w, g, d, context, ids, stop, tiny.EMBEDDING, tiny.HEAD))
    return blocks


@pytest.mark.parametrize(("dialect", "number", "row", "total", "picks", "tolerance"), GOLDEN)
def test_published_numbers_reproduce(dialect, number, row, total, picks, tolerance):
    block = two_rounds(*dialect)[number]
    assert np.abs(block.hidden.data[1] - row).max() <= tolerance
    assert abs(block.hidden.data.sum() - total) <= 32 * tolerance
    if picks is not None:
        assert block.pick.data[1:].astype(int).tolist() == picks


@pytest.mark.parametrize("number", [0, 1])
def test_published_numbers_of_dflash_2_reproduce(number):
    row, total, picks, drafts = DFLASH2[number]
    block = two_rounds(*FULL, tiny.dflash2_weights(), conv=True, selector=True)[number]
    assert np.abs(block.hidden.data[1] - row).max() <= 5e-9
    assert abs(block.hidden.data.sum() - total) <= 32 * 5e-9
    assert block.pick.data[1:].astype(int).tolist() == picks
    assert block.drafts.data.astype(int).tolist() == drafts


def _swapped(w: DrafterWeights) -> DrafterWeights:
    """The sides of every convolution exchanged."""

    def other(weight: Weight) -> Weight:
        return Weight.of(weight.array()[::-1], weight.axes, "f64")

    parts = ("attn_conv_base", "attn_conv_kernel", "mlp_conv_base", "mlp_conv_kernel")
    return replace(w, layers=tuple(replace(layer, **{p: other(getattr(layer, p)) for p in parts}) for layer in w.layers))


def test_other_readings_of_dflash_2_miss_its_numbers():
    w = tiny.dflash2_weights()
    for wrong in (two_rounds(*FULL, w, conv=False), two_rounds(*FULL, _swapped(w), conv=True)):
        assert np.abs(wrong[0].hidden.data[1] - DFLASH2[0][0]).max() > 1e-2
    assert w.selector is not None
    exchanged = replace(w, selector=replace(w.selector, predecessor=w.selector.successor, successor=w.selector.predecessor))
    drafts = [b.drafts.data.tolist() for b in two_rounds(*FULL, exchanged, conv=True, selector=True)]
    assert drafts != [list(map(float, right[3])) for right in DFLASH2]


@pytest.mark.parametrize("wrong", [FULL, BOTH, MIXED])
def test_another_mask_misses_the_causal_numbers(wrong):
    block = two_rounds(*wrong)[0]
    assert np.abs(block.hidden.data[1] - GOLDEN[2][2]).max() > 1e-2
