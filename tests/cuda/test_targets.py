"""Every family's target in the CUDA library, on the emulator, op by op: no divergence, and every stage is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from oracle.arithmetic import Arithmetic
from oracle.artifacts import make_artifact
from parity.candidates import parse
from parity.case import Case
from parity.flow import run_candidate
from parity.making import target_case

# The one with the most operations runs always.
FAMILIES = ("qwen38-flash-next", *(pytest.param(name, marks=pytest.mark.slow) for name in ("llama", "laguna", "muse-glimmer")))


def seeded(family: str, folder: Path) -> Case:
    model = make_artifact(family, "tiny", "q4_k" if family == "muse-glimmer" else "bf16", folder, seed=3, role="target")[0]
    return target_case(model, prefill=4, block=2, seed=4)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_target_is_within_the_noise_of_what_the_library_declares(
    family: str, candidate: str, declared: Arithmetic, tmp_path: Path
) -> None:
    report = run_candidate(seeded(family, tmp_path), parse(candidate, "op", schedule="late"), declared, members=3)
    assert report.verdict == "parity" and not report.unseen and not report.findings, report.divergences[:2]
    assert {s.mode for s in report.stages} == {"local", "rolled"} and report.candidate["where"] == "emulated"


@pytest.mark.slow
def test_a_mistake_in_one_row_of_a_target_is_found_there(candidate: str, declared: Arithmetic, tmp_path: Path) -> None:
    fault = "rope.position:stage=target.L1.q_rope,row=1,offset=1"
    report = run_candidate(seeded("llama", tmp_path), parse(candidate, "op"), declared, mode="local", fault=fault)
    assert {(d.stage, *d.extent.rows) for d in report.divergences} == {("target.L1.q_rope", 1)}
