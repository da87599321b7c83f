"""GGUF and SafeTensors files -> validated weights, and seeded artifacts to test with.

Everything is imported on first use: `oracle.weights` needs `oracle.artifacts.blocks` and nothing else of this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oracle.artifacts.container import ArtifactError, Container, FileIdentity, Identity, StoredTensor, open_container
    from oracle.artifacts.drafters import DrafterFiles, open_drafter_files, resolve_family
    from oracle.artifacts.inspect import inspect_artifact
    from oracle.artifacts.make import make_artifact
    from oracle.artifacts.targets import Borrowed, TargetFiles, open_borrowed, open_target_files

_HOMES = {
    "container": ("ArtifactError", "Container", "FileIdentity", "Identity", "StoredTensor", "open_container"),
    "drafters": ("DrafterFiles", "open_drafter_files", "resolve_family"),
    "inspect": ("inspect_artifact",),
    "make": ("make_artifact",),
    "targets": ("Borrowed", "TargetFiles", "open_borrowed", "open_target_files"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "ArtifactError",
    "Borrowed",
    "Container",
    "DrafterFiles",
    "FileIdentity",
    "Identity",
    "StoredTensor",
    "TargetFiles",
    "inspect_artifact",
    "make_artifact",
    "open_borrowed",
    "open_container",
    "open_drafter_files",
    "open_target_files",
    "resolve_family",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
