"""What `stage_dump.h` writes from C and C++ reads like any other dump."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from dumps import open_dump, pack

HEADER = Path(__file__).parents[2] / "dumps"

PROGRAM = r"""
#include <signal.h>
#include "stage_dump.h"

static int refusals(const char *path) {
    stage_dump d, again;
    int64_t shape[2] = {2, 3}, negative[2] = {2, -1}, huge[2] = {INT64_C(1) << 40, INT64_C(1) << 40};
    float x[6] = {0};
    char longest[202];
    memset(longest, 'x', 201);
    longest[201] = 0;
    if (!stage_dump_open(&d, path, "[]", "{}")) return 1;
    puts(d.error);
    if (!stage_dump_put(&d, 0, "x", 0, "f32", 2, shape, NULL, NULL, x)) return 1;
    puts(d.error);
    if (stage_dump_open(&d, path, "{}", "{}")) return 1;
    if (!stage_dump_open(&again, path, "{}", "{}")) return 1;
    puts(again.error);
    if (!stage_dump_put(&d, -1, "x", 0, "f32", 2, shape, NULL, NULL, x)) return 1;
    puts(d.error);
    if (!stage_dump_put(&d, 0, "x", 0, "float", 2, shape, NULL, NULL, x)) return 1;
    puts(d.error);
    if (!stage_dump_put(&d, 0, "x", 0, "f32", 0, shape, NULL, NULL, x)) return 1;
    puts(d.error);
    if (!stage_dump_put(&d, 0, "x", 0, "f32", 2, negative, NULL, NULL, x)) return 1;
    puts(d.error);
    if (!stage_dump_put(&d, 0, "x", 0, "f32", 2, huge, NULL, NULL, x)) return 1;
    puts(d.error);
    if (!stage_dump_put(&d, 0, "x", 0, "f32", 2, shape, NULL, NULL, NULL)) return 1;
    puts(d.error);
    if (!stage_dump_put(&d, 0, "", 0, "f32", 2, shape, NULL, NULL, x)) return 1;
    puts(d.error);
    if (!stage_dump_announce(&d, longest)) return 1;
    puts(d.error);
    if (!stage_dump_announce(&d, "a\nb")) return 1;
    puts(d.error);
    return stage_dump_close(&d);
}

