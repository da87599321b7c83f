"""The fused drafter of the Metal library, on the emulator: the tests of the CUDA library, unchanged."""

from __future__ import annotations

from tests.cuda.test_fused import *  # noqa: F403
