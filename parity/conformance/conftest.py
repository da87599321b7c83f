"""Fixtures of the suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import native
from oracle import arithmetic as arithmetics
from oracle.arithmetic import Arithmetic


@pytest.fixture(scope="session")
def spec(request: pytest.FixtureRequest) -> str:
    named = request.config.getoption("--dlab-library", None)
    if named is None:
        pytest.skip("no library: pass --dlab-library PATH")
    return str(named)


@pytest.fixture(scope="session")
def library(spec: str) -> native.Library:
    return native.open_library(spec)


@pytest.fixture(scope="session")
def arithmetic(request: pytest.FixtureRequest) -> Arithmetic:
    return arithmetics.named(request.config.getoption("--dlab-arithmetic"))


@pytest.fixture
def found() -> list[str]:
    """What the guard tells of."""
    return []


@pytest.fixture
def context(library: native.Library, found: list[str]) -> Iterator[native.Context]:
    with library.context(1, guard=lambda kind, text: found.append(f"{kind}: {text}")) as opened:
        yield opened