int main(int argc, char **argv) {
    stage_dump d;
    int64_t shape[3] = {2, 3, 4}, strides[3] = {4, 8, 1}, rows[1] = {2}, none[2] = {0, 5}, apart[1] = {2};
    const char *axes[3] = {"row", "head", "dim"};
    float q[24];
    double f64[2] = {0.1, -0.0};
    uint16_t f16[2] = {0x3c00, 0x7c00}, bf16[2] = {0x3f80, 0xff80};
    int64_t i64[2] = {INT64_C(-9007199254740993), 7};
    int32_t i32[4] = {-1, 99, 5, 99};
    uint8_t u8[2] = {0, 1};
    int i;
    if (argc > 2 && !strcmp(argv[2], "refuse")) return refusals(argv[1]);
    for (i = 0; i < 24; i++) q[i] = (float)i;
    if (stage_dump_open(&d, argv[1], "{\"family\":\n\"qwen3\"}", "{}")) return 1;
    stage_dump_announce(&d, "draft.a_longer_name");
    if (argc > 2) {
        stage_dump_announce(&d, "draft.fc");
        raise(SIGKILL);
    }
    if (stage_dump_put(&d, 1, "draft.L0.q_raw", 4, "f32", 3, shape, strides, axes, q)) return 2;
    if (stage_dump_put(&d, 1, "draft.L0.k_raw", 0, "f32", 3, shape, NULL, NULL, q)) return 2;
    if (stage_dump_put(&d, 1, "f64 \"a\\b\" \xc3\xb6/..", 0, "f64", 1, rows, NULL, NULL, f64)) return 2;
    if (stage_dump_put(&d, 2, "f16", 0, "f16", 1, rows, NULL, NULL, f16)) return 2;
    if (stage_dump_put(&d, 2, "bf16", 0, "bf16", 1, rows, NULL, NULL, bf16)) return 2;
    if (stage_dump_put(&d, 2, "i64", 0, "i64", 1, rows, NULL, NULL, i64)) return 2;
    if (stage_dump_put(&d, 2, "i32", 0, "i32", 1, rows, apart, NULL, i32)) return 2;
    if (stage_dump_put(&d, 2, "u8", 0, "u8", 1, rows, NULL, NULL, u8)) return 2;
    if (stage_dump_put(&d, 2, "none", 0, "f32", 2, none, NULL, NULL, NULL)) return 2;
    return stage_dump_close(&d);
}
"""

FLAGS = ["-Wall", "-Wextra", "-Werror", "-O1"]


@pytest.fixture(scope="module", params=["c99", "c++17"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc" if request.param == "c99" else "c++")
    if compiler is None:
        pytest.skip(f"no compiler for {request.param}")
    folder = tmp_path_factory.mktemp("c")
    source = folder / ("program.c" if request.param == "c99" else "program.cpp")
    source.write_text(PROGRAM)
    standard = ["-std=c99", "-pedantic", "-D_POSIX_C_SOURCE=200809L"] if request.param == "c99" else ["-std=c++17"]
    subprocess.run([compiler, *standard, *FLAGS, f"-I{HEADER}", str(source), "-o", str(folder / "program")], check=True)
    return folder / "program"


def test_every_dtype_and_strided_data(program: Path, tmp_path: Path) -> None:
    assert subprocess.run([program, tmp_path / "d"], check=False).returncode == 0
    dump = open_dump(tmp_path / "d")
    assert dump.complete and dump.announced is None and dump.case == {"family": "qwen3"} and dump.provenance == {}
    q = np.arange(24, dtype=np.float32)
    expected = {
        (1, "draft.L0.q_raw"): q.reshape(3, 2, 4).transpose(1, 0, 2),
        (1, "draft.L0.k_raw"): q.reshape(2, 3, 4),
        (1, 'f64 "a\\b" ö/..'): np.array([0.1, -0.0]),
        (2, "f16"): np.array([1, np.inf], np.float16),
        (2, "bf16"): np.array([0x3F80, 0xFF80], np.uint16),
        (2, "i64"): np.array([-9007199254740993, 7]),
        (2, "i32"): np.array([-1, 5], np.int32),
        (2, "u8"): np.array([0, 1], np.uint8),
        (2, "none"): np.zeros((0, 5), np.float32),
    }
    assert [(record.step, record.stage) for record in dump.records()] == list(expected)
    for record, values in zip(dump.records(), expected.values(), strict=True):
        assert record.array().dtype == values.dtype and record.shape == values.shape and np.array_equal(record.array(), values)
    first = dump.get(1, "draft.L0.q_raw")
    assert first is not None and first.axes == ("row", "head", "dim") and first.row0 == 4
    assert np.array_equal(np.load(tmp_path / "d" / "000001-draft.L0.k_raw.npy", allow_pickle=False), q.reshape(2, 3, 4))
    assert not list((tmp_path / "d").glob("*.part"))
    pack(dump, tmp_path / "p.safetensors")
    assert open_dump(tmp_path / "p.safetensors").sha256 == dump.sha256


def test_a_killed_engine_leaves_its_prefix_and_its_stage(program: Path, tmp_path: Path) -> None:
    assert subprocess.run([program, tmp_path / "d", "die"], check=False).returncode == -signal.SIGKILL
    dump = open_dump(tmp_path / "d")
    assert not dump.complete and not dump.pieces and dump.announced == "draft.fc"


def test_bad_arguments_are_refused_with_a_reason(program: Path, tmp_path: Path) -> None:
    done = subprocess.run([program, tmp_path / "d", "refuse"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "expected case to be a JSON object",
        "the dump is not open",
        f"{tmp_path / 'd'}: holds a dump already; remove it or choose another name",
        "x: expected step and row0 from 0, found -1 and 0",
        "x: unknown dtype float",
        "x: expected 1 to 8 sizes, rows first, found 0",
        "x: size -1 of axis 1 is out of range",
        "x: size 1099511627776 of axis 0 is out of range",
        "x: expected data, found NULL",
        "expected a stage name of 1 to 200 characters, found 0",
        "expected a stage name of 1 to 200 characters, found 201",
        "a stage name holds the control character 0x0a",
    ]
    assert open_dump(tmp_path / "d").complete
