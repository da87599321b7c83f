"""Target caches as engines lay them out, and how each takes back the rejected rows of a window.

Source: `specs/laguna.md` 1.5 and 5.3 (buffered, ring with and without slack), `specs/muse-glimmer.md` 1.8 and 5.5 (rings that save what a
block overwrites, full planes whose rewind is metadata), `specs/qwen38-flash-next.md` 1.6 and 5.3 (recurrent states). A layer's cache holds
rows in slots and hands out, for every position, what its slot holds now: a row that was lost is whatever lies there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from oracle.models import Target
from oracle.targets.state import State
from oracle.tensor import Array, Tensor

BLOCK_ROWS = 16


class CacheError(ValueError):
    """Rows that a cache cannot keep or give back."""


class LayerCache(Protocol):
    """Keys and values of one layer. ``begin(rows)`` before a window, ``append`` its rows, ``commit(kept)`` its first ones."""

    length: int

    def begin(self, rows: int) -> None: ...

    def append(self, k: Array, v: Array) -> None: ...

    def commit(self, kept: int) -> None: ...

    def abort(self) -> None:
        """Everything as it was at ``begin``."""
        ...

    def read(self) -> tuple[Array, Array]:
        """Keys and values [position, head, dim] of positions 0 … length - 1; rows no longer held are whatever their slot holds, or 0."""
        ...


class Slots:
    """Rows in slots ``position % capacity``; without a capacity every position has a slot of its own.

    A rewind moves the end and nothing else (metadata): the slots of rejected rows keep them. ``saves``: at ``begin`` the rows that the
    window will overwrite are put aside (at most 16) and those of rejected rows put back at ``commit``.
    """

    def __init__(self, capacity: int | None = None, saves: bool = False) -> None:
        self.capacity, self.saves = capacity, saves
        self.length = self.start = self.rows = 0
        self.k: Array | None = None
        self.v: Array | None = None
        self._saved: tuple[Any, ...] = ()

    def begin(self, rows: int) -> None:
        if self.saves and rows > BLOCK_ROWS and self.length:
            raise CacheError(f"a window of {rows} rows: this ring saves at most {BLOCK_ROWS} rows that a block overwrites")
        self.start, self.rows = self.length, rows
        self._saved = ()
        if self.capacity is not None and self.k is not None and self.v is not None:
            self._saved = (self.k.copy(), self.v.copy())

    def append(self, k: Array, v: Array) -> None:
        self._room(self.length + len(k), k, v)
        assert self.k is not None and self.v is not None
        for i in range(len(k)):
            slot = self._slot(self.length + i)
            self.k[slot], self.v[slot] = k[i], v[i]
        self.length += len(k)

    def commit(self, kept: int) -> None:
        _check_kept(kept, self.length - self.start)
        if self.saves and self._saved:
            for position in range(self.start + kept, self.length):
                self._put_back(self._slot(position))
        # What a round overwrote is kept until the next one begins: the round may still fail behind this commit.
        self.length = self.start + kept

    def abort(self) -> None:
        self.length = self.start
        if self._saved:
            self.k, self.v = (x.copy() for x in self._saved)

    def read(self) -> tuple[Array, Array]:
        if self.k is None or self.v is None or not self.length:
            return np.empty((0, 0, 0)), np.empty((0, 0, 0))
        if self.capacity is None:
            return self.k[: self.length].copy(), self.v[: self.length].copy()
        slots = [self._slot(p) for p in range(self.length)]
        k, v = self.k[slots], self.v[slots]
        gone = max(self.length - self.capacity, 0)
        k[:gone], v[:gone] = 0, 0
        return k, v

    def _slot(self, position: int) -> int:
        return position if self.capacity is None else position % self.capacity

    def _put_back(self, slot: int) -> None:
        assert self.k is not None and self.v is not None
        if slot < len(self._saved[0]):
            self.k[slot], self.v[slot] = self._saved[0][slot], self._saved[1][slot]

    def _room(self, length: int, k: Array, v: Array) -> None:
        size = length if self.capacity is None else self.capacity
        if self.k is None or self.v is None:
            self.k, self.v = np.zeros((size, *k.shape[1:]), k.dtype), np.zeros((size, *v.shape[1:]), v.dtype)
        elif len(self.k) < size:
            self.k, self.v = (np.concatenate([x, np.zeros((size - len(x), *x.shape[1:]), x.dtype)]) for x in (self.k, self.v))


class Buffered:
    """Rows in temporal order from a start position; compacted only when they are more than ``window + max(slack, rows)``."""

    def __init__(self, window: int, slack: int) -> None:
        self.window, self.slack = window, slack
        self.length = self.first = 0
        self.k: Array | None = None
        self.v: Array | None = None
        self._before: tuple[Any, ...] = (0, 0, None, None)

    def begin(self, rows: int) -> None:
        self._before = (self.length, self.first, self.k, self.v)

    def append(self, k: Array, v: Array) -> None:
        if self.k is not None and self.v is not None:
            if len(self.k) + len(k) > self.window + max(self.slack, len(k)):
                drop = max(self.length - self.window + 1, self.first) - self.first
                self.first, self.k, self.v = self.first + drop, self.k[drop:], self.v[drop:]
            k, v = np.concatenate([self.k, k]), np.concatenate([self.v, v])
        self.k, self.v, self.length = k, v, self.first + len(k)

    def commit(self, kept: int) -> None:
        _check_kept(kept, self.length - self._before[0])
        self.length = self._before[0] + kept
        assert self.k is not None and self.v is not None
        self.k, self.v = self.k[: self.length - self.first], self.v[: self.length - self.first]

    def abort(self) -> None:
        self.length, self.first, self.k, self.v = self._before

    def read(self) -> tuple[Array, Array]:
        if self.k is None or self.v is None:
            return np.empty((0, 0, 0)), np.empty((0, 0, 0))
        lost = [np.zeros((self.first, *x.shape[1:]), x.dtype) for x in (self.k, self.v)]
        return np.concatenate([lost[0], self.k]), np.concatenate([lost[1], self.v])


def _check_kept(kept: int, rows: int) -> None:
    if not 0 <= kept <= rows:
        raise CacheError(f"a window of {rows} rows cannot keep {kept}")


Kind = Callable[[int | None, int], LayerCache]
"""From a layer's window (None: it sees everything) and the most rows of a verify window to its cache."""

