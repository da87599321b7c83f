"""Whole generations, and windows against single rows, in emulated libraries by lanes and by matrix units."""

from __future__ import annotations

from pathlib import Path

import pytest

from oracle.artifacts import make_artifact
from oracle.models import open_target
from parity.errors import UsageError
from parity.speculating import rows
from parity.speculating.greedy import compare
from parity.speculating.setup import Setup, reading_of

SMALL = {"hidden": 32, "intermediate": 32, "heads": 4, "kv_heads": 2, "head_dim": 8, "vocab": 67, "layers": 1}
DRAFTER = SMALL | {"block_size": 4, "mask_token_id": 66, "layers": 2, "sliding": (True, False), "window": 6}
OTHER = {"cuda-emu+tensor-core": "cuda-f32", "metal-emu+simdgroup": "metal-f32"}
"""Candidates by matrix units, and the arithmetic of the same library without them."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    made = make_artifact("qwen3", "tiny", "bf16", tmp_path_factory.mktemp("rounds"), 5, **DRAFTER)
    return made[0], made[1]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_artifact("llama", "tiny", "bf16", tmp_path_factory.mktemp("target"), 7, **SMALL)[0]


def setup(files: tuple[Path, Path], candidate: str) -> Setup:
    return Setup(files[1], (3, 17, 9), 4, "steered", files[0], "qwen3", verify_length=3, accepts=(1, 0), candidate=candidate)


@pytest.mark.slow
@pytest.mark.parametrize("candidate", ["cuda-emu", "metal-emu", *OTHER])
def test_whole_generations_are_in_parity_under_the_arithmetic_of_the_candidate(files: tuple[Path, Path], candidate: str) -> None:
    report, _ = compare(setup(files, candidate), members=2)
    assert report.verdict == "parity", report.broken
    assert report.proposals is not None and report.proposals.ratio < 1 and report.misuse == []
    if candidate in OTHER:
        other, _ = compare(setup(files, candidate), arithmetic=OTHER[candidate], members=2)
        assert other.verdict == "divergence" and any("logits of draft" in line for line in other.broken)


@pytest.mark.parametrize("candidate", OTHER)
def test_rows_by_matrix_units_are_remembered_apart(target: Path, candidate: str) -> None:
    opened, plain = open_target(target), candidate.partition("+")[0]
    assert rows.identity(opened, candidate, 2) != rows.identity(opened, plain, 2)
    report = rows.probe(target, candidate, 2, contexts=(2,), members=2)
    assert report.exact and report.key == rows.identity(opened, candidate, 2)


@pytest.mark.parametrize("candidate", ["llama.cpp", "module:callable"])
def test_what_runs_whole_cases_only_is_refused(candidate: str) -> None:
    said = "it runs whole cases, not single windows; record its rounds and use parity replay"
    with pytest.raises(UsageError, match=said), reading_of(candidate):
        pass
