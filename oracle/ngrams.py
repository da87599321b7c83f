"""Hashing of token n-grams into a table: multipliers, prime table sizes and row ids, in exact integers.

Source: `specs/qwen38-flash-next.md` 1.8 (check values there and in the tests).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from oracle.tensor import Array
from oracle.weights import Weight

_GAMMA, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1
_MODULE_STRIDE = 10007


class Table(Protocol):
    """A table of rows that can be read one at a time; a `Weight` is one."""

    @property
    def name(self) -> str: ...

    @property
    def row_count(self) -> int: ...

    @property
    def width(self) -> int: ...

    def tile(self, start: int, stop: int) -> Array:
        """Rows ``start:stop`` as float64 [rows, width]."""
        ...


@dataclass(frozen=True, eq=False)
class Shards:
    """One table in several weights, concatenated on rows, as checkpoints save a table too big for one tensor."""

    parts: tuple[Weight, ...]
    name: str

    @property
    def row_count(self) -> int:
        return sum(p.row_count for p in self.parts)

    @property
    def width(self) -> int:
        return self.parts[0].width

    def tile(self, start: int, stop: int) -> Array:
        """Rows ``start:stop``, which may lie in several shards."""
        found, first = [], 0
        for p in self.parts:
            low, high = max(start - first, 0), min(stop - first, p.row_count)
            if low < high:
                found.append(p.tile(low, high))
            first += p.row_count
        return np.concatenate(found) if found else np.empty((0, self.width))


@dataclass(frozen=True)
class Origin:
    """What a model's hash constants are made of: sizes are primes from ``base`` on, multipliers come from ``seed``, and the table is
    padded to a multiple of ``divisor`` rows."""

    base: int
    seed: int
    divisor: int


@dataclass(frozen=True)
class NGrams:
    """How n-grams of 2 to ``size`` tokens become table rows.

    ``multipliers``: one per position in the n-gram; ``sizes``: the (prime) table size of every head, ``per_size`` heads for
    each length of n-gram; ``offsets``: first row of every head; ``end``: the token that ends a text and fills its start.
    """

    size: int
    per_size: int
    multipliers: tuple[int, ...]
    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    end: int

    @property
    def heads(self) -> int:
        return len(self.sizes)

    def rows(self, ids: Any, history: Any) -> NDArray[np.int64]:
        """Table rows of ids [row] after history [size - 1]: int64 [row, head].

        A predecessor beyond an end mark counts as an end mark itself; the token's own being one does not cut.
        """
        tokens = np.concatenate([np.asarray(history, np.int64), np.asarray(ids, np.int64)])
        first = self.size - 1
        if len(tokens) != len(ids) + first:
            raise ValueError(f"n-grams of {self.size} tokens need {first} earlier ids, found {len(tokens) - len(ids)}")
        mixed, inside = tokens[first:] * self.multipliers[0], np.ones(len(ids), bool)
        columns = []
        for shift in range(1, self.size):
            before = tokens[first - shift : len(tokens) - shift]
            inside = inside & (before != self.end)
            mixed = mixed ^ (np.where(inside, before, self.end) * self.multipliers[shift])
            heads = range((shift - 1) * self.per_size, shift * self.per_size)
            columns += [mixed % self.sizes[h] + self.offsets[h] for h in heads]
        return np.stack(columns, 1)


def make(vocab: int, size: int, per_size: int, base: int, seed: int, module: int, end: int) -> NGrams:
    """The hash of the ``module``-th table of a model: multipliers from ``seed``, sizes the primes from ``base`` on."""
    half = max(1, ((1 << 63) - 1) // vocab // 2)
    start = seed + _MODULE_STRIDE * module
    multipliers = tuple(2 * (_mixed((start + _GAMMA * (i + 1)) & _MASK) % half) + 1 for i in range(size))
    heads = (size - 1) * per_size
    sizes = _primes(base, (module + 1) * heads)[module * heads :]
    offsets = tuple(int(o) for o in np.concatenate([[0], np.cumsum(sizes[:-1])]))
    return NGrams(size, per_size, multipliers, sizes, offsets, end)


def table_rows(recipe: NGrams, divisor: int) -> int:
    """Rows of the padded table: the sum of the sizes, rounded up to a multiple of ``divisor``."""
    return -(-sum(recipe.sizes) // divisor) * divisor


def _mixed(value: int) -> int:
    """splitmix64, its own first addition included."""
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _primes(base: int, count: int) -> tuple[int, ...]:
    """The first ``count`` primes from ``base`` on."""
    found: list[int] = []
    value = base
    while len(found) < count:
        if value > 1 and all(value % d for d in range(2, math.isqrt(value) + 1)):
            found.append(value)
        value += 1
    return tuple(found)
