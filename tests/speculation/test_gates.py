"""The windowed gate's constants and cooldowns, the latch that never recovers, and a verify length that no gate can judge."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle.speculation.gates import LatchGate, WindowedGate, finding


def simulate(gate, rounds: int, drafted: int, accepted) -> list[int]:
    """Rounds (or plain tokens) until ``rounds`` were speculative; tokens committed at every closing."""
    committed = spoken = 0
    for _ in range(100_000):
        if gate.fallback(committed):
            committed += 1
            continue
        if spoken == rounds:
            break
        a = accepted(spoken)
        committed += a + 1
        gate.update(drafted, a, committed)
        spoken += 1
    return gate.closed_at


@pytest.mark.parametrize(("drafted", "closed"), [(7, [5, 74, 207, 468, 985]), (15, [3, 70, 201, 460])])
def test_all_rejected_closes_where_the_specification_says(drafted: int, closed: list[int]):
    gate = WindowedGate()
    assert simulate(gate, len(closed) * (5 if drafted == 7 else 3), drafted, lambda i: 0) == closed


def test_cooldowns_double_to_512():
    gate, spans = WindowedGate(), []
    committed = 0
    for _ in range(7):
        while not gate.closed:
            committed += 1
            gate.update(15, 0, committed)
        spans.append(gate.requalify_at - committed)
        committed = gate.requalify_at
        assert not gate.fallback(committed)
    assert spans == [64, 128, 256, 512, 512, 512, 512]


def test_eight_of_thirty_two_speculates_on_and_seven_stop():
    for accepted, closed in ((8, False), (7, True)):
        gate = WindowedGate()
        for a in (accepted - 6, 2, 2, 2):
            gate.update(8, a, 0)
        assert gate.closed is closed


def test_verify_length_3_can_never_close_the_gate():
    assert simulate(WindowedGate(), 500, 3, lambda i: 0) == []
    told = finding(3)
    assert told is not None and "8 rounds of 3 drafts are 24, fewer than the 32" in told
    assert finding(7) is None and finding(15) is None and finding(4) is None


def test_four_bad_rounds_then_good_ones_the_latch_never_recovers_and_the_window_does():
    good = lambda i: 0 if i < 4 else 15  # noqa: E731
    windowed, latch = WindowedGate(), LatchGate()
    simulate(windowed, 12, 15, good)
    assert windowed.closed_at == [3] and not windowed.closed
    assert simulate(latch, 12, 15, good) == [3] and latch.closed and all(latch.fallback(n) for n in (100, 10**6))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 15), st.integers(0, 15)), max_size=60))
def test_a_gate_is_closed_only_for_its_reason_and_always_opens_again(rounds):
    gate, committed = WindowedGate(), 0
    for drafted, wish in rounds:
        if gate.fallback(committed):
            assert committed < gate.requalify_at
            committed = gate.requalify_at
            assert not gate.fallback(committed)
        accepted = min(drafted, wish)
        committed += accepted + 1
        before = len(gate.closed_at)
        mark = gate.mark()
        gate.update(drafted, accepted, committed)
        recent = gate.rounds[max(gate.floor_round, len(gate.rounds) - 8) :]
        bad = sum(d for d, _ in recent) >= 32 and sum(a for _, a in recent) * 4 < sum(d for d, _ in recent)
        assert gate.closed is (bad and len(gate.rounds) > 2)
        assert len(gate.closed_at) == before + gate.closed
        after = gate.mark()
        gate.restore(mark)
        gate.update(drafted, accepted, committed)
        assert gate.mark() == after
