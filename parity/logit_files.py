"""Logits as people have them: .npy, .npz, .safetensors, and what llama.cpp writes (``--save-all-logits`` of perplexity; raw f32)."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from oracle.floats import F32, F64, FORMATS, FloatFormat
from oracle.tensor import Array
from parity.errors import UsageError

MAGIC, HEAD = b"_logits_", 20
LARGEST_VOCAB, LARGEST_ROWS, LARGEST_UNPACKED = 1 << 24, 1 << 24, 8 << 30
Row = Callable[[int], tuple[Array, float]]


@dataclass(frozen=True, eq=False)
class LogitFile:
    """``rows`` x ``vocab`` logits, decoded a row at a time.

    ``row(i)``: (values [vocab] float64, half-width of a storage rounding beyond the dtype's own). ``store``: the format of the values.
    ``floor``: smallest values of a row stand for anything below (llama.cpp clamps 16 below the largest).
    """

    path: Path
    rows: int
    vocab: int
    store: FloatFormat
    row: Row
    floor: bool = False


def _fail(path: Path, what: str) -> NoReturn:
    raise UsageError(f"{path}: {what}")


def open_logits(path: Path, vocab: int | None = None, name: str | None = None) -> LogitFile:
    """Open a file of logits by its suffix and magic. ``vocab``: needed for raw f32 (``.bin``). ``name``: of the array in a file of several.

    Raises `UsageError` for a file that is none, for non-numeric arrays and for shapes other than [row, vocab] or [1, row, vocab].
    """
    try:
        with path.open("rb") as stream:
            head = stream.read(8)
    except OSError as error:
        _fail(path, f"cannot be read: {error.strerror}")
    if head == MAGIC:
        return _perplexity(path)
    if path.suffix in (".npy", ".npz"):
        return _array(path, _numpy(path, name))
    if path.suffix == ".safetensors":
        return _safetensors(path, name)
    if path.suffix in (".bin", ".raw", ".f32"):
        return _raw(path, vocab)
    _fail(path, "expected .npy, .npz, .safetensors, raw f32 (.bin), or the file of llama.cpp's --save-all-logits")


def _numpy(path: Path, name: str | None) -> Any:
    try:
        if path.suffix == ".npy":
            return np.load(path, mmap_mode="r", allow_pickle=False)
        with zipfile.ZipFile(path) as archive:
            names = [n.removesuffix(".npy") for n in archive.namelist()]
            chosen = _chosen(path, names, name)
            size = archive.getinfo(f"{chosen}.npy").file_size
            if size > LARGEST_UNPACKED:
                _fail(path, f"{chosen}: expected at most {LARGEST_UNPACKED} bytes unpacked, found {size}; save it as .npy")
        with np.load(path, allow_pickle=False) as arrays:
            return arrays[chosen]
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile, OSError, MemoryError) as error:
        if isinstance(error, UsageError):
            raise
        _fail(path, f"not a NumPy file of numbers: {str(error).splitlines()[0] if str(error) else type(error).__name__}")


def _chosen(path: Path, names: list[str], name: str | None) -> str:
    if name is None and len(names) > 1 and "logits" in names:
        return "logits"
    if name is None and len(names) == 1:
        return names[0]
    if name in names:
        return str(name)
    expected = "one array" if name is None else repr(name)
    _fail(path, f"expected {expected}, found {', '.join(sorted(names)[:8]) or 'none'}; name one with --array")


def _array(path: Path, array: Any) -> LogitFile:
    """A numeric array as logits; uint16 is refused (bf16 words need a container that says so)."""
    if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
        _fail(path, f"expected floating-point logits, found dtype {array.dtype}")
    shape = array.shape[1:] if array.ndim == 3 and array.shape[0] == 1 else array.shape
    if len(shape) == 1:
        shape = (1, *shape)
    rows, vocab = _shape(path, shape)
    flat = array.reshape(rows, vocab)
    store = {2: FORMATS["f16"], 4: F32}.get(array.dtype.itemsize, F64)
    return LogitFile(path, rows, vocab, store, lambda i: (np.asarray(flat[i], np.float64), 0.0))


def _shape(path: Path, shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) != 2 or not 1 <= shape[0] <= LARGEST_ROWS or not 2 <= shape[1] <= LARGEST_VOCAB:
        _fail(path, f"expected logits [row, vocab] with a row at least and a vocabulary of 2 to {LARGEST_VOCAB}, found shape {list(shape)}")
    return int(shape[0]), int(shape[1])


def _safetensors(path: Path, name: str | None) -> LogitFile:
    from oracle.artifacts import blocks
    from oracle.artifacts.safetensors_folder import read_file

    tensors = read_file(path)
    tensor = tensors[_chosen(path, list(tensors), name)]
    if tensor.stored not in FORMATS:
        _fail(path, f"{tensor.name}: expected floating-point logits, found dtype {tensor.stored}")
    shape = tensor.shape[1:] if len(tensor.shape) == 3 and tensor.shape[0] == 1 else tensor.shape
    rows, vocab = _shape(path, (1, *shape) if len(shape) == 1 else shape)
    words = tensor.raw.reshape(rows, -1)

    def row(i: int) -> tuple[Array, float]:
        return np.asarray(blocks.decode(words[i : i + 1], tensor.stored, vocab)[0], np.float64), 0.0

    return LogitFile(path, rows, vocab, FORMATS[tensor.stored], row)


def _raw(path: Path, vocab: int | None) -> LogitFile:
    if vocab is None:
        _fail(path, "raw f32 logits carry no shape: give the vocabulary with --vocab-size")
    size = path.stat().st_size
    if size == 0 or size % (4 * vocab):
        _fail(path, f"expected rows of {vocab} f32 values ({4 * vocab} bytes each), found {size} bytes")
    return _array(path, np.memmap(path, "<f4", mode="r", shape=(size // (4 * vocab), vocab)))


def _perplexity(path: Path) -> LogitFile:
    """llama.cpp, ``llama-perplexity --save-all-logits`` (tools/perplexity/perplexity.cpp): magic, n_ctx, n_vocab, n_chunk, the tokens.

    Then for each position of the later half of each chunk: f32 scale, f32 smallest log-probability, uint16 codes [vocab], padded to
    an even count.
    """
    size = path.stat().st_size
    words = np.memmap(path, np.uint8, mode="r")
    if size < HEAD:
        _fail(path, f"truncated: expected {HEAD} bytes of header, found {size}")
    n_ctx, vocab, chunks = (int(v) for v in words[8:HEAD].view("<i4"))
    if not (2 <= n_ctx <= LARGEST_ROWS and 2 <= vocab <= LARGEST_VOCAB and 1 <= chunks <= LARGEST_ROWS):
        _fail(path, f"header: n_ctx {n_ctx}, n_vocab {vocab}, n_chunk {chunks} are out of range")
    wide = 2 * ((vocab + 1) // 2) + 4
    rows, start = (n_ctx - 1 - n_ctx // 2) * chunks, HEAD + 4 * n_ctx * chunks
    expected = start + 2 * wide * rows
    if rows < 1 or size != expected:
        _fail(path, f"expected {expected} bytes ({rows} positions of {vocab} logits), found {size}: its writer does not notice a full disk")
    data = words[start:].view("<u2").reshape(rows, wide)

    def row(i: int) -> tuple[Array, float]:
        scale, smallest = (float(v) for v in data[i, :4].view("<f4"))
        return smallest + scale * data[i, 4 : 4 + vocab].astype(np.float64), abs(scale) / 2

    return LogitFile(path, rows, vocab, F32, row, floor=True)
