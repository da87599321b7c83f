"""A quantised weight as a kernel with integer block products reads it, and the rounding such a kernel adds.

The products of at least 32 neighbours (or of 32 in one of eight lanes) are summed in integers; each such sum is scaled in float32 and
added to the row's. ggml has several kernels per format that differ in how many more they take together (``vec_dot_*`` in
``ggml-cpu/arch/``, ``repack.cpp``, ``tiled/``, ``llamafile/sgemm.cpp``); 32 is what all of them do, so the rule bounds each.
A format with a minimum (``w = d q + m``) has a second sum, of m times the block's activations; Q8_1 keeps that sum of its own, rounded
to float16, so it is no product of the activations: it enters as one more input per block.
Noise: `specs/noise-rules.md` 5.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from oracle import policies, summation
from oracle.artifacts import blocks
from oracle.tensor import Array, Coarse, Tensor
from oracle.weights import Weight

Index = NDArray[np.intp]
SUB = 32  # products summed exactly; also the values that share a minimum, in every format that has one
#: Where a block's quants lie; with them zero, what the block decodes to is its minima.
QUANTS = {"q4_1": slice(4, 20), "q5_1": slice(4, 24), "q4_k": slice(16, 144), "q5_k": slice(16, 176)}
SCALE_ROUNDINGS, JOINING = 3, 2  # of a block's scale; of eight lanes joined in a tree
LANE, LANE_VALUES = 4, 1 << 22  # products of a block that share a vector lane; sums held at once


@dataclass(frozen=True, eq=False)
class BlockDot(Weight):
    """``inner`` read in blocks of 32; where ``summed``, its minima are ``width / 32`` further inputs.

    Those inputs are what a Q8_1 block's own sum differs by from the sum of its values.
    """

    inner: Weight = field(kw_only=True)
    summed: bool = False

    def __post_init__(self) -> None:
        if self.inner.width % SUB:
            raise ValueError(f"{self.name}: rows of {self.inner.width} are no whole number of blocks of {SUB}")

    @classmethod
    def read(cls, w: Weight, policy: str) -> BlockDot:
        """``w`` as the consumer with the (plain, quantised) activation policy reads it."""
        summed = policy.startswith("q8_1")
        width = w.width + (w.width // SUB if summed else 0)
        return cls(w.raw, w.axes, (*w.shape[:-1], width), w.stored, w.name, inner=w, summed=summed)

    def tile(self, start: int, stop: int) -> Array:
        """Rows ``start:stop`` [rows, in], the minima behind the weights where they are inputs."""
        return self._joined(start, stop, self.inner.tile(start, stop))

    def tiles(self, inputs: int = 1) -> Iterator[tuple[int, int, Array]]:
        for start, stop, tile in self.inner.tiles(inputs):
            yield start, stop, self._joined(start, stop, tile)

    def _joined(self, start: int, stop: int, tile: Array) -> Array:
        return np.concatenate([tile, self.minima(start, stop)], 1) if self.summed else tile

    def minima(self, start: int, stop: int) -> Array:
        """What is added to every value of a group of 32 whatever its quants: [rows, width / 32]; zero for formats without a minimum."""
        if self.stored not in QUANTS:
            return np.zeros((stop - start, self.inner.width // SUB))
        size = blocks.format_of(self.stored).bytes
        raw = self.raw[start:stop].reshape(-1, size).copy()
        raw[:, QUANTS[self.stored]] = 0
        return blocks.decode(raw.reshape(stop - start, -1), self.stored, self.inner.width)[:, ::SUB]

    def sums(self, x: Array, start: int, stop: int, group: int = SUB) -> tuple[Array, Array]:
        """Sums of x [row, in] with rows ``start:stop``: the scaled quants by ``group`` of them, the minima by block, [part, row, out]."""
        minima, tile = self.minima(start, stop), self.inner.tile(start, stop)
        tile -= np.repeat(minima, SUB, 1)
        values = x[:, : self.inner.width]
        totals = values.reshape(len(x), -1, SUB).sum(-1)
        totals = totals + x[:, self.inner.width :] if self.summed else totals
        return _products(values, tile, group), _products(totals, minima, 1)

    def rounded(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """x [row, in] times the weight as a block kernel computes it: exact block sums, rounded and added in float32, [row, out]."""
        out = np.empty((len(x), self.row_count), np.float32)
        for start, stop in self.inner.spans(len(x)):
            parts = (np.add.accumulate(p.astype(np.float32))[-1] for p in self.sums(x.astype(np.float64), start, stop))
            out[:, start:stop] = sum(parts)
        return out

    def energy(self, x: Array) -> Array:
        """Σ over the kernel's float32 roundings of their squared partial sums, in the mean over orders: [row, out].

        A vector kernel keeps eight lanes, each of four neighbours in every block, and joins them at the end; what cancels between lanes
        they still carried. The larger of its energy and that of a kernel without lanes counts.
        """
        out = np.empty((len(x), self.row_count))
        a, b = summation.energy("sequential", self.inner.width // SUB)
        step = max(LANE * LANE_VALUES // max(self.inner.width * len(x), 1), 1)
        for start in range(0, self.row_count, step):
            stop = min(start + step, self.row_count)
            lanes, minima = self.sums(x, start, stop, LANE)
            by_lane = lanes.reshape(-1, SUB // LANE, *lanes.shape[1:])
            scaled = by_lane.sum(1)
            squares = np.maximum(np.square(scaled).sum(0), np.square(lanes).sum(0))
            totals = np.maximum(np.square(scaled.sum(0)), np.square(by_lane.sum(0)).sum(0))
            least = np.square(minima).sum(0)
            out[:, start:stop] = (a + JOINING) * totals + a * np.square(minima.sum(0)) + (b + SCALE_ROUNDINGS) * (squares + least)
        return out

    def suspects(self, x: Array, rows: Index, out: Index) -> Array:
        """Block sums [suspect, 2 blocks] of the results (row, out): the scaled quants first, then the minima."""
        parts = [self.sums(x[r : r + 1], o, o + 1) for r, o in zip(rows, out, strict=True)]
        return np.array([np.concatenate([scaled[:, 0, 0], minima[:, 0, 0]]) for scaled, minima in parts])

    def reach(self, x: Array, rows: Index, out: Index) -> Array:
        """Σ |scaled quant · x| + Σ |minimum · sum| of the results: what the deterministic bound grows with."""
        found = []
        for r, o in zip(rows, out, strict=True):
            minima, values = self.minima(o, o + 1)[0], x[r, : self.inner.width]
            scaled = self.inner.tile(o, o + 1)[0] - np.repeat(minima, SUB)
            found.append(np.abs(scaled) @ np.abs(values) + np.abs(minima) @ np.abs(values).reshape(-1, SUB).sum(-1))
        return np.array(found)


def _products(x: Array, w: Array, size: int) -> Array:
    """Products of x [row, k] and w [out, k], each sum over one chunk of ``size``: [chunk, row, out]."""
    return np.asarray(np.moveaxis(x.reshape(len(x), -1, size), 1, 0) @ np.moveaxis(w.reshape(len(w), -1, size), 1, 0).transpose(0, 2, 1))


def exact_energy(sums: Array) -> Array:
    """Σ of the squared partial sums of block sums [suspect, 2 blocks], each half a chain of its own, and of the scales' roundings."""
    halves = sums.reshape(len(sums), 2, -1)
    chains = np.square(np.cumsum(halves, -1)).sum((-1, -2))
    return np.asarray(chains + SCALE_ROUNDINGS * np.square(sums).sum(-1))


