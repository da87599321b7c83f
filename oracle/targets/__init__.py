"""Targets: one module per family, each with ``window(m, weights, geometry, ids, state, taps) -> Output`` and an empty ``State()``."""

from __future__ import annotations

from importlib import import_module
from typing import Any

MODULES = {"llama": "llama", "laguna": "laguna", "muse-glimmer": "muse_glimmer", "qwen38-flash-next": "qwen38_flash_next"}


def module(family: str) -> Any:
    """The module of ``family``, imported on first use; ValueError for a family without a target."""
    if family not in MODULES:
        raise ValueError(f"target family {family!r}: expected one of {', '.join(MODULES)}")
    return import_module(f"oracle.targets.{MODULES[family]}")
