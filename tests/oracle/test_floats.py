"""The float formats against NumPy's own float32 and float16, and bfloat16 against its definition on bits."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oracle.floats import BF16, F16, F32, F64, FORMATS

drawn = settings(max_examples=150, deadline=None)
NUMPY = {"f32": (F32, np.float32), "f16": (F16, np.float16)}


def doubles() -> st.SearchStrategy[float]:
    """Any double, with the neighbourhoods that formats are about: halves between two values, subnormals, the largest value."""
    near = st.builds(
        lambda m, half, e, s: s * np.ldexp(m + half / 4, e),
        st.integers(0, 4096), st.integers(0, 4), st.integers(-160, 130), st.sampled_from([1.0, -1.0]),
    )  # fmt: skip
    return st.one_of(st.floats(width=64), st.floats(width=32), st.floats(width=16), near)


def same(a: object, b: object) -> bool:
    """Equal to the bit in float64, any NaN like any other."""
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return bool(np.array_equal(x, y, equal_nan=True) and np.array_equal(np.signbit(x[~np.isnan(x)]), np.signbit(y[~np.isnan(y)])))


def bf16_values() -> np.ndarray:
    """All finite non-negative bfloat16 values, ascending: every pattern of the upper 16 bits of a float32."""
    return (np.arange(0x7F80, dtype=np.uint32) << 16).view(np.float32).astype(np.float64)


BF16_VALUES = bf16_values()


def nearest_bf16(y: float) -> float:
    """Round to nearest, ties to the even pattern, in exact rational arithmetic."""
    if not np.isfinite(y):
        return y
    high = int(np.searchsorted(BF16_VALUES, abs(y)))
    if high == len(BF16_VALUES):
        beyond = 2 * Fraction(BF16_VALUES[-1]) - Fraction(BF16_VALUES[-2])
        middle = (Fraction(BF16_VALUES[-1]) + beyond) / 2
        return float(np.copysign(np.inf if Fraction(abs(y)) >= middle else BF16_VALUES[-1], y))
    low = max(high - 1, 0)
    below, above = Fraction(abs(y)) - Fraction(BF16_VALUES[low]), Fraction(BF16_VALUES[high]) - Fraction(abs(y))
    pick = low if below < above else high if above < below else low + low % 2
    return float(np.copysign(BF16_VALUES[pick], y))


@pytest.mark.parametrize("name", NUMPY)
@drawn
@example(65520.0)
@example(np.nextafter(65520.0, 0))
@example(-0.0)
@example(2.0**-25)
@example(3 * 2.0**-26)
@given(y=doubles())
def test_rounding_is_that_of_numpy(name, y):
    ours, theirs = NUMPY[name]
    with np.errstate(over="ignore", under="ignore"):
        assert same(ours.round(y), np.float64(y).astype(theirs))


@drawn
@example(float(BF16_VALUES[-1]) * (1 + 2.0**-9))
@example(2.0**-134)
@example(1 + 2.0**-8)
@example(1 + 3 * 2.0**-8)
@given(y=doubles())
def test_bf16_rounds_to_the_nearest_pattern_and_ties_to_the_even_one(y):
    assert same(BF16.round(y), nearest_bf16(y))


@drawn
@given(y=st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_bf16_is_the_upper_half_of_a_float32(y):
    bits = np.float32(y).view(np.uint32)
    cut = np.uint32(bits & np.uint32(0xFFFF0000)).view(np.float32)
    carried = np.uint32((int(bits) + 0x7FFF + ((int(bits) >> 16) & 1)) & 0xFFFF0000).view(np.float32)
    assert same(BF16.truncate(y), cut)
    assert same(BF16.round(y), carried)


@pytest.mark.parametrize("name", NUMPY)
@drawn
@given(y=st.floats(width=64, allow_nan=False, allow_infinity=False))
def test_ulp_is_the_spacing_above_a_value(name, y):
    ours, theirs = NUMPY[name]
    stored = min(abs(ours.truncate(y).astype(theirs)), np.nextafter(np.finfo(theirs).max, theirs(0)))
    assert ours.ulp(stored) == float(np.spacing(stored))


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_ulp_at_zero_and_below_the_normals_is_the_subnormal_spacing(name):
    f = FORMATS[name]
    tiny = 2.0 ** (f.emin - f.p + 1)
    assert f.ulp(0.0) == f.ulp(tiny) == f.ulp(-tiny * 3) == f.ulp(2.0**f.emin) == tiny
    assert f.ulp(2.0 ** (f.emin + 1)) == 2 * tiny
    assert f.ulp(1.0) == 2 * f.u


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
@drawn
@example(1e300)
@example(65519.0)
@example(-3.4e38)
@given(y=doubles())
def test_truncation_never_grows_and_stays_within_one_spacing(name, y):
    f = FORMATS[name]
    cut = float(f.truncate(y))
    if not np.isfinite(y):
        assert same(cut, y)
        return
    assert f.holds(cut)
    assert abs(cut) <= abs(y)
    assert np.copysign(1, cut) == np.copysign(1, y)
    assert abs(y) - abs(cut) < f.ulp(y) or abs(cut) == f.largest


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
@drawn
@given(y=doubles())
def test_a_value_is_held_exactly_when_rounding_keeps_it(name, y):
    f = FORMATS[name]
    assert f.holds(f.round(y))
    if np.isfinite(y) and name != "bf16":
        with np.errstate(over="ignore", under="ignore"):
            assert bool(f.holds(y)) == (float(np.float64(y).astype(NUMPY[name][1])) == y)
    if np.isfinite(y) and name == "bf16":
        assert bool(f.holds(y)) == (abs(y) in BF16_VALUES)


@drawn
@given(y=st.floats(width=64))
def test_double_holds_every_double(y):
    assert F64.holds(y)
    assert same(F64.round(y), y)


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_the_declared_largest_value_is_the_last_one_before_infinity(name):
    f = FORMATS[name]
    assert f.round(f.largest) == f.largest
    assert f.round(f.largest + f.ulp(f.largest) / 4) == f.largest
    assert f.round(f.largest + f.ulp(f.largest) / 2) == np.inf


def test_a_rounding_to_odd_would_be_seen():
    """The halves are in the data: a round half up differs from these formats on them."""
    halves = 1 + np.arange(1, 64, 2) * BF16.u
    up = np.floor(halves / (2 * BF16.u) + 0.5) * 2 * BF16.u
    assert (BF16.round(halves) != up).sum() == len(halves) // 2
