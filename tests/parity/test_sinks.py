"""A drafter with attention sinks through the whole comparison: NumPy and the compiled library agree, each operation by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import parity
from oracle.artifacts import make_artifact
from parity.errors import UsageError
from tests.artifacts.test_artifact_heads import FEWER


def case(out: Path) -> Any:
    draft, target = make_artifact("qwen3", "tiny", "bf16", out, 3, "safetensors", **FEWER, sinks="all")
    return parity.drafter_case(draft, target, appends=(9, 4), accepts=(1,))


@pytest.mark.parametrize("candidate", ["f32", "cpu"])
def test_candidates_agree_on_sinks(candidate: str, tmp_path: Path) -> None:
    report = parity.assert_parity(candidate, case(tmp_path), entry="op" if candidate == "cpu" else "auto")
    judged = [s for s in report.stages if s.stage.endswith(".attn") and s.mode == "local"]
    assert len(judged) == 4 and all(s.verdict == "agree" and 0 < s.ratio < 1 for s in judged)


def test_a_fused_drafter_says_that_it_has_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="sinks: not a part of the library's fused drafter"):
        parity.assert_parity("cpu", case(tmp_path), entry="fused")
