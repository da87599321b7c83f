"""Activation policies against scalar references, element by element in float32 as the engines do it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oracle import policies
from oracle.floats import BF16, F16
from oracle.policies import PLAIN

drawn = settings(max_examples=60, deadline=None)
one = np.float32(1)
value = st.one_of(st.sampled_from([0.0, 1.0, -1.0, 127.0, -127.0, 63.5, 0.5, -2.5]), st.floats(-1e4, 1e4, width=32))


def rows(width: int) -> st.SearchStrategy[list[float]]:
    """One block: a few drawn values, repeated with changing signs; ties, equal magnitudes and zero blocks among them."""
    return st.lists(value, min_size=1, max_size=12).map(lambda v: [v[i % len(v)] * (-1 if i % 5 == 3 else 1) for i in range(width)])


def q8_0(block: list[float]) -> list[float]:
    """`specs/native-backends.md` 2.2: d = max|x|/127; q half away from zero from the unrounded d; d is then stored as f16."""
    x = [np.float32(v) for v in block]
    d = max(abs(v) for v in x) / np.float32(127)
    inverse = one / d if d else np.float32(0)
    if not np.isfinite(inverse):
        return [0.0] * len(x)
    q = [math.copysign(math.floor(abs(float(v * inverse)) + 0.5), float(v)) for v in x]
    return [float(np.float16(d)) * n for n in q]


def q8_k(block: list[float]) -> list[float]:
    """2.2: x* of largest magnitude, the first one on ties, with its sign; q = RNE(-127/x* · x) at most 127; d = 1/(-127/x*)."""
    x = [np.float32(v) for v in block]
    peak = x[0]
    for v in x:
        if abs(v) > abs(peak):
            peak = v
    if peak == 0:
        return [0.0] * len(x)
    inverse = np.float32(-127) / peak
    if not np.isfinite(inverse):
        return [0.0] * len(x)
    q = [min(round(float(inverse * v)), 127) for v in x]
    return [float(one / inverse) * n for n in q]


@drawn
@example([0.0] * 32)
@example([1.1754943508222875e-38] * 32)
@example([1e-45, -1e-45] * 16)
@example([127.0, 0.5, -0.5, 1.5, -1.5, 126.5] + [2.5] * 26)
@given(block=rows(32))
def test_q8_0_is_the_scalar_reference(block):
    with np.errstate(all="ignore"):
        found = policies.apply("q8_0", np.array([block, block[::-1]]))
        assert found.tolist() == [q8_0(block), q8_0(block[::-1])]


@drawn
@example([0.0] * 256)
@example([1.1754943508222875e-38] * 256)
@example([1e-45, -1e-45] * 128)
@example([1.0, -1.0] * 128)
@example([-127.0, 0.5, -0.5, 1.5, -1.5, 127.0, *[2.5] * 250])
@given(block=rows(256))
def test_q8_k_is_the_scalar_reference(block):
    with np.errstate(all="ignore"):
        assert policies.apply("q8_k", np.array([block])).tolist() == [q8_k(block)]


def test_q8_0_rounds_halves_away_from_zero_and_q8_k_to_even():
    block = [127.0, 0.5, -0.5, 1.5, 2.5] + [0.0] * 251
    assert policies.apply("q8_0", np.array([block]))[0, :5].tolist() == [127, 1, -1, 2, 3]
    assert np.abs(policies.apply("q8_k", np.array([block]))[0, :5]).tolist() == [127, 0, 0, 2, 2]


def test_the_scale_of_q8_k_has_the_sign_that_makes_its_peak_negative():
    """Equal magnitudes of both signs: the first one becomes -127 and the other is capped at +127."""
    for first in (2.0, -2.0):
        block = np.array([[first, -first] + [0.0] * 254])
        assert policies.apply("q8_k", block)[0, :2] == pytest.approx([first, -first], rel=1e-6)


def test_blocks_are_quantised_apart():
    x = np.random.default_rng(1).standard_normal((3, 96))
    whole = policies.apply("q8_0", x)
    assert whole.tolist() == np.concatenate([policies.apply("q8_0", x[:, i : i + 32]) for i in (0, 32, 64)], 1).tolist()


@drawn
@given(block=rows(32))
def test_bf16_and_f16_are_the_formats(block):
    x = np.array([block])
    assert policies.apply("bf16", x).tolist() == BF16.round(x).tolist()
    assert policies.apply("f16", x).tolist() == F16.round(x).tolist()
    assert policies.apply("f32", x) is x


@pytest.mark.parametrize("policy", PLAIN)
def test_a_policy_errs_by_at_most_half_its_step(policy):
    x = np.random.default_rng(2).standard_normal((4, 512)) * 10
    error, step = np.abs(policies.apply(policy, x) - x), policies.step(policy, x)
    scale = np.abs(x) * 2.0**-11 if policy.startswith(("q8_0", "q8_1")) else 0.0
    assert (error <= step * 0.501 + scale).all()
    assert (policy == "f32") == (not step.any())


@pytest.mark.parametrize("policy", ["q8_0", "q8_k"])
def test_quantising_twice_changes_little(policy):
    x = policies.apply(policy, np.random.default_rng(3).standard_normal((2, 256)))
    assert np.abs(policies.apply(policy, x) - x).max() <= 2.0**-10 * np.abs(x).max()


def across(sigma: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """bf16's steps that 200,000 values change by under an error of ``sigma`` steps, the flips' deviation in steps, the values."""
    rng, q = np.random.default_rng(4), 2.0**-7
    x = 1 + rng.uniform(0, 1, 200_000)
    moved = policies.apply("bf16", x + sigma * q * rng.standard_normal(len(x))) - policies.apply("bf16", x)
    return moved / q, np.sqrt(policies.flips("bf16", x, np.full(len(x), (sigma * q) ** 2))) / q, x


@pytest.mark.parametrize("sigma", [0.11, 0.3, 1.0])
def test_flips_have_the_predicted_energy(sigma):
    """`specs/noise-rules.md` section 4: E[(RN(y+e) - RN(y))²] = 0.8 q σ below 0.4 q, σ² + q²/6 above."""
    found, rule, _ = across(sigma)
    assert np.square(rule).mean() == pytest.approx(np.square(found).mean(), rel=0.05)


@pytest.mark.parametrize("sigma", [1e-4, 1e-3, 0.03, 0.09])
def test_a_flip_is_within_its_deviation_and_what_cannot_flip_has_none(sigma):
    """The energy is that of the rule within what it costs that a flip, however rare, is a whole step."""
    found, rule, x = across(sigma)
    assert found.any() and rule[found != 0] == pytest.approx(policies.FLIP)
    assert np.square(found).mean() <= np.square(rule).mean() <= 6 * 0.8 * sigma
    q = 2.0**-7
    far = np.abs(np.mod(x / q, 1) - 0.5) > 6.001 * sigma
    assert not rule[far].any() and (sigma > 0.05 or far.mean() > 0.5)


@drawn
@given(policy=st.sampled_from(PLAIN), seed=st.integers(0, 2**32 - 1), reach=st.sampled_from([0.0, 1e-6, 1e-3, 0.1]))
def test_what_lies_within_reach_becomes_nothing_beyond_the_interval(policy, seed, reach):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((2, 256)) * np.where(rng.random((2, 256)) < 0.1, 30, 1)
    reaches = reach * rng.uniform(0.1, 1, x.shape) * np.abs(x)
    low, high = policies.interval(policy, x, reaches)
    for _ in range(8):
        there = policies.apply(policy, x + reaches * rng.uniform(-1, 1, x.shape))
        assert (low <= there).all() and (there <= high).all()
    if not reach:
        assert low.tolist() == high.tolist() == policies.apply(policy, x).tolist()


@pytest.mark.parametrize(("policy", "width"), [("q8_0", 33), ("q8_k", 128)])
def test_a_row_that_is_no_whole_number_of_blocks_is_refused(policy, width):
    block = 32 if policy == "q8_0" else 256
    with pytest.raises(ValueError, match=f"row of {width} is not a multiple of its block of {block}"):
        policies.apply(policy, np.zeros((1, width)))


def test_an_unknown_policy_is_refused():
    with pytest.raises(ValueError, match="'q4_0' is unknown"):
        policies.apply("q4_0", np.zeros((1, 32)))


@pytest.mark.parametrize("policy", ["q8_k", "q8_0", "q8_1", "q8_0-simd"])
def test_a_block_errs_with_the_scale_of_its_largest_value(policy: str) -> None:
    """No value lies near a midpoint and the errors are far below a step: what is left is the scale's, and as large as predicted."""
    rng, size = np.random.default_rng(1), policies.block(policy)
    peak = 127 * 1.5 * 2.0**-7
    x = np.round(rng.uniform(-120, 120, (400, size))) * 1.5 * 2.0**-7
    x[:, 3] = peak
    # Of a float16 scale the error counts only near a midpoint of float16.
    x = x if policy == "q8_k" else x * (1 + 2.0**-11 / 1.5)
    sigma = 1e-6 * np.abs(x)
    moved = policies.apply(policy, x + sigma * rng.standard_normal(x.shape)) - policies.apply(policy, x)
    predicted = policies.flips(policy, x, np.square(sigma))
    assert 0.5 < np.square(moved).mean() / predicted.mean() < 2
    far = policies.flips(policy, x * 1.0001, np.square(sigma * 1.0001))
    assert (far[x != 0] > 0).all() if policy == "q8_k" else not far.any()

