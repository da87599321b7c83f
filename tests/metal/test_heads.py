"""Drafter heads and rotating caches in the Metal library, on the emulator: the tests of the CUDA library."""

from __future__ import annotations

from tests.cuda import test_heads
from tests.cuda.test_heads import case
from tests.metal.shared import cases_of

__all__ = ["case"]
globals().update(cases_of(test_heads))
