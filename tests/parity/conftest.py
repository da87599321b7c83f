"""Small models and cases that the tests of `parity` share, made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from oracle import arithmetic as arithmetics
from oracle.artifacts import make_artifact
from oracle.faults import parse as parse_fault
from oracle.readings import Exact, Faulty, Reading, Rounded
from parity.case import Case
from parity.comparing import compare_dump
from parity.making import drafter_case, target_case
from parity.recording import record
from parity.report import Report

SMALL = {"hidden": 48, "intermediate": 64, "heads": 6, "kv_heads": 2, "head_dim": 8, "vocab": 67, "block_size": 6, "mask_token_id": 66}


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    make_artifact("qwen3", "tiny", "bf16", root / "qwen3", seed=5, **SMALL)
    make_artifact("muse-glimmer", "tiny", "f32", root / "muse", seed=6, **SMALL, window=9)
    make_artifact(
        "llama", "tiny", "f32", root / "llama", seed=7, hidden=48, intermediate=64, heads=6, kv_heads=2, head_dim=8, vocab=67, layers=2
    )
    return root


@pytest.fixture(scope="session")
def drafter(models: Path) -> Case:
    return drafter_case(models / "qwen3/drafter", models / "qwen3/target", family="qwen3", appends=(7, 4), accepts=(2,), seed=1)


@pytest.fixture(scope="session")
def muse(models: Path) -> Case:
    return drafter_case(models / "muse/draft.gguf", models / "muse/target.gguf", appends=(12, 3), accepts=(1,), seed=1)


@pytest.fixture(scope="session")
def target(models: Path) -> Case:
    return target_case(models / "llama/target", prefill=9, block=5, seed=2)


@pytest.fixture
def dumped(tmp_path: Path) -> Callable[..., Path]:
    """Run a NumPy candidate in this process; returns the dump's path."""

    def make(case: Case, arithmetic: str = "f32", fault: str | None = None, name: str = "dump", reading: Reading | None = None) -> Path:
        from dumps import DumpWriter

        A = None if arithmetic == "f64" else arithmetics.named(arithmetic)
        inner: Reading = reading or (Exact() if A is None else Rounded(A))
        chosen = inner if fault is None else Faulty(inner, parse_fault(fault))
        with DumpWriter(tmp_path / name, case.describe(), {"candidate": arithmetic, "fault": fault}) as writer:
            record(case, chosen, writer, A)
        return tmp_path / name

    return make


@pytest.fixture
def judged(dumped: Callable[..., Path]) -> Callable[..., Report]:
    """Run a NumPy candidate and compare it with the oracle."""

    def judge(
        case: Case, arithmetic: str = "f32", fault: str | None = None, mode: str = "local", under: str | None = None, **options: object
    ) -> Report:
        from dumps import open_dump

        path = dumped(case, arithmetic, fault)
        return compare_dump(case, open_dump(path), arithmetics.named(under or arithmetic), mode=mode, **options)  # type: ignore[arg-type]

    return judge
