"""Every family's target in the Metal library, on the emulator: the tests of the CUDA library."""

from __future__ import annotations

from tests.cuda import test_targets
from tests.metal.shared import cases_of

globals().update(cases_of(test_targets))
