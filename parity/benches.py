"""Benchmarks as ratios to a limit measured in the same process and run (DESIGN section 11)."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROUNDS = 7


@dataclass(frozen=True)
class Result:
    """One measurement: ``ratio`` = ours / reference, beyond ``limit`` is a failure; ``what`` says what the numbers are."""

    name: str
    ours: float
    reference: float
    limit: float
    unit: str
    what: str

    @property
    def ratio(self) -> float:
        return self.ours / self.reference

    @property
    def passed(self) -> bool:
        return self.ratio <= self.limit

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": self.ratio, "passed": self.passed}


def interleaved(a: Callable[[], Any], b: Callable[[], Any], rounds: int = ROUNDS) -> tuple[float, float]:
    """Smallest process CPU seconds of each, taken in turn, after one warm-up: what a shared machine disturbs least."""
    best = [float("inf"), float("inf")]
    for turn in range(rounds + 1):
        for i, f in enumerate((a, b)):
            began = time.process_time()
            f()
            spent = time.process_time() - began
            if turn:
                best[i] = min(best[i], spent)
    return best[0], best[1]


@contextmanager
def spinning_threads_off() -> Iterator[None]:
    """BLAS on one thread: threads of OpenBLAS that wait by spinning would be counted as its work."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, user_api="blas"):
        yield


def linear(stored: str, rows: int, width: int, outputs: int, limit: float, seed: int = 0) -> Result:
    """The CPU library's product from stored blocks against NumPy's float32 matmul on weights already dequantised."""
    import native
    from oracle.artifacts import blocks

    rng = np.random.default_rng(seed)
    raw = blocks.random_blocks(rng, stored, outputs, width, 0.02)
    w = native.Stored(raw, stored, (outputs, width))
    dense = np.empty((outputs, width), np.float32)
    for start in range(0, outputs, 256):
        dense[start : start + 256] = blocks.decode(raw[start : start + 256], stored, width)
    x = rng.standard_normal((rows, width)).astype(np.float32)
    with native.open_library("cpu").context(1) as context, spinning_threads_off():
        ours, reference = interleaved(lambda: context.linear(x, w), lambda: x @ dense.T)
    what = f"CPU library, M={rows}, K={width}, N={outputs}, against NumPy float32 matmul on dequantised weights, one thread each"
    return Result(f"linear {stored} M={rows}", ours * 1e3, reference * 1e3, limit, "CPU ms", what)


