"""The operations of ABI 1.1 in the Metal library, on the emulator: the tests of the CUDA library, judged by what Metal declares."""

from __future__ import annotations

import pytest

from oracle.arithmetic import named
from tests.cuda import test_named
from tests.metal.shared import cases_of

globals().update(cases_of(test_named))


@pytest.fixture(autouse=True)
def judged_as_metal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_named, "DECLARED", named("metal-f32"))
