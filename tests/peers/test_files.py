"""The golden files are what the peers give today, and choosing other tests never imports torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.peers import muse_cases as muse
from tests.peers import random_models as rm
from tests.peers import smollm2_rows
from tests.peers.dflash_cases import CASES
from tests.peers.golden.files import read

pytestmark = pytest.mark.peers
TOLERANCE = 1e-12


def test_the_file_of_the_official_package_is_current():
    pytest.importorskip("torch")
    pytest.importorskip("dflash")
    from tests.peers import dflash_peer

    golden = read("dflash")
    assert set(golden) - {"made_by", "versions", "arithmetic", "uniform"} == {case.name for case in CASES}
    for case in CASES:
        assert rm.summary_difference(rm.summary(dflash_peer.outputs(case)), golden[case.name]) <= TOLERANCE


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_file_of_the_muse_assistant_is_current(attention: str):
    pytest.importorskip("torch")
    from tests.peers import muse_peer

    golden, found = read("muse"), rm.summary(muse_peer.outputs(attention))
    assert len(golden["hidden_means"]) == len(muse.rounds())
    assert rm.summary_difference(found, {key: golden[key] for key in found}) <= TOLERANCE


def test_the_file_of_smollm2_is_current():
    pytest.importorskip("torch")
    from parity import realtext
    from parity.errors import UsageError
    from tests.peers import llama_peer

    golden = read("smollm2")
    try:
        logits = llama_peer.outputs(realtext.smollm2(), golden["ids"]).logits
    except UsageError as e:
        pytest.skip(str(e))
    assert smollm2_rows.difference(smollm2_rows.summary(logits), golden) <= 10 * TOLERANCE


def test_collecting_these_modules_imports_no_torch():
    here = Path(__file__).parent
    modules = [f"tests.peers.{path.stem}" for path in here.glob("test_*.py")] + ["tests.golden.test_golden_peers"]
    code = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=here.parents[1], timeout=120).returncode == 0
