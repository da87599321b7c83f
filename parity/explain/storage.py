"""Storage and accumulation: values right but for the dtype they were rounded to, cut to, summed in, or should be read as."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle import summation
from oracle.floats import BF16, F16, F32, FloatFormat
from oracle.tensor import Array, Tensor
from parity.explain.base import Suspect

Found = tuple[str, str, float]
SHARE, SAMPLE, MAX_STEPS = 0.99, 192, 16384
ORDERS = ("sequential", "pairwise", "blocked:256", "blocked:64", "blocked:32", "lanes:8", "lanes:4")


def explanations(s: Suspect, order: str = "sequential") -> list[Found]:
    """(kind, text, what is left as a share of 1) of the oracle's own value stored, read or summed otherwise."""
    with np.errstate(all="ignore"):
        found = list(_stored(s)) + list(_reinterpreted(s))
        return found or list(_accumulated(s, order))


def _stored(s: Suspect) -> Iterator[Found]:
    region = s.region
    c, y = s.c[region], s.y.data[region]
    for store in (BF16, F16):
        if store.holds(c).all() and not store.holds(y).all():
            for text, rounded in (("rounded", store.round(y)), ("cut", store.truncate(y))):
                same = float((rounded == c).mean())
                if same > SHARE:
                    declare = f"{store.name}{',truncate=1' if text == 'cut' else ''}"
                    yield _named(s, "storage"), f"stored in {store.name} ({text}), not as declared (--arithmetic {declare})", 1 - same
                    return


def _named(s: Suspect, kind: str) -> str:
    """The catalogue names what happens to the cells of a cache by itself."""
    return {"storage": "cells.dtype", "values.words": "cells.words"}[kind] if s.stage.op.name == "cells" else kind


def _words(store: FloatFormat) -> Callable[[Array], NDArray[Any]]:
    """Values as the 16-bit words of a format."""
    if store is F16:
        return lambda y: np.asarray(y, np.float64).astype(np.float16).view(np.uint16)
    return lambda y: (np.ascontiguousarray(BF16.round(y), np.float32).view(np.uint32) >> 16).astype(np.uint16)


