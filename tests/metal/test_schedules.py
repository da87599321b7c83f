"""Every family and every operation of the Metal library under the schedules of the emulator: the tests of the CUDA library."""

from __future__ import annotations

import pytest

from tests.cuda import test_schedules
from tests.cuda.test_schedules import case
from tests.metal.shared import cases_of

__all__ = ["case"]
pytestmark = pytest.mark.slow
globals().update(cases_of(test_schedules))
