"""Fixtures of a library on the emulator, in the place of the CPU library of `tests.native`; a conftest says which (``candidate``)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import native
from native.building import ensure
from native.emulation import Emulation
from oracle.arithmetic import Arithmetic
from parity import candidates


@pytest.fixture(scope="session")
def cpu(candidate: str) -> native.Library:
    """The library under test, under the name the shared tests ask for."""
    return native.open_library(ensure(candidate))


@pytest.fixture(scope="session")
def ctx(cpu: native.Library) -> Iterator[native.Context]:
    with cpu.context() as context:
        yield context


@pytest.fixture(scope="session")
def declared(candidate: str) -> Arithmetic:
    """What the library is judged by."""
    return candidates.declared(candidates.parse(candidate), None)


@pytest.fixture(autouse=True)
def emulation(cpu: native.Library) -> Iterator[Emulation]:
    """Whatever a test does, the emulator finds nothing."""
    made = Emulation(cpu.info.path)
    made.clear()
    made.schedule("eager")
    yield made
    found = made.findings()
    made.clear()
    assert not found, found[0].text
