"""The benchmark of a device: its logic on the emulator, where a stand-in for cuBLAS computes on the host."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

import native
from native import Context
from native.device import OnDevice, copy
from parity import device, device_benches, gpu_peers
from parity.cli.build import seeded
from parity.errors import UsageError
from parity.making import target_case

STUB = Path(__file__).with_name("peers_stub.c")
UNITS = {"cuda-emu": "tensor-core", "metal-emu": "simdgroup"}


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("peers") / "libstub.so"
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(out), str(STUB)], check=True)
    return out


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_benches, "COPIED", 4096)


def test_a_copy_within_the_device_is_one(ctx: Context) -> None:
    values = np.random.default_rng(0).standard_normal((1, 1027)).astype(np.float32)
    x, y = OnDevice(ctx, values), OnDevice(ctx, np.zeros_like(values))
    copy(ctx, x, y)
    np.testing.assert_array_equal(y.download(), values)
    for tensor in (x, y):
        tensor.release()


@pytest.mark.parametrize(("stored", "width"), [("q4_k", 256), ("bf16", 40)])
def test_products_are_compared_with_a_copy(
    cpu: native.Library, candidate: str, monkeypatch: pytest.MonkeyPatch, stored: str, width: int
) -> None:
    monkeypatch.setattr(gpu_peers, "DRIVER", ("libcuda.so.none",))
    about, copied, *products = device_benches.benchmark(str(cpu.info.path), [(stored, width, 12)], count=1)
    assert about["about"] == f"{cpu.info.name} {cpu.info.version}" and len(about["missing"]) == 1
    assert copied["product"] == "copy within the device" and copied["GB/s"] > 0
    ways = ["", f" {UNITS[candidate]}"] if stored == "bf16" else [""]
    assert [p["product"] for p in products] == [f"{stored} 12x{width} M={m}{way}" for way in ways for m in (1, 7, 16)]
    for p in products:
        assert p["of copy"] == pytest.approx(2 * p["GB/s"] / copied["GB/s"]) and "cuBLAS/ours" not in p
        assert "of copy" in device_benches.figures(p)


def test_every_family_and_role_is_run_and_real_text_on_devices_only(tmp_path: Path) -> None:
    tiny = 2 * len(device.DRAFTERS) + len(device.TARGETS)
    for name, units in UNITS.items():
        keys = list(device.steps(name, "", tmp_path))
        assert len(keys) == tiny + 3 and keys[tiny:] == [f"qwen3-op+{units}", f"qwen3-fused+{units}", "order"]
        assert set(device.steps(name.removesuffix("-emu"), "", tmp_path)) - set(keys) == {"c"}
    assert list(device.steps("cuda-emu", "order,laguna-op", tmp_path)) == ["laguna-op", "order"]
    with pytest.raises(UsageError, match="--only c: metal-emu has no such case, expected some of muse-op, "):
        device.steps("metal-emu", "c", tmp_path)


def test_what_cannot_be_run_is_a_failure_and_the_rest_runs(
    candidate: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(models: Path) -> NoReturn:
        raise UsageError("not this one")

    small = ("llama-t", lambda models: target_case(seeded("llama", "bf16", 1, models, "target")[0], prefill=2, block=1))
    made = [device.Entry(key, key, make) for key, make in (("refused", refuse), small)]
    monkeypatch.setattr(device, "TINY", made)
    assert device.main(["--candidate", candidate, "--out", str(tmp_path), "--only", "refused,llama-t"]) == 1
    out, error = capsys.readouterr()
    assert [line.split()[:3] for line in out.splitlines()] == [["refused", "error", "-"], ["llama-t", "parity", "emulated"]]
    assert "not this one" in error
    assert device.main(["--candidate", candidate, "--out", str(tmp_path), "--only", "llama-t"]) == 0


def test_cublas_is_asked_for_the_same_product(ctx: Context, stub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, columns and transposition: float32 sums of the same bf16 values."""
    monkeypatch.setattr(gpu_peers, "CUBLAS", (str(stub),))
    monkeypatch.setattr(gpu_peers, "DRIVER", (str(stub),))
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((3, 20)).astype(np.float32), rng.standard_normal((7, 20)).astype(np.float32)
    stored = [native.Stored.of(ctx.convert(a, "bf16"), "bf16") for a in (x, w)]
    blas, held = gpu_peers.CuBLAS(gpu_peers.Driver()), [OnDevice(ctx, s) for s in stored]
    y = OnDevice(ctx, np.full((3, 7), np.nan, np.float32))
    blas.linear(held[0], held[1], y)
    np.testing.assert_allclose(y.download(), ctx.dequant(stored[0]) @ ctx.dequant(stored[1]).T, rtol=1e-5, atol=1e-5)
    for tensor in (*held, y):
        tensor.release()
    blas.close()


def test_the_benchmark_compares_with_cublas(cpu: native.Library, stub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_peers, "CUBLAS", (str(stub),))
    monkeypatch.setattr(gpu_peers, "DRIVER", (str(stub),))
    about, _, *products = device_benches.benchmark(str(cpu.info.path), [("q4_k", 256, 12)], count=1)
    assert about["about"].endswith(", stub, driver for CUDA 13.0") and about["missing"] == []
    assert all(p["cuBLAS/ours"] > 0 and "cuBLAS/ours" in device_benches.figures(p) for p in products)


@pytest.mark.parametrize("missing", ["CUBLAS", "DRIVER"])
def test_what_is_not_here_is_said(cpu: native.Library, stub: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    for name in ("CUBLAS", "DRIVER"):
        monkeypatch.setattr(gpu_peers, name, ("lib.so.none",) if name == missing else (str(stub),))
    about, *products = device_benches.benchmark(str(cpu.info.path), [("q8_0", 32, 4)], count=1)
    assert about["missing"] == ["lib.so.none is not here: no figures of cuBLAS"]
    assert all("cuBLAS/ours" not in p for p in products)


def test_a_call_that_fails_says_which(stub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(gpu_peers.PeerError, match="cuInit failed with status 3"):
        gpu_peers._check(3, "cuInit")
