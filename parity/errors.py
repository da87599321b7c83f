"""Errors that end a command, each with the exit status of DESIGN section 7."""

from __future__ import annotations


class UsageError(ValueError):
    """Bad usage or bad input: one clear line, exit status 2."""


class IdentityMismatch(UsageError):
    """What should be compared is of another artifact, geometry, dialect, case or placement: that is the verdict, exit status 1."""


class CandidateError(RuntimeError):
    """The candidate crashed, hung or broke the ABI: exit status 4. ``stage``: the last one it announced; ``stderr``: its last lines."""

    def __init__(self, message: str, stage: str | None = None, stderr: str = "") -> None:
        super().__init__(message)
        self.stage, self.stderr = stage, stderr


#: Bad input by class name: comparing names loads none of the modules that define them.
REFUSALS = frozenset({"ArtifactError", "ContextError", "DeclarationError", "DialectError", "FaultError", "UsageError"})


def is_a(error: BaseException, names: frozenset[str]) -> bool:
    """Whether the error's class, or one it derives from, has one of the names."""
    return any(kind.__name__ in names for kind in type(error).__mro__)
