"""Mistakes in Metal kernels: each is found, with its kind and the lines it is made of; the same kernel without it is clean and right."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cffi import FFI

from native import building
from native.emulation import Emulation

FOLDER = Path(__file__).parent
CDEF = """
int run_metal(const char* kernel, int wrong, int threads, int threadgroup_bytes, const void* x, int in_bytes, void* y, int out_bytes);
int run_mismatched(int how);
"""
ffi = FFI()
ffi.cdef(CDEF)


@pytest.fixture(scope="session")
def path() -> Path:
    sources = ";".join(str(FOLDER / name) for name in ("planted.metal", "planted_metal.cpp"))
    return building.build("metal-emu", "dlab_planted_metal", [f"-DDLAB_PLANTED_METAL={sources}"])


@pytest.fixture
def emulation(path: Path) -> Iterator[Emulation]:
    made = Emulation(path)
    made.clear()
    made.schedule("eager")
    yield made
    made.clear()
    made.schedule("eager")


def run(path: Path, kernel: str, x: np.ndarray, y: np.ndarray, wrong: int = 0, threads: int = 64, shared: int = 0) -> int:
    library = ffi.dlopen(str(path))
    memory = [ffi.cast("void*", a.ctypes.data) for a in (x, y)]
    status: int = library.run_metal(kernel.encode(), wrong, threads, shared, memory[0], x.nbytes, memory[1], y.nbytes)
    return status


def in_a_process(path: Path, kernel: str, dtype: str, threads: int, shared: int) -> tuple[int, list[dict[str, Any]]]:
    """(status, findings) of the wrong kernel in a process of its own, since a device whose kernel was stopped is unusable."""
    program = (
        "import json, dataclasses, numpy as np\nfrom pathlib import Path\nfrom native.emulation import Emulation\n"
        f"from tests.emu.test_planted_metal import run\npath = Path({str(path)!r})\n"
        f"x, y = np.ones(128, {dtype!r}), np.zeros(128, 'f4')\n"
        f"status = run(path, {kernel!r}, x, y, 1, {threads}, {shared})\n"
        "print(json.dumps([status, [dataclasses.asdict(f) for f in Emulation(path).findings()]]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    status, found = json.loads(done.stdout)
    return status, found


def line(mark: str) -> str:
    for number, text in enumerate((FOLDER / "planted.metal").read_text().splitlines(), 1):
        if text.endswith(f"// MARK {mark}"):
            return f"planted.metal:{number}"
    raise KeyError(mark)


KERNELS = [
    ("group_sum", "f4", 64, 0, "race", {"barrier.read", "barrier.write"}, "no barrier between them"),
    ("shifted", "f4", 64, 0, "out-of-bounds", {"bounds"}, "byte 256 of threadgroup part"),
    ("half_filled", "f4", 64, 0, "uninitialised", {"uninitialised"}, "of threadgroup part"),
    ("diverging", "f4", 64, 0, "divergent-sync", {"shuffle", "shuffle.others"}, "simd_shuffle_xor"),
    ("early", "f4", 64, 0, "divergent-sync", {"early"}, "16 of the 64 threads"),
    ("swapped_float", "f4", 64, 256, "race", {"simdgroup.read", "simdgroup.write"}, "no barrier between them"),
    ("swapped_half", "f2", 64, 128, "race", {"simdgroup.read", "simdgroup.write"}, "no barrier between them"),
    ("matrices", "f2", 32, 0, "race", {"matrix.read", "matrix.write"}, "no barrier between them"),
]


@pytest.mark.parametrize(("kernel", "dtype", "threads", "shared", "kind", "marks", "says"), KERNELS, ids=[k[0] for k in KERNELS])
def test_a_mistake_is_found_where_it_is_made(
    path: Path, kernel: str, dtype: str, threads: int, shared: int, kind: str, marks: set[str], says: str
) -> None:
    status, found = in_a_process(path, kernel, dtype, threads, shared)
    first = found[0]
    assert (first["kind"], set(first["places"])) == (kind, {line(m) for m in marks})
    assert says in first["text"] and "of threadgroup (0,0,0)" in first["text"] and f"kernel {kernel}" in first["text"]
    assert (status != 0) == (kernel in ("shifted", "diverging"))


@pytest.mark.parametrize("schedule", ["eager", "late", "5"])
def test_the_same_kernels_without_it_are_clean_and_right(path: Path, emulation: Emulation, schedule: str) -> None:
    emulation.schedule(schedule)
    x = np.arange(128, dtype=np.float32)
    y = np.zeros(64, np.float32)
    wanted = {"shifted": x[:64], "half_filled": x[63::-1], "early": x[np.arange(64) ^ 1]}
    for kernel, want in (*wanted.items(), ("swapped_float", x[np.arange(64) ^ 32] + np.arange(64) // 32)):
        assert run(path, kernel, x, y, shared=256 if kernel == "swapped_float" else 0) == 0
        np.testing.assert_array_equal(y, want)
    assert run(path, "group_sum", x, y) == 0 and y[0] == x[:64].sum()
    assert run(path, "diverging", x, y) == 0 and (y == x[:64] + x[np.arange(64) ^ 1]).all()
    halves = np.zeros(64, np.float16)
    assert run(path, "swapped_half", x.astype(np.float16), halves, shared=128) == 0
    np.testing.assert_array_equal(halves, x[np.arange(64) ^ 32] + np.arange(64) // 32)
    assert emulation.findings() == []


def test_a_product_of_matrices_is_in_the_order_of_k(path: Path, emulation: Emulation) -> None:
    """Products of halves are exact in float, so that each fused step is one rounded sum."""
    x = np.random.default_rng(0).standard_normal(128).astype(np.float16)
    a, b = x[:64].reshape(8, 8).astype(np.float32), x[64:].reshape(8, 8).T.astype(np.float32)
    y, want = np.zeros((8, 8), np.float32), np.zeros((8, 8), np.float32)
    assert run(path, "matrices", x, y, threads=32) == 0
    for k in range(8):
        want += np.outer(a[:, k], b[k])
    np.testing.assert_array_equal(y, want)
    assert emulation.findings() == []


MISFITS = [(0, "has no buffer 2"), (1, "gives 8 bytes at buffer 2, the kernel takes 4"), (2, "kernel nowhere")]


@pytest.mark.parametrize(("how", "says"), MISFITS)
def test_a_dispatch_that_does_not_fit_its_kernel_is_named(path: Path, emulation: Emulation, how: int, says: str) -> None:
    assert ffi.dlopen(str(path)).run_mismatched(how) != 0
    [found] = emulation.findings()
    assert found.kind == "api" and says in found.text and found.places[0].startswith("planted_metal.cpp:")
