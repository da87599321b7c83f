"""Drafter heads and rotating caches in the Metal library, on the emulator: the tests of the CUDA library, unchanged."""

from __future__ import annotations

from typing import Any

import pytest

from parity.candidates import Candidate, parse
from tests.cuda import test_heads
from tests.cuda.test_heads import *  # noqa: F403


@pytest.fixture(autouse=True)
def with_metal(monkeypatch: pytest.MonkeyPatch) -> None:
    def parsed(spec: str, *arguments: Any, **more: Any) -> Candidate:
        return parse(spec.replace("cuda", "metal"), *arguments, **more)

    monkeypatch.setattr(test_heads, "parse", parsed)
    monkeypatch.setattr(test_heads.arithmetics, "named", lambda name: named(name.replace("cuda", "metal")))


named = test_heads.arithmetics.named
