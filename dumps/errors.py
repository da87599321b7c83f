"""The one exception of the package."""

from __future__ import annotations


class DumpError(ValueError):
    """A dump that cannot be written or read as asked.

    The message names the record and file, what was expected and what was found; it is meant to be shown as it is.
    """


def shown(value: object, limit: int = 80) -> str:
    """``repr(value)`` cut to ``limit`` characters, so that a hostile value cannot flood a message."""
    text = repr(value[: limit + 1]) if isinstance(value, (str, bytes, list, tuple)) else repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
