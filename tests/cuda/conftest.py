"""The CUDA library on the emulator."""

import pytest

from tests.emulated import cpu, ctx, declared, emulation

__all__ = ["cpu", "ctx", "declared", "emulation"]


@pytest.fixture(scope="session")
def candidate() -> str:
    return "cuda-emu"
