"""Drafter heads and rotating caches in the Metal library, on the emulator: the tests of the CUDA library, with Metal as the candidate."""

from __future__ import annotations

from typing import Any

import pytest

from oracle import arithmetic
from parity.candidates import Candidate, parse
from tests.cuda import test_heads
from tests.cuda.test_heads import case
from tests.metal.shared import cases_of

__all__ = ["case"]
globals().update(cases_of(test_heads))


@pytest.fixture(autouse=True)
def with_metal(monkeypatch: pytest.MonkeyPatch) -> None:
    named = arithmetic.named

    def parsed(spec: str, *arguments: Any, **more: Any) -> Candidate:
        return parse(spec.replace("cuda", "metal"), *arguments, **more)

    monkeypatch.setattr(test_heads, "parse", parsed)
    monkeypatch.setattr(arithmetic, "named", lambda name: named(name.replace("cuda", "metal")))
