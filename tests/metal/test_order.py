"""The orders of sums that the Metal library declares are those it sums in, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from native import Context, Library
from oracle import summation
from tests.cuda import test_order
from tests.cuda.test_order import chained
from tests.metal.shared import cases_of

globals().update(cases_of(test_order))


@pytest.mark.parametrize("width", [40, 256, 803])
def test_a_norm_sums_its_squares_in_the_declared_order(cpu: Library, ctx: Context, width: int) -> None:
    order = cpu.info.arithmetic["norm_sum"]
    x = np.random.default_rng(width).standard_normal((3, width)).astype(np.float32)
    squares = np.stack([chained(row[None], row[None], order)[0, 0] for row in x])
    root = np.sqrt(squares / np.float32(width) + np.float32(1e-5))
    np.testing.assert_array_equal(ctx.rms_norm(x, None, 1e-5), x / root[:, None])
    assert summation.parse(order) == ("lanes", 256)
