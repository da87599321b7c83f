"""The output law of every named rule, exact: rules that claim to be lossless are, the naive ones are broken at a named token."""

from __future__ import annotations

import zlib
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from oracle.speculation.coins import draw, outcomes
from oracle.speculation.output_law import first_break, judge, output_law, round_law, target_law
from oracle.speculation.verification import RULES, greedy, residual

VOCAB = 3
WEIGHTS = st.lists(st.integers(0, 5), min_size=VOCAB, max_size=VOCAB).filter(sum)
NAIVE = [n for n, r in RULES.items() if not r.lossless and n != "greedy"]
LOSSLESS = [n for n, r in RULES.items() if r.lossless]


def law(weights: list[int], kind=Fraction):
    return [kind(w) / kind(sum(weights)) for w in weights]


def model(seed: int, kind=Fraction, vocab: int = VOCAB):
    """A law per prefix, with zeros among its probabilities."""

    def row(prefix):
        weights = [zlib.crc32(repr((seed, prefix, i)).encode()) % 5 for i in range(vocab)]
        weights[zlib.crc32(repr((seed, prefix)).encode()) % vocab] += 1
        return law(weights, kind)

    return row


@pytest.mark.parametrize("name", LOSSLESS)
@pytest.mark.parametrize("seed", range(4))
def test_a_lossless_rule_emits_by_the_target_s_law_exactly(name: str, seed: int):
    assert judge(RULES[name], model(seed), model(seed + 100), drafts=2, length=3) is None


@pytest.mark.parametrize("name", LOSSLESS)
def test_the_same_in_float64_to_1e_15(name: str):
    found = judge(RULES[name], model(1, float), model(2, float), drafts=2, length=3, tolerance=1e-15)
    assert found is None, found


@settings(max_examples=40, deadline=None, derandomize=True)
@given(p=WEIGHTS, q=WEIGHTS, after=WEIGHTS)
def test_lossless_rules_are_lossless_for_any_pair_of_laws(p, q, after):
    """Zeros in p or q, p = q and disjoint supports are all among them."""
    target, draft = (lambda t: law(after) if t else law(p)), (lambda t: law(q))
    for name in LOSSLESS:
        assert judge(RULES[name], target, draft, drafts=1, length=2) is None, name


@pytest.mark.parametrize("name", NAIVE)
def test_a_naive_rule_is_broken_and_the_first_token_named(name: str):
    breaks = [judge(RULES[name], model(seed), model(seed + 1), drafts=2, length=2) for seed in (5, 7)]
    assert all(b is not None and b.found != b.expected and b.distance > Fraction(1, 1000) for b in breaks)
    assert any(b.position == 0 and b.before == () for b in breaks if b)


def test_a_break_after_the_first_token_is_named_with_the_tokens_before_it():
    """Equal laws at the first position, so that a refusal cannot happen there."""

    def draft(prefix):
        return law([1, 2, 1]) if not prefix else law([4, 1, 1])

    found = judge(RULES["target-after-refusal"], lambda t: law([1, 2, 1]), draft, drafts=2, length=2)
    assert found is not None and found.position == 1 and len(found.before) == 1


def test_greedy_is_lossless_for_a_one_hot_target_only():
    hot = lambda t: law([0, 1, 0])  # noqa: E731
    assert judge(RULES["greedy"], hot, model(3), drafts=2, length=3) is None
    assert judge(RULES["greedy"], model(4), model(3), drafts=2, length=2) is not None


def test_a_floor_under_q_loses_the_law_where_q_is_below_it():
    tiny = Fraction(1, 10**10)
    target, draft = (lambda t: [Fraction(1, 2), Fraction(1, 2)]), (lambda t: [tiny, 1 - tiny])
    found = judge(RULES["floored-ratio"], target, draft, drafts=1, length=1)
    assert found is None, "p/q is beyond 1 with the floor and without"
    target = lambda t: [tiny / 2, 1 - tiny / 2]  # noqa: E731
    found = judge(RULES["floored-ratio"], target, draft, drafts=1, length=1)
    assert found is not None and 0 < found.distance < Fraction(1, 10**9)


def test_laws_are_probabilities_and_rounds_emit_one_to_k_plus_one_tokens():
    for rule in RULES.values():
        one = round_law(rule, model(7), model(8), (), 2)
        assert sum(one.values()) == 1 and {len(t) for t in one} <= {1, 2, 3}
    whole = output_law(RULES["leviathan"], model(7), model(8), 2, 4)
    assert sum(whole.values()) == 1 and {len(t) for t in whole} == {4}


def test_the_judge_finds_a_law_that_is_off_by_one_part_in_a_million():
    right = target_law(model(9), 2)
    wrong = dict(right)
    a, b = sorted(wrong)[:2]
    wrong[a], wrong[b] = wrong[a] + Fraction(1, 10**6), wrong[b] - Fraction(1, 10**6)
    assert first_break(wrong, right) is not None
    assert first_break(right, right) is None


def test_a_coin_that_is_compared_twice_is_one_coin():
    found = outcomes(lambda coins: (lambda u: (u < Fraction(1, 3), u < Fraction(1, 2)))(coins.uniform()))
    assert found == {(True, True): Fraction(1, 3), (False, True): Fraction(1, 6), (False, False): Fraction(1, 2)}


@given(weights=WEIGHTS)
def test_an_enumerated_draw_has_the_law_of_its_weights(weights):
    found = outcomes(lambda coins: draw(law(weights), coins.uniform()))
    assert found == {i: p for i, p in enumerate(law(weights)) if p}


@settings(max_examples=200, deadline=None)
@given(data=st.data(), drafts=st.integers(0, 5))
def test_greedy_accepts_the_longest_matching_run_and_its_bonus_is_the_pick_behind_it(data, drafts):
    tokens = st.integers(0, 2)
    d, picks = (data.draw(st.lists(tokens, min_size=n, max_size=n)) for n in (drafts, drafts + 1))
    out = greedy(d, picks)
    assert d[: out.accepted] == picks[: out.accepted] and out.bonus == picks[out.accepted]
    assert out.accepted == drafts or d[out.accepted] != picks[out.accepted]
    with pytest.raises(ValueError, match="expected one per row of the window"):
        greedy(d, picks[:-1])


@given(p=WEIGHTS, q=WEIGHTS)
def test_what_is_left_of_p_is_never_negative_and_never_nothing(p, q):
    assume(sum(p) > 0)
    left = residual(law(p), law(q))
    assert min(left) >= 0 and sum(left) > 0
