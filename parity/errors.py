"""Errors that end a command, each with the exit status of DESIGN section 7."""

from __future__ import annotations


class UsageError(ValueError):
    """Bad usage or bad input: one clear line, exit status 2."""


class CandidateError(RuntimeError):
    """The candidate crashed, hung or broke the ABI: exit status 4. ``stage``: the last one it announced; ``stderr``: its last lines."""

    def __init__(self, message: str, stage: str | None = None, stderr: str = "") -> None:
        super().__init__(message)
        self.stage, self.stderr = stage, stderr
