"""The operations of ABI 1.1 in the Metal library, on the emulator: the tests of the CUDA library."""

from __future__ import annotations

from tests.cuda import test_named
from tests.metal.shared import cases_of

globals().update(cases_of(test_named))
