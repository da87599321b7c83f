"""Every family and every operation of the Metal library under the schedules of the emulator: CUDA's test, with Metal as the candidate."""

from __future__ import annotations

from typing import Any

import pytest

from parity.candidates import Candidate, parse
from tests.cuda import test_schedules
from tests.cuda.test_schedules import case
from tests.metal.shared import cases_of

__all__ = ["case"]
pytestmark = pytest.mark.slow
globals().update(cases_of(test_schedules))


@pytest.fixture(autouse=True)
def with_metal(monkeypatch: pytest.MonkeyPatch) -> None:
    def parsed(spec: str, *arguments: Any, **more: Any) -> Candidate:
        return parse(spec.replace("cuda", "metal"), *arguments, **more)

    monkeypatch.setattr(test_schedules, "parse", parsed)