def seen(policy: str, x: Tensor, w: Weight) -> tuple[Tensor, Weight]:
    """Input and weight as the product's kernel sees them: x rounded by the (plain) policy, what it changed and may flip as variance."""
    if not policy.startswith("q8"):
        return narrowed(policy, x), w
    flat = x.data.reshape(len(x.data), -1).astype(np.float64)
    rounded = policies.apply(policy, flat)
    variance = None if x.exact else policies.flips(policy, flat, x.variance().reshape(flat.shape))
    if policy.startswith("q8_1"):
        own = policies.block_sums(policy, flat)
        left = own - rounded.reshape(len(flat), -1, SUB).sum(-1)
        rounded = np.concatenate([rounded, left], 1)
        variance = None if variance is None else np.concatenate([variance, np.square(policies.step("f16", own)) / 6], 1)
    return Tensor(rounded.astype(x.data.dtype), (x.axes[0], "in"), 0.0 if variance is None else variance), BlockDot.read(w, policy)


def narrowed(policy: str, x: Tensor) -> Tensor:
    """A float policy on a tensor of any shape, with what it may flip as variance; what has been narrowed stays as it is."""
    if x.coarse is not None and x.coarse.policy == policy:
        return x if x.coarse.whole else narrowed(policy, x.coarse.before)
    data = x.data.astype(np.float64)
    rounded = policies.apply(policy, data).astype(x.data.dtype)
    if x.exact:
        return Tensor(rounded, x.axes)
    return Tensor(rounded, x.axes, policies.flips(policy, data, x.variance()), coarse=Coarse(policy, x))
