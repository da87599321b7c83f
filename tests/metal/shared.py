"""Tests of the CUDA library that the Metal library, under the same host code, must pass as well."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any


def cases_of(module: ModuleType, *names: str) -> dict[str, Callable[..., Any]]:
    """The test functions of a module, or those named, to be made a test module's own: ``globals().update(cases_of(module))``."""
    found = {name: value for name, value in vars(module).items() if name.startswith("test_")}
    return {name: found[name] for name in names} if names else found
