"""The Metal library on the emulator, in the place of the CPU library of `tests.native`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import native
from native.building import ensure
from native.emulation import Emulation


@pytest.fixture(scope="session")
def cpu() -> native.Library:
    """The library under test, under the name the shared tests ask for."""
    return native.open_library(ensure("metal-emu"))


@pytest.fixture(scope="session")
def ctx(cpu: native.Library) -> Iterator[native.Context]:
    with cpu.context() as context:
        yield context


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
