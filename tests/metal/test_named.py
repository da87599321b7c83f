"""The operations of ABI 1.1 in the Metal library, on the emulator: the tests of the CUDA library, unchanged."""

from __future__ import annotations

import pytest

from oracle.arithmetic import named
from tests.cuda import test_named
from tests.cuda.test_named import *  # noqa: F403


@pytest.fixture(autouse=True)
def judged_as_metal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_named, "DECLARED", named("metal-f32"))
