"""The one exception of the package."""

from __future__ import annotations


class NativeError(Exception):
    """A compiled library cannot be loaded, or one of its calls failed.

    ``status``: the `dlab_status` name without its prefix (``SHAPE``, ``STATE`` ...), or ``LOAD`` when the library was refused.
    ``text``: what, where, what was expected and what was found.
    """

    def __init__(self, status: str, text: str) -> None:
        super().__init__(f"{text} [{status}]")
        self.status = status
        self.text = text

    def __reduce__(self) -> tuple[type[NativeError], tuple[str, str]]:
        """Processes hand it on whole."""
        return type(self), (self.status, self.text)
