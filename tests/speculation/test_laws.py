"""Transforms of a row of logits, and Muser's float32 verification with its order of draws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from oracle.speculation.laws import LawError, Sampling, ranked, softmax, target_ids, widened
from oracle.speculation.mt19937 import MT19937
from oracle.speculation.ordered import OrderedSampling, ordered_sample, verify_ordered
from oracle.speculation.output_law import judge
from oracle.speculation.verification import RULES

LOGITS = arrays(np.float64, 7, elements=st.integers(-6, 6).map(float))
SETTINGS = st.builds(
    Sampling,
    st.sampled_from((0.0, 0.5, 1.0, 1.7)),
    st.integers(0, 8),
    st.sampled_from((0.0, 0.3, 0.8, 1.0)),
    st.sampled_from((0.0, 0.1, 0.9)),
    st.sampled_from(("z-lab", "muser")),
)


@given(logits=LOGITS, sampling=SETTINGS)
def test_a_law_is_a_law_and_keeps_the_largest(logits, sampling):
    p = sampling.law(logits)
    assert p.min() >= 0 and abs(p.sum() - 1) < 1e-15 * len(p) and p[int(ranked(logits)[0])] == p.max() > 0


@given(logits=LOGITS, sampling=SETTINGS)
def test_cuts_keep_a_head_of_the_ranking_and_the_ratios_of_what_is_left(logits, sampling):
    p, order = sampling.law(logits), ranked(logits)
    kept = (p > 0).sum()
    assert (p[order[:kept]] > 0).all()
    if sampling.temperature:
        want = np.exp((logits[order[:kept]] - logits[order[0]]) / sampling.temperature)
        assert np.allclose(p[order[:kept]] / p[order[0]], want, rtol=1e-12)


def test_examples_of_every_transform():
    logits = np.log([0.4, 0.3, 0.2, 0.1])
    law = lambda **s: Sampling(**s).law(logits)  # noqa: E731
    assert np.allclose(law(), [0.4, 0.3, 0.2, 0.1])
    assert np.allclose(law(top_k=2), [4 / 7, 3 / 7, 0, 0])
    assert np.allclose(law(top_p=0.7), [4 / 7, 3 / 7, 0, 0]) or np.allclose(law(top_p=0.7), [4 / 9, 3 / 9, 2 / 9, 0])
    assert np.allclose(law(top_p=0.69), [4 / 7, 3 / 7, 0, 0]) and np.allclose(law(top_p=0.0), [1, 0, 0, 0])
    assert np.allclose(law(min_p=0.6), [4 / 7, 3 / 7, 0, 0])
    assert np.allclose(law(temperature=0.5), np.array([16, 9, 4, 1]) / 30) and np.allclose(law(temperature=0), [1, 0, 0, 0])
    # The order matters: top-p sees the tempered law or the plain one.
    assert (law(temperature=3.0, top_p=0.69) > 0).sum() > (law(temperature=3.0, top_p=0.69, order="muser") > 0).sum()


@pytest.mark.parametrize("bad", ([np.nan, 0.0], [np.inf, 0.0], [-np.inf, -np.inf], []))
def test_logits_that_are_no_law_are_refused(bad):
    for row in (Sampling().law, OrderedSampling().row):
        with pytest.raises(LawError, match="expected numbers or -inf"):
            row(np.array(bad))


@pytest.mark.parametrize("wrong", ({"top_p": 1.5}, {"temperature": -1}, {"top_k": -1}, {"min_p": float("nan")}, {"order": "other"}))
def test_settings_without_a_meaning_are_refused(wrong):
    with pytest.raises(LawError):
        Sampling(**wrong)


def test_a_reduced_vocabulary_in_both_stored_forms_and_its_law_is_lossless():
    ids = np.array([1, 2, 4])
    assert target_ids(ids - np.arange(3), "offset").tolist() == target_ids(ids, "absolute").tolist() == [1, 2, 4]
    with pytest.raises(LawError, match="stored in the other form"):
        target_ids(np.array([0, 0, 0, 1]), "absolute")
    q = widened(np.array([0.5, 0.3, 0.2]), ids, 6)
    assert q.tolist() == [0, 0.5, 0.3, 0, 0.2, 0]
    p = softmax(np.arange(6.0))
    for name in ("leviathan", "target-only", "coupled"):
        assert judge(RULES[name], lambda t: p.tolist(), lambda t: q.tolist(), 2, 2, tolerance=1e-15) is None, name
    with pytest.raises(LawError):
        widened(q, ids, 6)


def test_ordered_samples_of_the_specification():
    weights, stream = np.array([0.1, 0.2, 0.7], np.float32), MT19937(42)
    assert [ordered_sample(weights, np.arange(3), stream) for _ in range(3)] == [2, 1, 2]
    assert ordered_sample(weights, np.array([2, 1, 0]), MT19937(42)) == 1


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 999), drafts=st.lists(st.integers(0, 3), max_size=4), data=st.data())
def test_draws_are_accounted_for(seed, drafts, data):
    """Accepted a < m: a + 3 raw draws; all m: m + 2. A single candidate draws as much."""
    row = lambda: data.draw(arrays(np.float32, 4, elements=st.integers(0, 3).map(np.float32)))  # noqa: E731
    rows = [OrderedSampling(top_k=data.draw(st.integers(0, 2))).row(row()) for _ in range(len(drafts) + 1)]
    q = [OrderedSampling().row(row()).probabilities for _ in drafts]
    stream = MT19937(seed)
    out = verify_ordered(drafts, q, rows, stream)
    assert stream.drawn == (len(drafts) + 2 if out.accepted == len(drafts) else out.accepted + 3)
    assert rows[out.accepted].probabilities[out.bonus] > 0


def test_counts_are_checked_before_any_draw():
    row, stream = OrderedSampling().row(np.zeros(3)), MT19937(0)
    for drafts, q, rows in (([0], [], [row]), ([0], [row.probabilities], [row]), ([0], [np.zeros(2, np.float32)], [row, row])):
        with pytest.raises(ValueError):
            verify_ordered(drafts, q, rows, stream)
    assert stream.drawn == 0


@settings(max_examples=60, deadline=None)
@given(
    logits=arrays(np.float32, 6, elements=st.integers(-8, 8).map(lambda i: np.float32(i / 4))),
    k=st.integers(0, 6),
    p=st.sampled_from((0.3, 0.8, 1.0)),
)
def test_the_float32_row_is_the_law_of_the_same_settings(logits, k, p):
    row = OrderedSampling(top_k=k, top_p=p, temperature=0.7).row(logits)
    law = Sampling(0.7, k, p, 0.0, "muser").law(logits)
    if ((row.probabilities > 0) == (law > 0)).all():
        assert np.abs(row.probabilities - law).max() < 1e-6
    else:  # Muser cuts where the sum reaches top-p, in float32: one more or less at an exact edge
        assert abs(int((row.probabilities > 0).sum()) - int((law > 0).sum())) <= 1
    assert set(row.order.tolist()) == set(np.flatnonzero(row.probabilities > 0).tolist())


def test_the_law_of_the_first_token_over_many_streams():
    """0.4 / 0.6 over a thousand streams within five standard deviations; the exact law is `test_output_law`'s business."""
    p, q = OrderedSampling().row(np.log([0.4, 0.6])), OrderedSampling().row(np.log([0.7, 0.3]))
    ones = 0
    for seed in range(1000):
        stream = MT19937(seed)
        d = q.sample(stream)
        out = verify_ordered([d], [q.probabilities], [p, p], stream)
        ones += d if out.accepted else out.bonus
    assert abs(ones / 1000 - 0.6) < 5 * (0.24 / 1000) ** 0.5


def test_every_step_of_an_ordered_row():
    logits = np.array([2.0, 1.0, 3.0, -5.0], np.float32)
    assert OrderedSampling().row(logits).order.tolist() == [0, 1, 2, 3]
    assert OrderedSampling(top_k=2).row(logits).order.tolist() == [2, 0]
    assert OrderedSampling(temperature=0).row(logits).probabilities.tolist() == [0, 0, 1, 0]
    assert OrderedSampling(min_p=0.3).row(logits).order.tolist() == [0, 2]
    assert OrderedSampling(min_p=1.0, min_keep=2).row(logits).order.tolist() == [2, 0]
    assert OrderedSampling(top_n_sigma=1.0).row(logits).probabilities[3] == 0
    assert OrderedSampling(top_p=0.5).row(logits).order.tolist() == [2]
    # Typical: the entropy is 0.83; -ln p is 0.41, 1.41, 2.41 for the three large ones.
    assert OrderedSampling(typical_p=0.5).row(logits).order[0] in (2, 0)
