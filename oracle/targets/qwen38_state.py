"""What a Qwen3.8-Flash-Next target keeps between windows: caches by cell, recurrent states by row of the last window.

A recurrent state cannot be cut back like a cache, so the state after every row of the last window is kept; it can be kept
anywhere within that window (`specs/qwen38-flash-next.md` 1.6, 1.7, 1.8, "State").
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from oracle.tensor import Tensor, concatenate


@dataclass(frozen=True)
class Trail:
    """The rows a convolution looks back at: ``rows`` ends with the last one processed, at least ``reach`` of them."""

    rows: Tensor
    reach: int

    @property
    def history(self) -> Tensor:
        """The last ``reach`` rows."""
        return self.rows.rows(len(self.rows.data) - self.reach)

    def extended(self, rows: Tensor) -> Trail:
        return Trail(concatenate([self.history, rows]), self.reach)

    def drop(self, count: int) -> Trail:
        return Trail(self.rows.rows(0, len(self.rows.data) - count), self.reach)


@dataclass(frozen=True)
class DeltaState:
    """A gated delta net: three convolutions' trails, ``start [head, key, dim]`` before the last window, ``after [row, head, key, dim]``."""

    q: Trail
    k: Trail
    v: Trail
    start: Tensor
    after: Tensor | None = None

    @property
    def last(self) -> Tensor:
        """The state after the last row: [head, key, dim]."""
        return self.start if self.after is None or not len(self.after.data) else _last(self.after)

    def drop(self, count: int) -> DeltaState:
        after = None if self.after is None else self.after.rows(0, len(self.after.data) - count)
        return replace(self, q=self.q.drop(count), k=self.k.drop(count), v=self.v.drop(count), after=after)


@dataclass(frozen=True)
class SparseState:
    """Sparse attention: ``keys, values [cell, head, dim]`` and the raw index keys ``index [cell, 1, dim]``, not normed, not rotated."""

    keys: Tensor
    values: Tensor
    index: Tensor

    def extended(self, own: SparseState) -> SparseState:
        """These cells with ``own`` behind them."""
        return SparseState(*(concatenate([getattr(s, part) for s in (self, own)]) for part in ("keys", "values", "index")))

    def drop(self, count: int) -> SparseState:
        left = len(self.keys.data) - count
        return SparseState(self.keys.rows(0, left), self.values.rows(0, left), self.index.rows(0, left))


Mixing = DeltaState | SparseState


@dataclass(frozen=True)
class State:
    """Immutable. ``layers``: per layer its mixer's state; ``ple``: per layer with an n-gram table the trail of its convolution.

    ``tokens`` int64: the last ids, as many as the longest n-gram looks back at and the last window's; ``rows``: how many rows can
    still be taken back. ``keep(n)``: the state after the first n tokens.
    """

    layers: tuple[Mixing, ...] = ()
    ple: tuple[tuple[int, Trail], ...] = ()
    tokens: NDArray[np.int64] | None = None
    length: int = 0
    rows: int = 0

    def keep(self, n: int) -> State:
        """The state after the first n tokens: n = 0, or any n within the last window.

        Raises ValueError for another n: the recurrent states before that window are gone.
        """
        if n == 0:
            return State()
        count = self.length - n
        if not 0 <= count <= self.rows:
            low = self.length - self.rows
            raise ValueError(f"a state of {self.length} rows cannot keep {n}: its recurrent states reach back to row {low}")
        if count == 0:
            return self
        assert self.tokens is not None
        ple = tuple((layer, trail.drop(count)) for layer, trail in self.ple)
        return State(tuple(s.drop(count) for s in self.layers), ple, self.tokens[: len(self.tokens) - count], n, self.rows - count)


def _last(t: Tensor) -> Tensor:
    """The last slice of the leading axis, without that axis."""
    one = t.rows(len(t.data) - 1)

    def inner(part: object) -> object:
        return part[0] if isinstance(part, np.ndarray) and part.ndim == t.data.ndim else part

    return Tensor(one.data[0], t.axes[1:], inner(one.var), inner(one.acc), inner(one.half))  # type: ignore[arg-type]