class Resident(threading.Thread):
    """Watches this process's anonymous resident memory; ``peak`` in bytes."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.02):
            self.peak = max(self.peak, anonymous())

    def __enter__(self) -> Resident:
        self.peak = anonymous()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.join()
        self.peak = max(self.peak, anonymous())


def anonymous() -> int:
    """RssAnon of this process in bytes (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no RssAnon: this benchmark needs Linux")


def release_drafter(folder: Path, context_rows: int = 2112, time_limit: float = 2.0, memory_limit: float = 1.5) -> list[Result]:
    """The Muse drafter at release size through the oracle: peak RssAnon, and time against float64 BLAS on the same products.

    The borrowed head (202,048 x 6,656) is in, as a product of the block's rows; features are seeded.
    """
    from oracle.artifacts import make_artifact
    from parity.making import drafter_case
    from parity.models import open_case_model, run

    if not (folder / "made").exists():
        make_artifact("muse-glimmer", "release", "q4_k", folder, seed=0)
        (folder / "made").touch()
    case = drafter_case(folder / "draft.gguf", folder / "borrowed.gguf", appends=(context_rows,), seed=0)
    model = open_case_model(case)
    from oracle.readings import Exact
    from oracle.tape import passing

    gc.collect()
    with Resident() as memory:
        began = time.perf_counter()
        run(case, Exact(), passing)
        seconds = time.perf_counter() - began
    reference = _blas_seconds(_products(model, context_rows, len(case.steps[-1].array)))
    size = (folder / "draft.gguf").stat().st_size
    about = f"{size / 1e9:.2f} GB file, {context_rows} context rows, {len(case.steps[-1].array)} block rows, borrowed head in"
    return [
        Result("release drafter time", seconds, reference, time_limit, "s", f"oracle against float64 BLAS on the same products; {about}"),
        Result("release drafter memory", memory.peak / 2**30, 1.0, memory_limit, "GiB", f"peak RssAnon of the process; {about}"),
    ]


def diff_of_dumps(folder: Path, megabytes: int = 4096, rounds: int = 3) -> Iterator[Result]:
    """`parity diff` of two dumps of this size each, against reading the same files once with as many threads; peak RssAnon."""
    from dumps import open_dump
    from parity.diffing import difference

    sides: tuple[Callable[[Any, Any], Any], ...] = (difference, _read_dumps)
    for kind, dtype, share in DIFFS:
        named = {"a": 0.0, f"{share:g}-b": share}
        paths = [_dump_of(folder / f"diff-{megabytes}-{dtype}-{name}", megabytes, part, dtype) for name, part in named.items()]
        best = [float("inf"), float("inf")]
        with Resident() as memory:
            for turn in range(rounds + 1):
                a, b = (open_dump(p) for p in paths)
                for i, f in enumerate(sides):
                    began = time.process_time()
                    f(a, b)
                    best[i] = min(best[i], time.process_time() - began) if turn else best[i]
        rate = 2 * megabytes / 1024 / best[1]
        reading = f"reading both once ({rate:.1f} GiB a CPU second), {os.cpu_count()} threads"
        what = f"two dumps of {megabytes} MB, {dtype}, {kind}, against {reading}"
        name = f"diff {kind.split()[0]} {dtype}"
        yield Result(f"{name} time", best[0], best[1], 2.0, "CPU s", what)
        yield Result(f"{name} memory", memory.peak / 2**30, 1.0, 1.0, "GiB", "peak RssAnon of the process")


DIFFS = (
    ("equal but for a row", "f32", 0.0),
    ("differing everywhere", "f32", 1.0),
    ("differing everywhere", "f16", 1.0),
    ("differing everywhere", "bf16", 1.0),
)


def _dump_of(path: Path, megabytes: int, share: float, dtype: str) -> Path:
    """A dump of stages of 64 MB, made once; one row differs between any two, or with ``share`` 1 (nearly) every element."""
    from dumps import DumpWriter
    from dumps.dtypes import STORED
    from oracle.floats import FORMATS

    if not (path / "manifest.jsonl").exists():
        rng = np.random.default_rng(0)
        base = rng.standard_normal((2048, (64 << 20) // 2048 // STORED[dtype].itemsize), np.float32)
        with DumpWriter(path, {}, {}, checksums=False) as writer:
            for i in range(megabytes // 64):
                base[0, 0] = i + ord(path.name[-1])
                moved = base * np.float32(1 + share * (2.0**-20 if dtype == "f32" else 2.0**-4))
                stored = moved if dtype == "f32" else FORMATS[dtype].round(moved).astype(np.float32)
                data = (stored.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bf16" else stored.astype(STORED[dtype])
                writer.put(0, f"target.L{i}.h_mlp", data, dtype=dtype)
    return path


def _read_dumps(a: Any, b: Any) -> None:
    """Reads every byte of both once, in chunks over all processors."""
    from concurrent.futures import ThreadPoolExecutor

    from native.reduce import read

    arrays = [piece.array(verify=False).reshape(-1) for dump in (a, b) for piece in dump.pieces]
    step = 1 << 20
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(read, (array[i : i + step] for array in arrays for i in range(0, array.size, step))))


def _products(model: Any, context_rows: int, rows: int) -> dict[tuple[int, int], int]:
    """(rows, in) -> how many output features are multiplied at that shape."""
    w = model.drafter.weights
    out: dict[tuple[int, int], int] = {}

    def count(m: int, weight: Any) -> None:
        out[m, weight.width] = out.get((m, weight.width), 0) + weight.row_count

    count(context_rows, w.fc)
    for layer in w.layers:
        for weight in (layer.k, layer.v):
            count(context_rows, weight)
            count(rows, weight)
        for weight in (layer.q, layer.o, layer.gate, layer.up, layer.down):
            count(rows, weight)
    count(rows, model.head)
    return out


def _blas_seconds(products: dict[tuple[int, int], int]) -> float:
    """Time of the products alone in float64 BLAS: weights ready in memory, a slab of features at a time."""
    rng = np.random.default_rng(0)
    total = 0.0
    for (rows, width), outputs in products.items():
        slab = min(outputs, max(64, (1 << 23) // width))
        x, w = rng.standard_normal((rows, width)), rng.standard_normal((slab, width))
        x @ w.T
        repeats = -(-outputs // slab)
        began = time.perf_counter()
        for _ in range(repeats):
            x @ w.T
        total += (time.perf_counter() - began) * outputs / (repeats * slab)
    return total


def all_benches(folder: Path, only: str = "") -> Iterator[Result]:
    """Every benchmark whose name contains ``only``, one after the other."""
    wide = (6656, 19968)
    for stored, rows, limit in (
        ("q4_k", 16, 0.7),
        ("bf16", 16, 0.7),
        ("q6_k", 16, 1.1),
        ("q5_k", 16, 1.0),
        ("q8_0", 16, 0.7),
        ("q4_k", 7, 0.7),
    ):
        if only in f"linear {stored} M={rows}":
            yield linear(stored, rows, *wide, limit)
    if any(only in f"diff {kind.split()[0]} {dtype} {what}" for kind, dtype, _ in DIFFS for what in ("time", "memory")):
        yield from diff_of_dumps(folder)
    if any(only in name for name in ("release drafter time", "release drafter memory")):
        yield from release_drafter(folder)


def machine() -> str:
    """What ran them, in a line."""
    import platform

    return f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}"