def _as_bf16(words: NDArray[Any]) -> Array:
    return (words.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def reinterpretations() -> dict[str, Callable[[Array], Array]]:
    """Text -> what right values look like when their bits are read so; elementwise, or over neighbours of the last axis."""
    half, brain = _words(F16), _words(BF16)

    def single(y: Array) -> NDArray[Any]:
        return np.ascontiguousarray(y, np.float32).view(np.uint32)

    def floats(words: NDArray[Any]) -> Array:
        return np.ascontiguousarray(words.astype(np.uint32)).view(np.float32).astype(np.float64)

    return {
        "f16 words widened as bf16": lambda y: _as_bf16(half(y)),
        "bf16 words read as f16": lambda y: brain(y).view(np.float16).astype(np.float64),
        "f32 in the other byte order": lambda y: floats(single(y).byteswap()),
        "f32 with its 16-bit halves swapped": lambda y: floats((single(y) >> 16) | (single(y) << 16)),
        "the lower halves of f32 read as bf16": lambda y: _as_bf16((single(y) & 0xFFFF).astype(np.uint16)),
        "f32 bits read as an integer": lambda y: single(y).view(np.int32).astype(np.float64),
        "f16 words in the other byte order": lambda y: half(y).byteswap().view(np.float16).astype(np.float64),
        "bf16 words in the other byte order": lambda y: _as_bf16(brain(y).byteswap()),
        "f16 words read as integers": lambda y: half(y).view(np.int16).astype(np.float64),
        "bf16 words read as integers": lambda y: brain(y).view(np.int16).astype(np.float64),
    }


def reread(s: Suspect) -> Iterator[tuple[str, float]]:
    """(text, share of the elements that agree) of the ways to misread bits that account for nearly all of the region.

    A word may differ by the rounding that came before it, so neighbours in the order of the words count as equal. Where all values lie on
    a coarse grid, so does what was read.
    """
    region = s.region
    c, y = s.c[region], s.y.data[region]
    if c.size < 8:
        return
    sigma = np.sqrt(s.y.variance())[region] * 4 + np.abs(y) * 2.0**-24
    grid = next((store for store in (BF16, F16, F32) if store.holds(c).all()), None)
    for text, read in reinterpretations().items():
        low, middle, high = (read(at) if grid is None else grid.round(read(at)) for at in (y - sigma, y, y + sigma))
        same = (c == low) | (c == middle) | (c == high) | (np.isnan(c) & np.isnan(middle))
        if same.mean() > 0.9 and not np.array_equal(middle, y):
            yield text, float(same.mean())


def _reinterpreted(s: Suspect) -> Iterator[Found]:
    for text, share in reread(s):
        if share > SHARE:
            yield _named(s, "values.words"), f"bits reinterpreted: {text}", 1 - share


def _accumulated(s: Suspect, declared: str) -> Iterator[Found]:
    """A linear product whose sums were kept in fewer bits, or cut instead of rounded: summed again for a sample of the elements."""
    if s.stage.op.name != "linear" or (len(s.stage.args) > 2 and s.stage.args[2] is not None):
        return
    x, w = s.stage.args[:2]
    if w.width > MAX_STEPS or not isinstance(x, Tensor):
        return
    places = np.argwhere(s.region.reshape(len(s.c), -1))
    places = places[:: max(len(places) // SAMPLE, 1)][:SAMPLE]
    flat = x.data.reshape(len(x.data), -1)
    products = flat[places[:, 0]] * np.concatenate([w.tile(int(i), int(i) + 1) for i in places[:, 1]])
    c = s.c.reshape(len(s.c), -1)[places[:, 0], places[:, 1]]
    for store, rounded, name in (
        (F16, F16.round, "f16 accumulators"),
        (BF16, BF16.round, "bf16 accumulators"),
        (F32, F32.truncate, "f32 accumulators that cut"),
    ):
        if store is not F32 and not store.holds(c).all():
            continue
        for order in dict.fromkeys((declared, *ORDERS)):
            for fused in (False, True):
                same = float((_summed(products if fused else rounded(products), order, rounded) == c).mean())
                if same > 0.9:
                    yield (
                        "linear.accumulator",
                        f"{name}, summed {order}{' with FMA' if fused else ''} (bit for bit in {same:.0%} of a sample)",
                        1 - same,
                    )
                    return
    yield from _sized(products, c)


def _summed(products: Array, order: str, rounded: Callable[[Array], Array]) -> Array:
    """Sum along the last axis, every addition rounded, in the order."""
    kind, n = summation.parse(order)
    k = products.shape[-1]
    if kind == "pairwise":
        level = products
        while level.shape[-1] > 1:
            if level.shape[-1] % 2:
                level = np.concatenate([level, np.zeros_like(level[..., :1])], -1)
            level = rounded(level[..., 0::2] + level[..., 1::2])
        return np.asarray(level[..., 0])

    def chain(p: Array) -> Array:
        total = rounded(p[..., 0])
        for i in range(1, p.shape[-1]):
            total = rounded(total + p[..., i])
        return total

    if kind == "lanes":
        return _summed(np.stack([chain(products[..., i]) for i in summation.lane_indices(order, k)], -1), "pairwise", rounded)
    if kind == "blocked":
        return chain(np.stack([chain(products[..., i : i + n]) for i in range(0, k, n)], -1))
    return chain(products)


def _sized(products: Array, c: Array) -> Iterator[Found]:
    """Errors as large as narrow accumulators make, in an order not known, every value on the format's grid."""
    error = c - products.sum(-1)
    for store in (F16, BF16):
        if not store.holds(c).all():
            continue
        energy = np.square(summation.partial_sums(products, "pairwise")).sum(-1) + np.square(products).sum(-1)
        longest = np.square(summation.partial_sums(products, "sequential")).sum(-1) + np.square(products).sum(-1)
        low, high = (store.u * np.sqrt(e.mean() / 3) for e in (energy, longest))
        size = float(np.sqrt(np.square(error).mean()))
        rounding = float(np.sqrt(np.square(store.ulp(c)).mean() / 12))
        if size > 2 * rounding and 0.3 * low <= size <= 2 * high:
            yield (
                "linear.accumulator",
                f"{store.name} accumulators: errors {size / rounding:.2g} times one rounding, as such sums make in some order",
                0.5,
            )
            return
