"""A drafter with attention sinks through the whole comparison: NumPy and the compiled library agree, each operation by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import parity
from oracle.arithmetic import named
from oracle.artifacts import make_artifact
from parity.errors import UsageError
from parity.sensitivity import ledger
from tests.artifacts.test_artifact_heads import FEWER


def case(out: Path, sinks: str = "all") -> Any:
    draft, target = make_artifact("qwen3", "tiny", "bf16", out, 3, "safetensors", **FEWER, sinks=sinks)
    return parity.drafter_case(draft, target, appends=(9, 4), accepts=(1,))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Sinks in the layer that slides, none in the other."""
    return case(tmp_path_factory.mktemp("sinks"), "sliding")


@pytest.mark.parametrize("candidate", ["f32", "cpu"])
def test_candidates_agree_on_sinks(candidate: str, tmp_path: Path) -> None:
    report = parity.assert_parity(candidate, case(tmp_path), entry="op" if candidate == "cpu" else "auto")
    judged = [s for s in report.stages if s.stage.endswith(".attn") and s.mode == "local"]
    assert len(judged) == 4 and all(s.verdict == "agree" and 0 < s.ratio < 1 for s in judged)


def test_a_fused_drafter_says_that_it_has_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="sinks: not a part of the library's fused drafter"):
        parity.assert_parity("cpu", case(tmp_path), entry="fused")


PLANTED = {
    "attention.sinks": ("attention.sinks", "sink scores"),
    "attention.scale:factor=1.05": ("attention.scale", "scale"),
    "attention.cell:cell=2": ("attention.cell", "cell"),
    "attention.causal": ("attention.causal", "the block read as"),
    "attention.gqa:map=mod": ("attention.gqa", "kv_heads"),
    "attention.values": ("attention.values", "keys read in place of values"),
}


@pytest.mark.parametrize("spec", PLANTED)
def test_a_mistake_in_attention_with_sinks_is_found_and_named(spec: str, both: Any, judged: Any) -> None:
    report = judged(both, "f32", spec.replace(":", ":stage=draft.L0.attn,") if ":" in spec else f"{spec}:stage=draft.L0.attn")
    first = report.first_divergence
    kind, text = PLANTED[spec]
    assert first is not None and first.stage == "draft.L0.attn"
    assert first.explanations[0]["kind"] == kind and text in first.explanations[0]["text"], first.explanations


def test_rounded_probabilities_count_the_sink(both: Any, judged: Any) -> None:
    """The sink takes its share before the rounding: with it the mistake stays as small as a rounding."""
    report = judged(both, "f32", "attention.probabilities:stage=draft.L0.attn,dtype=f16")
    assert report.first_divergence is not None
    assert max(s.ratio for s in report.stages if s.stage == "draft.L0.attn") < 1e4


def test_a_case_certifies_the_sinks_that_it_has(both: Any, tmp_path: Path) -> None:
    """The convention is in the ledger where a layer has sinks, and nowhere else."""
    assert {e.knob: e for e in ledger(both, named("f32"), 100_000)}["sink scores"].certified
    assert "sink scores" not in {e.knob for e in ledger(case(tmp_path, "none"), named("f32"), 100_000)}
