"""Compiled candidates of `parity greedy` run in a process of their own: their text is compared, their crash ends nothing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from oracle.artifacts import make_artifact
from parity.errors import CandidateError
from parity.speculating import proposals, render
from parity.speculating.greedy import GreedyReport, Rows, compare
from parity.speculating.setup import Setup

SMALL = {"hidden": 32, "intermediate": 32, "heads": 4, "kv_heads": 2, "head_dim": 8, "vocab": 67, "layers": 2}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_artifact("llama", "tiny", "f32", tmp_path_factory.mktemp("caged"), seed=7, **SMALL)[0]


def setup(target: Path, candidate: str) -> Setup:
    return Setup(target, (3, 17, 9, 25, 4), 12, "oracle", schedule="z-lab", verify_length=4, accepts=(None, 1, 0), candidate=candidate)


def test_the_cpu_library_s_text_is_its_own(target: Path):
    report = compare(setup(target, "cpu"), members=2)[0]
    assert report.verdict == "parity" and report.identical and report.repeated and report.rows.compared == 11


def test_a_library_that_aborts_ends_its_own_process_only(target: Path, tmp_path: Path):
    compiler = next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), None)
    if compiler is None:
        pytest.skip("no C compiler here")
    (tmp_path / "bad.c").write_text("#include <stdlib.h>\n__attribute__((constructor)) static void die(void) { abort(); }\n")
    library = tmp_path / "bad.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(tmp_path / "bad.c")], check=True)
    with pytest.raises(CandidateError, match="its process died"):
        compare(setup(target, str(library)), members=0)


@pytest.mark.parametrize(("candidate", "members", "verdict"), [("f64", 0, "inconclusive"), ("f64", 2, "parity"), ("f32", 0, "parity")])
def test_rows_that_differ_without_an_ensemble_are_no_parity(target: Path, candidate: str, members: int, verdict: str):
    """A window's rows come from other products than single ones and differ in the last digits; rows of equal bits need no noise."""
    report = compare(setup(target, candidate), members=members)[0]
    assert report.verdict == verdict and (report.rows.largest > 0) == (candidate == "f64")
    said = render.greedy(report)
    assert ("unjudged (--members 0)" in said) == (verdict == "inconclusive") and ("equal to the bit" in said) == (candidate == "f32")


@pytest.mark.parametrize(("moved", "unjudged"), [(0.0, False), (1e-6, True)])
def test_a_drafter_s_logits_that_differ_without_an_ensemble_are_no_parity(moved: float, unjudged: bool):
    """Proposals are the oracle's own and their recorded logits are not."""
    logits = np.array([[0.0, 2.0, 1.0]])
    row = SimpleNamespace(values=logits[0] + moved)
    trace = SimpleNamespace(rounds=[SimpleNamespace(proposals=(1,), draft_logits=[row])], chooser="argmax")
    drafter = SimpleNamespace(dialect=SimpleNamespace(chooser="argmax"))
    found = proposals.judge(trace, drafter, proposals.Rerun([(1,)], [logits]), [], 1.0)
    assert found.unjudged is unjudged and not found.differences
    whole = GreedyReport({}, {}, 1, True, True, Rows(1, 0.0, float("nan"), 0, 0, 0), proposals=found)
    assert whole.verdict == ("inconclusive" if unjudged else "parity")
