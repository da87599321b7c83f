"""Uniform numbers that a rule compares with thresholds: drawn from a stream, or explored exhaustively with their exact probabilities.

A rule is written once against `Coins`. A stream gives numbers; `outcomes` gives coins that know the interval they can still lie in
and split it at every threshold they are compared with, so that the law of whatever the rule returns is computed, not sampled, and
a coin that is used twice is one coin.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from fractions import Fraction
from typing import Any, Protocol, TypeVar

Number = Any
"""Fraction for exact laws, float for float64 ones; a row of probabilities is a sequence of them by token id."""

T = TypeVar("T", bound=Hashable)
MAX_OUTCOMES = 1 << 20


class Coins(Protocol):
    def uniform(self) -> Any:
        """A number in [0, 1) that compares with ``<`` and ``<=``."""
        ...


class _Coin:
    """A uniform number of which only an interval is known."""

    def __init__(self, world: _World) -> None:
        self.world, self.low, self.high = world, Fraction(0), Fraction(1)

    def __lt__(self, threshold: Number) -> bool:
        if threshold <= self.low:
            return False
        if threshold >= self.high:
            return True
        below = self.world.choose((threshold - self.low) / (self.high - self.low))
        if below:
            self.high = threshold
        else:
            self.low = threshold
        return below

    __le__ = __lt__


class _World:
    """One path through all comparisons that could go either way: the first ``path`` of them are given, the others come out true."""

    def __init__(self, path: list[bool]) -> None:
        self.path, self.taken, self.weight = path, 0, Fraction(1)

    def uniform(self) -> _Coin:
        return _Coin(self)

    def choose(self, share: Number) -> bool:
        if self.taken == len(self.path):
            self.path.append(True)
        chosen = self.path[self.taken]
        self.taken += 1
        self.weight = self.weight * (share if chosen else 1 - share)
        return chosen


def outcomes(experiment: Callable[[Coins], T]) -> dict[T, Number]:
    """Every value ``experiment`` can return, with its probability. ValueError beyond a million paths: too large to enumerate."""
    found: dict[T, Number] = {}
    path: list[bool] = []
    for _ in range(MAX_OUTCOMES):
        world = _World(path)
        value = experiment(world)
        found[value] = found.get(value, 0) + world.weight
        while path and not path[-1]:
            path.pop()
        if not path:
            return found
        path[-1] = False
    raise ValueError(f"more than {MAX_OUTCOMES} paths: enumerate a smaller vocabulary, block or length")


def draw(weights: Sequence[Number], u: Any) -> int:
    """The token at which the running sum of ``weights`` first exceeds u of their total: the inverse of their distribution function."""
    total = sum(weights)
    running: Number = 0
    last = 0
    for token, weight in enumerate(weights):
        if weight <= 0:
            continue
        running, last = running + weight, token
        if u < running / total:
            return token
    return last
