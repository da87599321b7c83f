"""The fused drafter of the Metal library, on the emulator: the tests of the CUDA library, whose host code it shares."""

from __future__ import annotations

import pytest

from native import Context
from tests.cuda import test_fused
from tests.metal.shared import cases_of
from tests.native.composed_drafter import small_config
from tests.native.test_drafter import DIALECTS, compare_rounds

SHARED = ("f16_cells_are_dumped_as_they_are_stored", "schedules_give_the_same_bits", "twenty_seeded_schedules_give_the_same_bits")
globals().update(cases_of(test_fused, *(f"test_{name}" for name in SHARED)))
FIRST = "all the norms and gates"


def test_the_fused_drafter_equals_its_operations(ctx: Context) -> None:
    compare_rounds(ctx, small_config(**DIALECTS[FIRST]), True)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in DIALECTS if n != FIRST])
def test_the_fused_drafter_equals_its_operations_in_every_dialect(ctx: Context, name: str) -> None:
    compare_rounds(ctx, small_config(**DIALECTS[name]), False)
