"""Speed of a library's products on its device, weights uploaded once: in bytes of weight per second beside a copy within the device, and
beside cuBLAS where that is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import native
from native.device import OnDevice, copy, linear
from oracle.artifacts import blocks
from parity import gpu_peers
from parity.candidates import LIBRARIES

if TYPE_CHECKING:
    from native import Context, Stored

# The drafters' own sizes: (format, inputs, outputs).
PRODUCTS = (("q4_k", 6656, 19968), ("q5_k", 6656, 19968), ("q6_k", 6656, 19968), ("q8_0", 2560, 7680), ("bf16", 2560, 7680))
ROWS = (1, 7, 16)
COPIED = 1 << 28


def benchmark(candidate: str, products: Sequence[tuple[str, int, int]] = PRODUCTS, count: int = 50) -> Iterator[dict[str, Any]]:
    """A copy within the device, and every product in each way that the library forms it: by lanes, and of 16-bit weights by matrix units.

    One result each, ``count`` calls a round: microseconds, bytes of weight and floating-point operations per second, the bytes as a part
    of what the copy reads, and the time of cuBLAS on the same weights as bf16 (activations too) over ours.
    """
    library = native.open_library(candidate)
    about, blas, missing = peer(library)
    yield {"about": about, "missing": missing}
    weights = [_random_weight(seed, *product) for seed, product in enumerate(products)]
    with library.context() as context:
        copied = copy_rate(context, count)
        yield {"product": "copy within the device", "GB/s": copied / 1e9}
        lanes = Bench(context, copied, blas, count)
        for weight in weights:
            yield from lanes.results(weight)
    for units in _matrix_units(library):
        with library.context(products=units) as context:
            other = replace(lanes, context=context, units=units)
            for weight in weights:
                if weight.dtype in ("bf16", "f16"):
                    yield from other.results(weight)
    if blas:
        blas.close()


@dataclass(frozen=True)
class Bench:
    """What a product is measured with: a context, the rate of a copy [bytes/s], cuBLAS or None; ``units``: the context's matrix units."""

    context: Context
    copied: float
    blas: gpu_peers.CuBLAS | None
    count: int
    units: str = ""

    def results(self, weight: Stored) -> Iterator[dict[str, Any]]:
        """One result for every M of `ROWS`."""
        w = OnDevice(self.context, weight)
        dense = native.Stored.of(self.context.convert(self.context.dequant(weight), "bf16"), "bf16") if self.blas else None
        wide = OnDevice(self.context, dense) if dense else None
        for rows in ROWS:
            yield self._result(weight, w, wide, rows)
        for held in (w, wide):
            if held:
                held.release()

    def _result(self, weight: Stored, w: OnDevice, wide: OnDevice | None, rows: int) -> dict[str, Any]:
        outputs, width = weight.shape
        values = np.random.default_rng(rows).standard_normal((rows, width)).astype(np.float32)
        x, y = OnDevice(self.context, values), OnDevice(self.context, np.zeros((rows, outputs), np.float32))
        each = seconds_each(partial(linear, self.context, x, w, y), y.download, self.count)
        rate = weight.raw.nbytes / each
        found = {"product": f"{weight.dtype} {outputs}x{width} M={rows} {self.units}".rstrip(), "us": each * 1e6, "GB/s": rate / 1e9}
        found |= {"TFLOP/s": 2e-12 * rows * width * outputs / each, "of copy": rate / (self.copied / 2)}
        if self.blas and wide:
            theirs = OnDevice(self.context, native.Stored.of(self.context.convert(values, "bf16"), "bf16"))
            found["cuBLAS/ours"] = seconds_each(partial(self.blas.linear, theirs, wide, y), self.blas.wait, self.count) / each
            theirs.release()
        x.release()
        y.release()
        return found


def seconds_each(issue: Callable[[], None], wait: Callable[[], Any], count: int = 50, rounds: int = 5) -> float:
    """Least wall-clock seconds of one of ``count`` issued calls, over some rounds after a warm-up."""
    best = float("inf")
    for turn in range(rounds + 1):
        wait()
        began = time.perf_counter()
        for _ in range(count):
            issue()
        wait()
        if turn:
            best = min(best, (time.perf_counter() - began) / count)
    return best


def peer(library: native.Library) -> tuple[str, gpu_peers.CuBLAS | None, list[str]]:
    """What the library runs on, the device's own product of matrices, and what is missing of it: cuBLAS for CUDA, nothing for Metal."""
    about = f"{library.info.name} {library.info.version}"
    if not library.info.name.startswith("dlab-cuda"):
        return about, None, [f"{library.info.name}: products are compared with a copy alone"]
    try:
        driver = gpu_peers.Driver()
        about = f"{about}, {driver.about()}"
        return about, gpu_peers.CuBLAS(driver), []
    except gpu_peers.PeerError as error:
        return about, None, [f"{error}: no figures of cuBLAS"]


def copy_rate(context: Context, count: int = 50) -> float:
    """Bytes read and written per second by the library's copy within device memory, 256 MB at a time."""
    a, b, last = (OnDevice(context, np.zeros((1, n), np.float32)) for n in (COPIED // 4, COPIED // 4, 1))
    each = seconds_each(partial(copy, context, a, b), last.download, count)
    for held in (a, b, last):
        held.release()
    return 2.0 * COPIED / each


def figures(result: dict[str, Any]) -> str:
    """One line of the benchmark."""
    if "about" in result:
        return "\n".join([result["about"], *result["missing"]])
    return f"{result['product']:40s} " + "  ".join(f"{value:9.3g} {key}" for key, value in result.items() if key != "product")


def _random_weight(seed: int, stored: str, width: int, outputs: int) -> Stored:
    raw = blocks.random_blocks(np.random.default_rng(seed), stored, outputs, width, 0.02)
    return native.Stored(raw, stored, (outputs, width))


def _matrix_units(library: native.Library) -> list[str]:
    """The library's other ways to form products, as candidates are named."""
    name = library.info.name.removeprefix("dlab-")
    return [spec.partition("+")[2] for spec in LIBRARIES if spec.startswith(f"{name}+")]
