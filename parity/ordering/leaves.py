"""Addends as inputs of a product: which element of x carries which leaf, under weights that are small exact numbers.

Where a kernel rounds blocks of x to a common scale (Q8_0, Q8_1, Q8_K), a small number beside a large one is lost before anything is added.
There a leaf is a whole block: its first element, of weight 0, sets the scale, its second carries the value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oracle.artifacts import blocks
from oracle.tensor import Array
from oracle.weights import Weight
from parity.ordering.kernels import Kernel

BLOCKS = (16, 32, 64, 128, 256, 512, 1024)
SCALE_QUANTS = 127
MARKED = {"f32": 1 + 2.0**-23, "f16": 1 + 2.0**-10, "bf16": 1 + 2.0**-7}
"""A weight whose products need more bits than the formats have; 3 in block formats."""
_HALF = np.float16(1).view(np.uint16).tobytes()
_NO_MINIMUM = np.float16(0).view(np.uint16).tobytes()
_SIX_BIT_ONES = bytes([1] * 4 + [0] * 4 + [1] * 4)


def exact_weight(values: NDArray[np.int_] | Array, stored: str) -> Weight:
    """``values`` [N, K] as a weight that decodes to them exactly: any for float formats, whole numbers 0 … 7 for block formats."""
    array = np.asarray(values, np.float64)
    if stored in MARKED:
        return Weight.of(array, ("out", "in"), stored)
    size = blocks.format_of(stored).values
    q = array.astype(np.uint8).reshape(-1, size)
    raw = np.ascontiguousarray(_packed(q, stored)).reshape(len(array), -1)
    w = Weight(raw, ("out", "in"), array.shape, stored, "exact")
    assert (w.array() == array).all(), stored
    return w


def _packed(q: NDArray[np.uint8], stored: str) -> NDArray[np.uint8]:
    """Blocks [block, bytes] of quants [block, value], every scale 1 and every minimum 0 (layouts: `specs/native-backends.md` 2.2)."""
    n = len(q)

    def fixed(text: bytes) -> NDArray[np.uint8]:
        return np.repeat(np.frombuffer(text, np.uint8)[None], n, 0)

    if stored == "q8_0":
        return np.concatenate([fixed(_HALF), q], 1)
    if stored in ("q4_0", "q4_1", "q5_0"):
        nibbles = q + 8 if stored == "q4_0" else q
        head = {"q4_0": _HALF, "q4_1": _HALF + _NO_MINIMUM, "q5_0": _HALF + b"\xff" * 4}[stored]
        return np.concatenate([fixed(head), nibbles[:, :16] | nibbles[:, 16:] << 4], 1)
    if stored in ("q4_k", "q5_k"):
        pairs = q.reshape(n, 4, 2, 32)
        low = (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(n, 128)
        return np.concatenate([fixed(_HALF + _NO_MINIMUM + _SIX_BIT_ONES + (b"" if stored == "q4_k" else bytes(32))), low], 1)
    if stored == "q6_k":
        quarters = q.reshape(n, 2, 2, 2, 32)
        low = (quarters[:, :, 0] | quarters[:, :, 1] << 4).reshape(n, 128)
        return np.concatenate([low, fixed(b"\xaa" * 64 + bytes([1] * 16) + _HALF)], 1)
    raise ValueError(f"weights stored as {stored!r} cannot be made exact")


def random_weight(outputs: int, width: int, stored: str, rng: np.random.Generator) -> Weight:
    """Normal values encoded as ``stored``, [outputs, width]."""
    return Weight.of(rng.standard_normal((outputs, width)), ("out", "in"), stored)


@dataclass(frozen=True)
class Place:
    """Where probes go: ``m`` rows at once, of which ``rows`` carry them, read in output feature ``column``."""

    m: int
    rows: tuple[int, ...]
    column: int


class Leaves:
    """The leaves of a kernel's sums of ``width`` products with ``outputs`` features. ``block``: elements per leaf."""

    def __init__(self, kernel: Kernel, stored: str, width: int, outputs: int) -> None:
        self.kernel, self.stored, self.width, self.outputs = kernel, stored, width, outputs
        self.block = self._block()
        self.terms = -(-width // self.block)
        pattern = np.ones(width)
        if self.block > 1:
            pattern[:: self.block] = 0
        self._plain = exact_weight(np.repeat(pattern[None], outputs, 0), stored)
        self._marked: dict[tuple[int, int], Weight] = {}

    @property
    def marked_value(self) -> float:
        return MARKED.get(self.stored, 3.0)

    def _one_hot(self, at: int) -> Weight:
        pattern = np.zeros((self.outputs, self.width))
        pattern[:, at] = 1
        return exact_weight(pattern, self.stored)

    def _block(self) -> int:
        """Elements of x that share a scale: 1, a power of two from 16, or the whole row."""
        if self._passes({0: 1.0, 1: 2.0**-12}, at=1):
            return 1
        # The small value in a block of its own, with a scale that any format of scales holds.
        sizes = [size for size in BLOCKS if size + 1 < self.width]
        return next((n for n in sizes if self._passes({0: 127.0, n: 127 * 2.0**-12, n + 1: 2.0**-6}, at=n + 1)), self.width)

    def _passes(self, elements: dict[int, float], at: int) -> bool:
        """Whether the element ``at`` of x, alone of weight 1, passes unchanged beside the others."""
        x = np.zeros((1, self.width), np.float32)
        x[0, list(elements)] = list(elements.values())
        return bool((self.kernel(x, self._one_hot(at)) == elements[at]).all())

    def marked(self, bit: int, value: int) -> Weight:
        """Weights of `marked_value` for the leaves with ``value`` in ``bit`` of their number, 1 for the others."""
        if (bit, value) not in self._marked:
            chosen = (np.arange(self.width) >> bit & 1) == value
            row = np.where(chosen, self.marked_value, 1.0)
            self._marked[bit, value] = exact_weight(np.repeat(row[None], self.outputs, 0), self.stored)
        return self._marked[bit, value]

    def inputs(self, values: Array) -> NDArray[np.float32]:
        """x [probe, width] with the leaves' ``values`` [probe, leaf], which have at most seven significant bits where a leaf is a block."""
        x = np.zeros((len(values), self.width), np.float32)
        if self.block == 1:
            x[:] = values
            return x
        mantissa, exponent = np.frexp(values)
        scales = np.where(values == 0, 0.0, SCALE_QUANTS * np.ldexp(1.0, exponent - 7))
        assert (np.rint(mantissa * 128) == mantissa * 128).all(), "a leaf that is a block carries seven bits"
        x[:, :: self.block] = scales
        second = x[:, 1 :: self.block]
        second[:] = values[:, : second.shape[1]]
        return x

    def ask(self, values: Array, place: Place, weight: Weight | None = None) -> Array:
        """Sums [probe] of the leaves' ``values`` [probe, leaf] at the place."""
        out = np.empty(len(values))
        w = self._plain if weight is None else weight
        step = len(place.rows)
        for start in range(0, len(values), step):
            part = self.inputs(values[start : start + step])
            x = np.zeros((place.m, self.width), np.float32)
            x[list(place.rows[: len(part)])] = part
            out[start : start + len(part)] = self.kernel(x, w)[list(place.rows[: len(part)]), place.column]
        return out
