"""The operations of the Metal library, on the emulator: the tests of the CUDA library, unchanged."""

from __future__ import annotations

from tests.cuda import test_operations
from tests.metal.shared import cases_of

globals().update(cases_of(test_operations))
