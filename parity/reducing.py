"""Two records reduced to where and how far they differ: a few megabytes at a time, compiled where the CPU library is, else in NumPy."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oracle.floats import FloatFormat
from parity.errors import UsageError

if TYPE_CHECKING:
    from dumps import StageRecord
    from native.reduce import Reduced

CHUNK = 4 << 20
SMALL = 1 << 16
Reduce = Callable[[NDArray[Any], str, NDArray[Any], str, FloatFormat], "Reduced"]


def compiled(a: NDArray[Any], kind_a: str, b: NDArray[Any], kind_b: str, coarse: FloatFormat) -> Reduced:
    """One chunk by the CPU library."""
    from native.reduce import difference

    return difference(np.ascontiguousarray(a), kind_a, np.ascontiguousarray(b), kind_b, coarse.p, coarse.emin)


def in_numpy(a: NDArray[Any], kind_a: str, b: NDArray[Any], kind_b: str, coarse: FloatFormat) -> Reduced:
    """The same in NumPy: the fallback, and what the compiled pass is checked against. i64 is compared as whole numbers."""
    from dumps.dtypes import widen
    from native.reduce import Reduced

    x, y = (np.asarray(v.astype(np.float64) if kind == "i64" else widen(v, kind)) for v, kind in ((a, kind_a), (b, kind_b)))
    if kind_a == kind_b == "i64":
        high, low = np.maximum(a, b), np.minimum(a, b)
        differ = a != b
        all_apart = (high.view(np.uint64) - low.view(np.uint64)).astype(np.float64)
    else:
        differ = ~((x == y) | (np.isnan(x) & np.isnan(y)))
        with np.errstate(invalid="ignore", over="ignore"):
            all_apart = np.abs(x - y)
    apart = all_apart[differ]
    finite = np.isfinite(apart)
    with np.errstate(over="ignore"):
        ulps = (apart[finite] / coarse.ulp(np.maximum(np.abs(x), np.abs(y))[differ][finite])).max(initial=0.0)
    rows = differ.reshape(len(x), -1).any(1)
    return Reduced(rows, int(differ.sum()), float(apart[finite].max(initial=0.0)), float(ulps))


def reducer() -> Reduce:
    """The compiled pass, or NumPy's where the library is not built."""
    from native import NativeError, reduce

    try:
        reduce.read(np.zeros(1))
    except (NativeError, OSError, AttributeError):
        return in_numpy
    return compiled


def reduced(a: StageRecord, b: StageRecord, coarse: FloatFormat, reduce: Reduce | None = None) -> Iterator[Reduced]:
    """The chunks of two records with the same rows, in order; ``coarse``: the format whose spacings are counted. Large records are
    spread over the processors. `UsageError` for an i64 that has no exact float64 where the other side is of another dtype."""
    chunks = list(_chunks(a, b))
    chosen = reduce or reducer()

    def one(chunk: tuple[NDArray[Any], NDArray[Any]]) -> Reduced:
        return chosen(chunk[0], a.dtype, chunk[1], b.dtype, coarse)

    if a.dtype != b.dtype and "i64" in (a.dtype, b.dtype):
        for x, y in chunks:
            _exact(a.stage, x if a.dtype == "i64" else y)
    if sum(x.nbytes for x, _ in chunks) < SMALL or len(chunks) < 2:
        yield from map(one, chunks)
        return
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(one, chunks)


def _exact(stage: str, values: NDArray[Any]) -> None:
    if ((values > 2**53) | (values < -(2**53))).any():
        raise UsageError(f"{stage}: an i64 value beyond 2^53 cannot be compared with another dtype; record both as i64")


def _chunks(a: StageRecord, b: StageRecord) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Rows of both side by side, cut where either has a piece's end and at `CHUNK` bytes; memory-mapped, not read."""
    sides = [[piece.array(verify=False) for piece in r.pieces] for r in (a, b)]
    starts = [np.cumsum([0, *(len(array) for array in arrays)]) for arrays in sides]
    most = max(array[:1].nbytes for arrays in sides for array in arrays)
    step = max(CHUNK // max(most, 1), 1)
    cuts = sorted({*map(int, starts[0]), *map(int, starts[1]), *range(0, int(starts[0][-1]), step)})
    for first, last in itertools.pairwise(cuts):
        pair = []
        for arrays, begins in zip(sides, starts, strict=True):
            piece = int(np.searchsorted(begins, first, "right")) - 1
            pair.append(arrays[piece][first - int(begins[piece]) : last - int(begins[piece])])
        yield pair[0], pair[1]
