"""Weights whose rows or columns stand in another order in the file: put right as they are read, a tile at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.artifacts import blocks
from oracle.tensor import Axes
from oracle.weights import Weight

Index = NDArray[np.intp]


class Reordered(Weight):
    """``source`` with row i taken from row ``rows[i]`` and column j from column ``columns[j]`` (None: as they are); nothing is kept.

    Whole blocks of a quantised format move as they are. Columns that leave their block make this an f32 weight: of the values that
    the source's format defines, which are f32.
    """

    def __init__(self, source: Weight, axes: Axes, shape: tuple[int, ...], rows: Index | None = None, columns: Index | None = None) -> None:
        moved = None if columns is None else _bytes_of(columns, source.stored)
        stored = source.stored if columns is None or moved is not None else "f64" if source.stored == "f64" else "f32"
        made: dict[str, Any] = {"axes": axes, "shape": shape, "stored": stored, "name": source.name}
        made |= {"_source": source, "_rows": rows, "_columns": columns, "_bytes": moved}
        for name, value in made.items():
            object.__setattr__(self, name, value)
        if self.width != source.width or self.row_count != (source.row_count if rows is None else len(rows)):
            raise ValueError(f"{source.name}: {source.shape} cannot be reordered into {shape}")

    @property
    def raw(self) -> NDArray[np.uint8]:
        """All rows in order, made anew by every access."""
        return self.stored_rows(0, self.row_count)

    def stored_rows(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Rows ``start:stop``, gathered."""
        own: dict[str, Any] = vars(self)
        source: Weight = own["_source"]
        picked = source.raw[start:stop] if own["_rows"] is None else source.raw[own["_rows"][start:stop]]
        if own["_bytes"] is not None:
            return np.asarray(picked[:, own["_bytes"]])
        if own["_columns"] is None:
            return picked
        return blocks.encode(blocks.decode(picked, source.stored, source.width)[:, own["_columns"]], self.stored)


    def part(self, start: int, stop: int, axes: Axes, shape: tuple[int, ...]) -> Weight:
        """Rows ``start:stop`` as a weight of their own logical shape, as lazy as this one; rows that stay in place are not gathered."""
        own: dict[str, Any] = vars(self)
        source: Weight = own["_source"]
        rows = np.arange(start, stop) if own["_rows"] is None else own["_rows"][start:stop]
        name = f"{source.name}[{start}:{stop}]"
        if own["_columns"] is None and np.array_equal(rows, np.arange(rows[0], rows[0] + len(rows))):
            return Weight(source.raw[rows[0] : rows[0] + len(rows)], axes, shape, source.stored, name)
        low, high = int(rows.min()), int(rows.max()) + 1
        whole = Weight(source.raw[low:high], ("dim", "in"), (high - low, source.width), source.stored, name)
        return Reordered(whole, axes, shape, rows - low, own["_columns"])


def _bytes_of(columns: Index, stored: str) -> Index | None:
    """The bytes of a row in the new order of its columns; None where a block would be torn."""
    f = blocks.format_of(stored)
    groups = columns.reshape(-1, f.values)
    if (groups % f.values != np.arange(f.values)).any() or (groups // f.values != groups[:, :1] // f.values).any():
        return None
    return ((groups[:, 0] // f.values * f.bytes)[:, None] + np.arange(f.bytes)).reshape(-1)


def tiled_heads(keys: int, values: int, width: int) -> Index:
    """Where row (head h, i) of ``values`` heads grouped by their key head stands when they are tiled: ``width`` rows per head.

    Grouped: h = key * (values / keys) + j. Tiled, as ggml broadcasts: j * keys + key (`specs/qwen38-flash-next.md` 1.2).
    """
    heads = np.arange(values).reshape(values // keys, keys).T.reshape(-1)
    return (heads[:, None] * width + np.arange(width)).reshape(-1)