KINDS: dict[str, Kind] = {
    "dense": lambda window, rows: Slots(),
    "ring-with-slack": lambda window, rows: Slots() if window is None else Slots(window + max(rows, min(max(8 * rows, 32), 128))),
    "ring-tight": lambda window, rows: Slots() if window is None else Slots(window - 1 + rows),
    "saving-ring": lambda window, rows: Slots() if window is None else Slots(window, saves=True),
    "buffered": lambda window, rows: Slots() if window is None else Buffered(window, max(rows, min(max(8 * rows, 32), 128))),
    "buffered-tight": lambda window, rows: Slots() if window is None else Buffered(window, rows),
    "ring-without-slack": lambda window, rows: Slots() if window is None else Slots(window),
}
"""All but the last keep every row that the next query can see; ``ring-without-slack`` is the negative control of `specs/laguna.md` 5.3."""


class TargetCache(Protocol):
    """A target's whole state behind one transaction per window."""

    @property
    def length(self) -> int: ...

    def state(self) -> Any:
        """What the next window is processed after."""
        ...

    def begin(self, rows: int) -> None: ...

    def append(self, after: Any, ids: Sequence[int]) -> None:
        """``after``: the state that `Target.window` gave for ``ids`` behind `state`."""
        ...

    def commit(self, kept: int) -> None: ...

    def abort(self) -> None: ...

    def rows_by_layer(self) -> tuple[int, ...]:
        """How many rows each layer counts: all alike in a sound cache."""
        ...


class LayeredCache:
    """Targets whose state is keys and values: one `LayerCache` per layer, sliding layers by their window."""

    def __init__(self, windows: Sequence[int | None], kind: str = "dense", rows: int = BLOCK_ROWS) -> None:
        if kind not in KINDS:
            raise CacheError(f"cache {kind!r}: expected one of {', '.join(KINDS)}")
        self.windows = tuple(windows)
        self.layers = [KINDS[kind](w, rows) for w in windows]

    @property
    def length(self) -> int:
        return self.layers[0].length

    def state(self) -> State:
        cells = []
        for layer in self.layers:
            k, v = layer.read()
            cells.append((Tensor(k, ("cell", "head", "dim")), Tensor(v, ("cell", "head", "dim"))))
        return State(tuple(cells) if self.length else (), self.length)

    def begin(self, rows: int) -> None:
        for layer in self.layers:
            layer.begin(rows)

    def append(self, after: State, ids: Sequence[int]) -> None:
        for layer, (k, v) in zip(self.layers, after.layers, strict=True):
            layer.append(k.data[len(k.data) - len(ids) :], v.data[len(v.data) - len(ids) :])

    def commit(self, kept: int) -> None:
        for layer in self.layers:
            layer.commit(kept)

    def abort(self) -> None:
        for layer in self.layers:
            layer.abort()

    def rows_by_layer(self) -> tuple[int, ...]:
        return tuple(layer.length for layer in self.layers)


class RecurrentCache:
    """A target with recurrent layers: the state after every row of the window (``kept-rows``), or the kept rows again (``replay``).

    Its caches by cell are cut with it; no row of an earlier window can be taken back.
    """

    def __init__(self, target: Target, replay: bool = False) -> None:
        self.target, self.replay = target, replay
        self.now = self._before = target.new_state()
        self._ids: list[int] = []

    @property
    def length(self) -> int:
        return int(self.now.length)

    def state(self) -> Any:
        return self.now

    def begin(self, rows: int) -> None:
        self._before, self._ids = self.now, []

    def append(self, after: Any, ids: Sequence[int]) -> None:
        self.now, self._ids = after, [*self._ids, *ids]

    def commit(self, kept: int) -> None:
        _check_kept(kept, len(self._ids))
        if kept == len(self._ids):
            return
        if not kept:
            self.now = self._before
        elif self.replay:
            self.now = self.target.window(self._ids[:kept], self._before).state
        else:
            self.now = self.now.keep(self._before.length + kept)

    def abort(self) -> None:
        self.now = self._before

    def rows_by_layer(self) -> tuple[int, ...]:
        return (self.length,) * len(self.target.weights.layers)


def layer_windows(target: Target) -> tuple[int | None, ...]:
    """The window of every layer, None where it sees everything."""
    g = target.geometry
    sliding = getattr(g, "sliding", (False,) * g.layers)
    return tuple(getattr(g, "window", None) if s else None for s in sliding)


RECURRENT = ("kept-rows", "replay")


def new_cache(target: Target, kind: str | None = None, rows: int = BLOCK_ROWS) -> TargetCache:
    """A cache of one of `KINDS`, or of `RECURRENT` for a target with recurrent layers. `CacheError` for another."""
    if target.geometry.family == "qwen38-flash-next":
        if kind not in (None, *RECURRENT):
            raise CacheError(f"cache {kind!r}: a {target.geometry.family} target has recurrent layers; expected {' or '.join(RECURRENT)}")
        return RecurrentCache(target, kind == "replay")
    return LayeredCache(layer_windows(target), kind or "dense", rows)
