"""`specs/laguna.md` 5.4 and 5.5: numbers of the tiny target (checked there against Transformers) and of its drafter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from oracle.models import Drafter, Target
from tests.oracle import golden_laguna as tiny

TOLERANCE = 2e-12
SEEDS = {"G1": (None, None), "G2": (0x2222, 0x3333)}
LAST_ROW = {
    "G1": [
        -0.1628812802931,
        -0.6846103341899,
        0.5745755645227,
        0.4214048398864,
        -0.3052588420176,
        1.5739568419848,
        0.6864274123564,
        0.9837565167991,
    ],
    "G2": [
        -0.1360148556169,
        -0.2189600047632,
        0.6214279423699,
        0.2946927215563,
        0.1271200913041,
        1.5706005047741,
        0.7038769910566,
        1.1179382170123,
    ],
}
FIRST_ROW = {
    "G1": [0.1137305447302, 0.0058112102529, 0.6318216645924, -0.6068582482652],
    "G2": [0.0672073558499, 0.1228684117398, 0.5990447557916, -0.6819745359424],
}
PICKS = {"G1": [20, 20, 13, 13, 13, 12, 28, 22, 12, 22, 29, 5], "G2": [20, 20, 13, 21, 13, 12, 28, 22, 12, 22, 26, 5]}
TAPS = {
    "G1": [
        [-0.0740580689770, 0.9582216455116, 0.4074097321197, 0.4413616484001],
        [-0.2045372489177, 0.2169186208263, -0.3482649705167, 0.3923481389734],
    ],
    "G2": [
        [0.0021801022134, 0.9207304239770, 0.3804253857409, 0.5187533141212],
        [-0.1229755214886, 0.3450283251296, -0.8201200258034, 0.3410997572211],
    ],
}
CALL_1 = {
    "G1": ([0.1904066207782, 1.1075094461154, 0.4720429323111, 1.3432634728911, -1.0483928148042, -0.2280177165505],
           [0.1772830693000, 1.5222408943515, 0.1352136125266, 0.6142913475795]),
    "G2": ([0.2629491614186, 0.9844930050677, 0.7222937715367, 1.1452422789737, -0.8607975695391, -0.0783306790029],
           [0.4620963882216, 1.5346692865651, 0.5026883861541, 0.6003257935619]),
}  # fmt: skip
CALL_2 = {
    "G1": ([-0.2136803721390, 0.6613057422978, -0.4746227310801, 0.4146302611846, -0.6527808445249, -0.4510738168539],
           [0.0290812258583, 1.4274640412265, -0.3036235472286, -0.0133236912614]),
    "G2": ([0.0387500837755, 1.1396314497108, -0.3682982757319, 0.4215175386255, -0.9864110752398, -0.1189412256206],
           [0.1917538312712, 1.5979749112359, -0.1855637308863, -0.0717141993581]),
}  # fmt: skip
CONTINUATION = [5, 13, 13, 13, 22, 12, 12, 12, 12, 16, 12, 20, 11, 18, 13, 13, 13, 10, 21, 0, 1] + [31] * 19

models = pytest.mark.parametrize("name", SEEDS)


@models
def test_the_prompt_in_one_window(name: str) -> None:
    out = tiny.target(SEEDS[name][0]).window(tiny.PROMPT, taps=tiny.TAPS)
    assert out.logits[-1, :8] == pytest.approx(LAST_ROW[name], abs=TOLERANCE)
    assert out.logits[0, :4] == pytest.approx(FIRST_ROW[name], abs=TOLERANCE)
    assert out.pick.tolist() == PICKS[name]
    for tap, want in zip(np.split(out.features, 2, 1), TAPS[name], strict=True):
        assert tap[11, :4] == pytest.approx(want, abs=TOLERANCE)


def test_the_reference_continuation() -> None:
    made = tiny.target(None)
    out, state, tokens = made.window(tiny.PROMPT), None, []
    for _ in CONTINUATION:
        tokens.append(int(out.pick[-1]))
        state = out.state
        out = made.window(tokens[-1:], state)
    assert tokens == CONTINUATION


def calls(target: Target, drafter: Drafter) -> list[np.ndarray]:
    """Logits [row, vocab] of both draft calls: after the prompt, and after three more rows, past the window."""
    first = target.window(tiny.PROMPT, taps=tiny.TAPS)
    context = drafter.new_context()
    context.append(first.features, 0)
    one = drafter.propose(context, [5, 31, 31, 31], target.embedding, target.head)
    verify = target.window([5, 3, 1, 1], first.state, tiny.TAPS)
    assert verify.pick.tolist() == [13, 1, 31, 31]
    context.append(verify.features[:3], 12)
    two = drafter.propose(context, [13, 31, 31, 31], target.embedding, target.head)
    return [one.logits.data, two.logits.data]


@models
def test_both_draft_calls(name: str) -> None:
    one, two = calls(tiny.target(SEEDS[name][0]), tiny.drafter(SEEDS[name][1]))
    assert one[1:].argmax(-1).tolist() == [3, 1, 1]
    for logits, (row_1, row_3) in ((one, CALL_1[name]), (two, CALL_2[name])):
        assert logits[1, :6] == pytest.approx(row_1, abs=TOLERANCE)
        assert logits[3, :4] == pytest.approx(row_3, abs=TOLERANCE)


@pytest.mark.parametrize(
    "switch", [{"tap_norm": False}, {"ctx_layernorm": False}, {"attn_gate": "sigmoid"}, {"window": 7}, {"window": 5}], ids=str
)
def test_another_dialect_gives_other_numbers(switch: dict[str, Any]) -> None:
    right = tiny.drafter(0x3333)
    wrong = replace(right, dialect=replace(right.dialect, **switch))
    two = calls(tiny.target(0x2222), wrong)[1]
    assert np.abs(two[1, :6] - CALL_2["G2"][0]).max() > 1e-3
