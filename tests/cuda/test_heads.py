"""Drafter heads and rotating caches in the CUDA library, on the emulator: no divergence, and fused the bits of single operations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dumps import Dump, open_dump
from native import Context
from oracle.arithmetic import Arithmetic
from oracle.artifacts import make_artifact
from parity.candidates import execute, parse
from parity.case import Case
from parity.comparing import compare_dump
from parity.diffing import difference
from parity.making import drafter_case
from parity.models import open_case_model
from parity.native_drafter import fused_config, fused_weights
from tests.artifacts.test_artifact_heads import FEWER, HEADS

FEW = ("dflash 2", "gated markov", "rotating cache")


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    def make(name: str) -> Case:
        root = tmp_path_factory.mktemp("heads")
        if name == "rotating cache":
            made = make_artifact("laguna", "tiny", "f32", root, seed=3, role="drafter", window=6)
            return drafter_case(made[0], made[1], family="laguna", dialect={"engine": "mlx-vlm"}, block=4, appends=(9, 4), seed=4)
        model, target = make_artifact("qwen3", "tiny", "f32", root, 3, "safetensors", **FEWER, **HEADS[name])
        return drafter_case(model, target, family="qwen3", block=4, context=6, seed=4)

    return make


def run(case: Case, candidate: str, entry: str, out: Path) -> Dump:
    execute(parse(candidate, entry, schedule="late"), case, out, None)
    return open_dump(out)


@pytest.mark.parametrize("name", [*FEW, *(pytest.param(name, marks=pytest.mark.slow) for name in HEADS if name not in FEW)])
def test_they_are_within_noise_and_fused_the_bits_of_single_operations(
    name: str, candidate: str, declared: Arithmetic, case: Callable[[str], Case], tmp_path: Path
) -> None:
    made = case(name)
    one, other = (run(made, candidate, entry, tmp_path / entry) for entry in ("op", "fused"))
    assert difference(one, other).exit_status == 0, difference(one, other).first
    report = compare_dump(made, other, declared, members=3)
    assert report.verdict == "parity" and not report.unseen, report.divergences[:2]


@pytest.mark.parametrize("name", ["recurrent markov", "reduced vocabulary with markov"])
def test_drafts_and_confidence_are_those_of_the_stages(
    ctx: Context, name: str, candidate: str, case: Callable[[str], Case], tmp_path: Path
) -> None:
    made = case(name)
    dump, model = run(made, candidate, "fused", tmp_path / "d"), open_case_model(made)
    assert model.drafter is not None
    with ctx.drafter(fused_config(model.drafter), fused_weights(model.drafter, model.embedding, model.head)) as drafter:
        append, propose = made.steps
        drafter.append(append.array, append.at)
        drafter.propose(propose.array.astype(np.int32), propose.at)
        drafts, confidence = drafter.drafts()
    rows = range(len(propose.array) - len(drafts), len(propose.array))
    last = "token" if model.drafter.geometry.draft_vocab else "pick"
    for want, part in ((drafts, last), (confidence, "confidence")):
        stages = [dump.get(1, f"draft.row{r}.{part}") for r in rows]
        assert [float(s.float64().item()) for s in stages if s] == want.tolist()
