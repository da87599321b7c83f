"""A weight in its stored form: validated, usually memory-mapped, decoded to float64 a tile of rows at a time."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.artifacts import blocks
from oracle.tensor import Array, Axes

# Measured: a few megabytes decode in cache and still feed BLAS well; many rows read a wide input once per tile, so fewer tiles pay.
TILE_VALUES, WIDE_TILE_VALUES, MANY_ROWS = 1 << 19, 1 << 23, 256
KEPT_BYTES, KEPT_EACH = 640 << 20, 16 << 20


class _Kept:
    """Weights of small models stay decoded (as the f32 they are), within a budget: a case's passes would decode them a dozen times."""

    def __init__(self, budget: int) -> None:
        self.left = budget
        self.arrays: weakref.WeakKeyDictionary[Weight, NDArray[Any]] = weakref.WeakKeyDictionary()

    def get(self, w: Weight) -> NDArray[Any] | None:
        found = self.arrays.get(w)
        dtype = np.float64 if w.stored == "f64" else np.float32
        size = w.row_count * w.width * np.dtype(dtype).itemsize
        if found is None and size <= min(self.left, KEPT_EACH):
            self.left -= size
            weakref.finalize(w, self._release, size)
            found = np.empty((w.row_count, w.width), dtype)
            for start, stop in w.spans():
                found[start:stop] = blocks.decode(w.stored_rows(start, stop), w.stored, w.width)
            self.arrays[w] = found
        return found

    def _release(self, size: int) -> None:
        self.left += size


_KEPT = _Kept(KEPT_BYTES)


@dataclass(frozen=True, eq=False)
class Weight:
    """A parameter of a model, kept as it is stored.

    ``raw``: the stored bytes as ``uint8 [rows, bytes per row]`` (C order, often a memory map), rows = output
    features, the input axis packed inside a row. ``axes`` and ``shape``: the logical axes, output axes first and the
    input axis last, e.g. ``("head", "dim", "in")``; a vector has one row and one axis ``("dim",)``.
    ``stored``: the format's name in `oracle.artifacts.blocks.DECODABLE`. ``name``: where it came from, for messages.
    """

    raw: NDArray[np.uint8]
    axes: Axes
    shape: tuple[int, ...]
    stored: str
    name: str = "<memory>"

    def __post_init__(self) -> None:
        if len(self.axes) != len(self.shape):
            raise ValueError(f"{self.name}: axes {self.axes} do not name the axes of shape {self.shape}")
        want = (self.row_count, blocks.row_bytes(self.stored, self.shape[-1]))
        if self.raw.dtype != np.uint8 or self.raw.shape != want:
            raise ValueError(
                f"{self.name}: stored {self.stored} of shape {self.shape} needs uint8 {want}, found {self.raw.dtype} {self.raw.shape}"
            )

    @classmethod
    def of(cls, values: Any, axes: Axes, stored: str = "f32", name: str = "<memory>") -> Weight:
        """Encode ``values`` (any float array) as ``stored``."""
        array = np.ascontiguousarray(values, np.float64)
        raw = blocks.encode(array.reshape(-1, array.shape[-1]), stored)
        return cls(raw, axes, array.shape, stored, name)

    @property
    def row_count(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def width(self) -> int:
        """Length of the input axis."""
        return self.shape[-1]

    def stored_rows(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Rows ``start:stop`` as they are stored, uint8 [stop - start, bytes per row]."""
        return self.raw[start:stop]

    def tile(self, start: int, stop: int) -> Array:
        """Rows ``start:stop`` of the weight flattened to ``[rows, in]``, as the f32 values the format defines, in float64."""
        kept = _KEPT.get(self)
        if kept is not None:
            return kept[start:stop].astype(np.float64)
        return blocks.decode(self.stored_rows(start, stop), self.stored, self.width)

    def spans(self, inputs: int = 1) -> Iterator[tuple[int, int]]:
        """(start, stop) of tiles of a few megabytes each; larger where ``inputs`` rows meet every tile."""
        rows = max((WIDE_TILE_VALUES if inputs >= MANY_ROWS else TILE_VALUES) // self.width, 1)
        for start in range(0, self.row_count, rows):
            yield start, min(start + rows, self.row_count)

    def tiles(self, inputs: int = 1) -> Iterator[tuple[int, int, Array]]:
        """Every tile in turn: (start, stop, float64 [stop - start, in]), for a product with ``inputs`` rows.

        A tile is overwritten by the next one: fresh pages for each would cost as much as the decoding.
        """
        if _KEPT.get(self) is not None:
            for start, stop in self.spans(inputs):
                yield start, stop, self.tile(start, stop)
            return
        spans = list(self.spans(inputs))
        buffer = np.empty((spans[0][1], self.width)) if spans else np.empty((0, self.width))
        for start, stop in spans:
            yield start, stop, blocks.decode(self.stored_rows(start, stop), self.stored, self.width, buffer[: stop - start])

    def array(self) -> Array:
        """The whole weight in float64, in its logical shape. Only for small weights: big ones stream through `tiles`."""
        return self.tile(0, self.row_count).reshape(self.shape)
