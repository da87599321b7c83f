"""Verify-cost fits on the Laguna chapter's tables: the recomputed lines, and their doubts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracle.speculation.costs import break_even, fit, tokens_per_second

A = ([2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16], [80, 83, 85, 89, 92, 97, 101, 106, 109, 116, 127])
B = ([2, 4, 6, 8, 10, 12, 16], [80.4, 84.9, 92.5, 103.7, 111.1, 117.4, 131.3])
C = ([2, 4, 6, 8, 10, 12, 16], [42.0, 48.9, 56.2, 66.8, 74.6, 80.6, 93.5])


@pytest.mark.parametrize(("table", "fixed", "per_row"), [(A, 72.19, 3.548), (B, 71.60, 3.795), (C, 34.74, 3.78)])
def test_the_tables_of_the_laguna_chapter(table, fixed: float, per_row: float):
    f = fit(*table)
    assert abs(f.fixed - fixed) < 0.006 and abs(f.per_row - per_row) < 0.006
    assert f.fixed_range[0] < f.fixed < f.fixed_range[1] and f.per_row_range[0] < f.per_row < f.per_row_range[1]


def test_a_published_line_that_misses_its_own_endpoint_is_outside_the_confidence_interval():
    f = fit(*A)
    assert abs(f.sse - 16.3) < 0.05 and abs(max(map(abs, f.residuals)) - 1.95) < 0.01
    assert not f.fixed_range[0] < 77 < f.fixed_range[1] and not f.per_row_range[0] < 3.1 < f.per_row_range[1]
    quoted = sum((y - 77 - 3.1 * x) ** 2 for x, y in zip(*A, strict=True))
    assert abs(quoted - 74.8) < 0.05


def test_throughput_and_break_even():
    accepted, ms = {2: 0.84, 8: 3.33, 16: 3.55}, dict(zip(*A, strict=True))
    draft, told = {2: 30, 8: 34, 16: 35}, {2: 16.19, 8: 31.26, 16: 27.41}
    for w in told:
        assert round(abs(tokens_per_second(accepted[w], ms[w], draft[w] + 3) / told[w] - 1), 3) <= 0.006
    assert abs(break_even(101, 37, 32.07) - 3.30) < 0.01


def test_leaving_one_out_shows_the_point_that_carries_the_line():
    widths, ms = [2, 3, 4, 5, 16], [80.0, 83.5, 87.0, 90.5, 200.0]
    f = fit(widths, ms)
    worst = int(np.argmax(np.abs(f.left_out_error)))
    assert widths[worst] == 16 and abs(f.left_out[worst][1] - 3.5) < 1e-9 and abs(f.left_out_error[worst] - (200 - 73 - 3.5 * 16)) < 1e-9


@given(st.floats(1, 100), st.floats(0.1, 10), st.lists(st.integers(1, 16), min_size=3, max_size=12, unique=True))
def test_an_exact_line_is_found_without_a_doubt(fixed: float, per_row: float, widths: list[int]):
    f = fit(widths, [fixed + per_row * w for w in widths])
    assert abs(f.fixed - fixed) < 1e-9 and abs(f.per_row - per_row) < 1e-9 and f.sse < 1e-18
    assert max(map(abs, f.left_out_error)) < 1e-8


@pytest.mark.parametrize(
    ("widths", "ms"), [([2, 4], [1, 2]), ([2, 2, 2], [1, 2, 3]), ([2, 4, 6], [1, 2]), ([2, 4, 6], [1, 2, float("nan")])]
)
def test_too_few_points_are_no_fit(widths, ms):
    with pytest.raises(ValueError, match="at least 3 different widths"):
        fit(widths, ms)
