"""What `stage_dump.h` writes from C and C++ reads like any other dump."""

from __future__ import annotations

import os
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

static int environment(void) {
    stage_dump d;
    int64_t one[1] = {1};
    float x = 1;
    int step, failed = stage_dump_open_env(&d, "{}", " { }");
    if (failed) puts(d.error);
    if (failed) return 3;
    for (step = 0; step < 10; step++) {
        if (stage_dump_announce(&d, "draft.fc")) return 4;
        if (stage_dump_wants(&d, step, "draft.L3.attn")) printf("%d ", step);
        if (stage_dump_put(&d, step, "draft.L3.attn", 0, "f32", 1, one, NULL, NULL, &x)) return 5;
        if (stage_dump_put(&d, step, "draft.logits", 0, "f32", 1, one, NULL, NULL, &x)) return 5;
        if (stage_dump_put(&d, step, "draft.fc", 0, "f32", 1, one, NULL, NULL, &x)) return 5;
    }
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
    if (argc > 2 && !strcmp(argv[2], "environment")) return environment();
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

THREADS = r"""
#include <pthread.h>
#define STAGE_DUMP_FN
#include "stage_dump.h"

static stage_dump dump;

static void *engine(void *number) {
    char stage[64];
    int64_t rows[2] = {3, 5};
    int32_t x[15], i;
    for (i = 0; i < 15; i++) x[i] = 100 * *(int *)number + i;
    for (i = 0; i < 50; i++) {
        snprintf(stage, sizeof stage, "thread%d", *(int *)number);
        if (stage_dump_announce(&dump, stage) || stage_dump_put(&dump, i, stage, 0, "i32", 2, rows, NULL, NULL, x)) return &dump;
        if (!stage_dump_put(&dump, -1, stage, 0, "i32", 2, rows, NULL, NULL, x)) return &dump;
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[8];
    int numbers[8], i;
    void *failed;
    if (argc != 2 || stage_dump_open(&dump, argv[1], "{}", "{}")) return 1;
    for (i = 0; i < 8; i++) {
        numbers[i] = i;
        if (pthread_create(&threads[i], NULL, engine, &numbers[i])) return 2;
    }
    for (i = 0; i < 8; i++)
        if (pthread_join(threads[i], &failed) || failed) return 3;
    return stage_dump_close(&dump);
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


def environment(program: Path, **names: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("STAGE_DUMP_")}
    return subprocess.run([program, "-", "environment"], env=clean | names, capture_output=True, text=True, check=False)


def test_without_a_directory_in_the_environment_nothing_is_written(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = environment(program, STAGE_DUMP_STAGES="*", STAGE_DUMP_STEPS="not read")
    assert done.returncode == 0 and done.stdout == "" and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("stages", "steps", "kept"),
    [
        (None, None, {(s, n) for s in range(10) for n in ("draft.L3.attn", "draft.logits", "draft.fc")}),
        ("draft.L3.*,draft.logits", "0-2,7", {(s, n) for s in (0, 1, 2, 7) for n in ("draft.L3.attn", "draft.logits")}),
        ("*fc", "9", {(9, "draft.fc")}),
        ("draft.?c", "", {(s, "draft.fc") for s in range(10)}),
        ("draft.L3", "0-2147483647", set()),
        ("*L*t*n,nothing", "3-3", {(3, "draft.L3.attn")}),
    ],
)  # fmt: skip
def test_the_environment_filters_and_the_dump_says_so(
    program: Path, tmp_path: Path, stages: str | None, steps: str | None, kept: set[tuple[int, str]]
) -> None:
    names = {"STAGE_DUMP_STAGES": stages, "STAGE_DUMP_STEPS": steps}
    done = environment(program, STAGE_DUMP_DIR=str(tmp_path / "d"), **{k: v for k, v in names.items() if v is not None})
    dump = open_dump(tmp_path / "d")
    assert done.returncode == 0 and dump.complete and {(r.step, r.stage) for r in dump.records()} == kept
    assert done.stdout.split() == [str(s) for s, n in sorted(kept) if n == "draft.L3.attn"]
    assert dump.provenance == ({"stage_dump": {"stages": stages or "", "steps": steps or ""}} if stages or steps else {})


@pytest.mark.parametrize("steps", ["x", "1-", "3-1", "1,,2", "-1", "1;2", ",", " 1", "1,"])
def test_a_filter_of_steps_that_is_none_is_refused(program: Path, tmp_path: Path, steps: str) -> None:
    done = environment(program, STAGE_DUMP_DIR=str(tmp_path / "d"), STAGE_DUMP_STEPS=steps)
    assert done.returncode == 3 and done.stdout == f"expected STAGE_DUMP_STEPS such as 0-3,7, found {steps}\n"
    assert not (tmp_path / "d").exists()


def test_long_filters_and_control_characters_are_refused(program: Path, tmp_path: Path) -> None:
    where = {"STAGE_DUMP_DIR": str(tmp_path / "d")}
    long = environment(program, **where, STAGE_DUMP_STAGES="x" * 1024)
    assert long.stdout == "expected STAGE_DUMP_STAGES of fewer than 1024 characters\n"
    assert environment(program, **where, STAGE_DUMP_STAGES="a\nb").stdout == "STAGE_DUMP_STAGES holds the control character 0x0a\n"


def test_eight_threads_write_one_dump(tmp_path: Path) -> None:
    """The header's functions exported, as for another language, and called from several threads, failing calls among them."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    (tmp_path / "threads.c").write_text(THREADS)
    posix = ["-std=c99", "-D_POSIX_C_SOURCE=200809L", "-pthread", "-fsanitize=thread", "-g"]
    build = [compiler, *posix, *FLAGS, f"-I{HEADER}", str(tmp_path / "threads.c"), "-o", str(tmp_path / "threads")]
    if subprocess.run(build, capture_output=True, check=False).returncode:
        build.remove("-fsanitize=thread")
        subprocess.run(build, check=True)
    done = subprocess.run([tmp_path / "threads", tmp_path / "d"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "data race" not in done.stderr, done.stderr
    dump = open_dump(tmp_path / "d")
    assert dump.complete and {(r.step, r.stage) for r in dump.records()} == {(s, f"thread{t}") for s in range(50) for t in range(8)}
    for record in dump.records():
        assert np.array_equal(record.array(), (100 * int(record.stage[-1]) + np.arange(15)).reshape(3, 5))
