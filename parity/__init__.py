"""Everything that compares: candidates against the oracle, stage by stage, with derived tolerances.

``compare`` and ``assert_parity`` are the public functions; everything is imported when first used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parity.api import assert_parity, compare, drafter_case, open_writer, target_case

__all__ = ["assert_parity", "compare", "drafter_case", "open_writer", "target_case"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from parity import api

        return getattr(api, name)
    raise AttributeError(f"module 'parity' has no attribute {name!r}")
