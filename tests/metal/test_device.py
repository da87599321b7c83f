"""The benchmark of a device with the Metal library: the tests of the CUDA library that do not ask for cuBLAS."""

from __future__ import annotations

from tests.cuda import test_device
from tests.cuda.test_device import small
from tests.metal.shared import cases_of

__all__ = ["small"]
SHARED = ("a_copy_within_the_device_is_one", "products_are_compared_with_a_copy")
globals().update(cases_of(test_device, *(f"test_{name}" for name in SHARED)))
