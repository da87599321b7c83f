"""The specification: float64 NumPy models of targets and DFlash drafters, readable beside the papers.

``open_target`` and ``open_drafter`` are the public entry points; everything is imported when first used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oracle.models import Drafter, Target, open_drafter, open_target

__all__ = ["Drafter", "Target", "open_drafter", "open_target"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from oracle import models

        return getattr(models, name)
    raise AttributeError(f"module 'oracle' has no attribute {name!r}")
