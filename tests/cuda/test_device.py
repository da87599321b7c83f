"""The benchmark of a device with the device's own libraries beside it: its logic on the emulator, where stand-ins compute on the host."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import native
from native import Context
from native.device import OnDevice
from parity import device, gpu_peers

STUB = Path(__file__).with_name("peers_stub.c")


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("peers") / "libstub.so"
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(out), str(STUB)], check=True)
    return out


def test_cublas_is_asked_for_the_same_product(ctx: Context, stub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, columns and transposition: float32 sums of the same bf16 values."""
    monkeypatch.setattr(gpu_peers, "CUBLAS", (str(stub),))
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((3, 20)).astype(np.float32), rng.standard_normal((7, 20)).astype(np.float32)
    stored = [native.Stored.of(ctx.convert(a, "bf16"), "bf16") for a in (x, w)]
    blas, held = gpu_peers.CuBLAS(), [OnDevice(ctx, s) for s in stored]
    y = OnDevice(ctx, np.full((3, 7), np.nan, np.float32))
    blas.linear(held[0], held[1], y)
    np.testing.assert_allclose(y.download(), ctx.dequant(stored[0]) @ ctx.dequant(stored[1]).T, rtol=1e-5, atol=1e-5)
    for tensor in (*held, y):
        tensor.release()
    blas.close()


def test_the_benchmark_compares_with_a_copy_and_with_cublas(cpu: native.Library, stub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_peers, "CUBLAS", (str(stub),))
    monkeypatch.setattr(gpu_peers, "DRIVER", (str(stub),))
    monkeypatch.setattr(device, "COPIED", 4096)
    about, copy, *products = device.benchmark(str(cpu.info.path), [("q4_k", 256, 12)], count=1)
    assert about == {"about": "stub, driver for CUDA 13.0", "missing": []} and copy["GB/s"] > 0
    assert [p["product"] for p in products] == [f"q4_k 12x256 M={m}" for m in device.ROWS]
    for p in products:
        assert p["of copy"] == pytest.approx(2 * p["GB/s"] / copy["GB/s"]) and p["cuBLAS/ours"] > 0
        assert "cuBLAS/ours" in device.figures(p)


def test_what_is_not_here_is_said(cpu: native.Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_peers, "CUBLAS", ("libcublas.so.none",))
    monkeypatch.setattr(gpu_peers, "DRIVER", ("libcuda.so.none",))
    about, *products = device.benchmark(str(cpu.info.path), [("q8_0", 32, 4)], count=1)
    assert about["missing"] == [
        "libcuda.so.none is not here: no figures of a copy within the device",
        "libcublas.so.none is not here: no figures of cuBLAS",
    ]
    assert all("cuBLAS/ours" not in p and "of copy" not in p for p in products)


def test_a_call_that_fails_says_which(stub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(gpu_peers.PeerError, match="cuInit failed with status 3"):
        gpu_peers._check(3, "cuInit")
