"""MT19937 as ``std::mt19937`` seeds and draws it, bit for bit, with the two uniform numbers that Muser makes of its draws.

Source: `specs/muse-glimmer.md` 7.1. Libraries' own distributions over this stream are in `libstdcxx`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

WORDS, SHIFT = 624, 397
MATRIX, UPPER, LOWER, MASK = 0x9908B0DF, 0x80000000, 0x7FFFFFFF, 0xFFFFFFFF


@dataclass(frozen=True)
class Position:
    """Where a stream stands: its words, the next of them, and how many draws were made."""

    words: tuple[int, ...]
    index: int
    drawn: int


class MT19937:
    """The stream of one 32-bit seed. ``drawn`` counts the 32-bit draws made, so that the order of draws can be checked.

    ValueError for a seed that 32 bits do not hold.
    """

    def __init__(self, seed: int) -> None:
        if not 0 <= seed <= MASK:
            raise ValueError(f"seed {seed}: a 32-bit stream takes 0 to {MASK}")
        words = [seed]
        for i in range(1, WORDS):
            words.append((1812433253 * (words[-1] ^ (words[-1] >> 30)) + i) & MASK)
        self._words, self._index, self.drawn = words, WORDS, 0

    def u32(self) -> int:
        """The next draw."""
        if self._index == WORDS:
            self._twist()
        y = self._words[self._index]
        self._index += 1
        self.drawn += 1
        y ^= y >> 11
        y ^= (y << 7) & 0x9D2C5680
        y ^= (y << 15) & 0xEFC60000
        return y ^ (y >> 18)

    def uniform_f32(self) -> np.float32:
        """One draw u: float32(u / 2³²), which rounds to 1 itself from u = 4294967168 on."""
        return np.float32(self.u32() * 2.0**-32)

    def uniform_f64(self) -> float:
        """Two draws, the low word first: (low + high · 2³²) / 2⁶⁴ in double."""
        low, high = self.u32(), self.u32()
        return (float(low) + float(high) * 2.0**32) * 2.0**-64

    def uniform(self) -> float:
        """`uniform_f64`, the coin of the verification rules."""
        return self.uniform_f64()

    def position(self) -> Position:
        return Position(tuple(self._words), self._index, self.drawn)

    def rewind(self, to: Position) -> None:
        """Stand where ``position`` was taken: a failed round gives its draws back."""
        self._words, self._index, self.drawn = list(to.words), to.index, to.drawn

    def _twist(self) -> None:
        w = self._words
        for i in range(WORDS):
            y = (w[i] & UPPER) | (w[(i + 1) % WORDS] & LOWER)
            w[i] = w[(i + SHIFT) % WORDS] ^ (y >> 1) ^ (MATRIX if y & 1 else 0)
        self._index = 0
