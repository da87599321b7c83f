"""The shipped suite on the third party's library, and on one that multiplies its products wrong: the operation is named."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from native.sources import PACKAGE

ENGINE = (PACKAGE / "example" / "engine.c").read_text()


def conformance(library: object) -> subprocess.CompletedProcess[str]:
    suite = ["--pyargs", "parity.conformance", "--dlab-library", str(library)]
    options = ["-rfs", "-p", "no:cacheprovider", *suite]
    return subprocess.run([sys.executable, "-m", "pytest", *options], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("right", "wrong", "op"),
    [
        ("", "", None),
        ("sum += row(x, m)[k] * row(w, n)[k]", "sum += row(x, m)[k] * row(w, n)[k] * (k == 7 ? 1.001f : 1)", "linear"),
        ("(double)x->shape[1] + eps", "(double)x->shape[1] + 10 * eps", "rms_norm"),
    ],
)
def test_the_wrong_operation_is_named(compile_c: Callable[..., Path], right: str, wrong: str, op: str | None) -> None:
    assert right in ENGINE
    done = conformance(compile_c(ENGINE.replace(right, wrong) if right else ENGINE, "-O2"))
    failed = {name for name in ("linear", "rms_norm") if f"test_operation[{name}]" in done.stdout.split("short test summary")[-1]}
    assert done.returncode == (0 if op is None else 1), done.stdout + done.stderr
    assert failed == (set() if op is None else {op}), done.stdout


@pytest.mark.slow
def test_the_cpu_library_conforms() -> None:
    done = conformance("cpu")
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr
