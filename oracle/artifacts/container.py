"""What a weight file holds once its structure is known to be sound: metadata and memory-mapped tensors.

`open_container` is the only door: GGUF files go to `oracle.artifacts.gguf_file`, SafeTensors folders to
`oracle.artifacts.safetensors_folder`. Both are strict: nothing is allocated on the word of the file.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class ArtifactError(ValueError):
    """A weight file that cannot be used. One line: file, tensor or key, expected, found, what to do."""


def show(value: object, limit: int = 80) -> str:
    """``repr`` of something read from a file, in ASCII and cut to ``limit`` characters, fit for a message."""
    if isinstance(value, (str, list)):
        value = value[: limit + 1]
    elif isinstance(value, np.ndarray):
        value = value[: limit + 1].tolist()
    text = ascii(value)
    return text if len(text) <= limit else text[:limit] + "..."


def name_list(names: Any, limit: int = 6) -> str:
    """Up to ``limit`` names, sorted, and how many more there are."""
    ordered = sorted(names)
    more = f" and {len(ordered) - limit} more" if len(ordered) > limit else ""
    return ", ".join(show(n) for n in ordered[:limit]) + more


def fail(path: Path, what: str) -> NoReturn:
    """Raise `ArtifactError` about ``path``."""
    raise ArtifactError(f"{path}: {what}")


@dataclass(frozen=True)
class FileIdentity:
    """One file of an artifact and its SHA-256 (computed on first use, then kept)."""

    path: Path
    size: int

    @cached_property
    def sha256(self) -> str:
        """Hex digest of the whole file."""
        with self.path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """A tensor as stored: ``shape`` in NumPy order (input axis last), ``raw`` a read-only map uint8 [rows, bytes].

    ``stored`` is the lower-case format name; names outside `blocks.DECODABLE` may be present but cannot be decoded.
    ``offset``: where the tensor starts in the file at ``path``, in bytes.
    """

    name: str
    stored: str
    shape: tuple[int, ...]
    raw: Bytes
    path: Path
    offset: int = 0


@dataclass(frozen=True, eq=False)
class Container:
    """An opened artifact. ``kind``: ``gguf`` or ``safetensors``.

    ``metadata``: GGUF key -> value, or the object of ``config.json``. ``kinds``: for GGUF, key -> type name
    (``u32``, ``f32``, ``bool``, ``string``, ``array of u32`` ...); empty for SafeTensors.
    """

    path: Path
    kind: str
    metadata: dict[str, Any]
    kinds: dict[str, str]
    tensors: dict[str, StoredTensor]
    files: tuple[FileIdentity, ...]

    def scalar(self, key: str) -> Any:
        """The value under ``key`` if it is a single number, bool or string, else None."""
        value = self.metadata.get(key)
        return value if isinstance(value, (bool, int, float, str)) else None

    @property
    def metadata_path(self) -> Path:
        """The file that holds the metadata, for messages."""
        return self.path if self.kind == "gguf" else self.path / "config.json"


@dataclass(frozen=True)
class Identity:
    """What was opened: ``family``, ``container`` kind, ``files`` with their SHA-256, the weight ``formats`` used.

    ``warnings``: what a reader should know (a default that was assumed, keys that were ignored).
    """

    family: str
    container: str
    files: tuple[FileIdentity, ...]
    formats: tuple[str, ...]
    warnings: tuple[str, ...] = field(default=())

    @property
    def sha256(self) -> dict[str, str]:
        """File name -> SHA-256 of every file (reads the files on first use)."""
        return {f.path.name: f.sha256 for f in self.files}


def map_file(path: Path, smallest: int) -> Bytes:
    """A read-only memory map of ``path``; `ArtifactError` when it is not a readable file of at least ``smallest`` bytes."""
    try:
        size = path.stat().st_size
        if not path.is_file():
            fail(path, "expected a regular file; found something else")
        if size < smallest:
            fail(path, f"truncated: expected at least {smallest} bytes, found {size}; fetch the file again")
        return np.asarray(np.memmap(path, np.uint8, mode="r"))
    except OSError as error:
        fail(path, f"cannot be read ({error.strerror or error}); check the path and its permissions")


def open_container(path: str | Path) -> Container:
    """Open a GGUF file or a SafeTensors folder; `ArtifactError` says what is wrong with it."""
    where = Path(path)
    try:
        is_folder, exists = where.is_dir(), where.exists()
    except OSError as error:
        fail(where, f"cannot be read ({error.strerror or error}); check the path and its permissions")
    if is_folder:
        from oracle.artifacts.safetensors_folder import read_folder

        return read_folder(where)
    if not exists:
        fail(where, "no such file or folder; expected a .gguf file or a folder with config.json and model.safetensors")
    if where.suffix == ".safetensors":
        fail(where, "a SafeTensors model is opened by its folder (config.json beside the weights); give the folder")
    from oracle.artifacts.gguf_file import read_gguf

    return read_gguf(where)
