"""The official drafter as a candidate: every stage that it shows, in its cage, and one module patched wrong at a time."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from oracle.artifacts import make_artifact
from parity import candidates
from parity.adapters import ADAPTERS
from parity.case import Case
from parity.errors import UsageError
from parity.flow import run_candidate
from parity.making import drafter_case, target_case
from tests.peers.patching import dumped, first_divergence, scaled

SIZES = {"hidden": 48, "intermediate": 64, "heads": 6, "kv_heads": 2, "head_dim": 8, "vocab": 67}
pytestmark = [pytest.mark.peers, pytest.mark.skipif(find_spec("dflash") is None, reason="needs dflash (the extra `peers`)")]


@pytest.fixture(scope="module")
def drafter(tmp_path_factory) -> Case:
    made = make_artifact("qwen3", "tiny", "bf16", tmp_path_factory.mktemp("qwen3"), seed=5, block_size=6, mask_token_id=66, **SIZES)
    return drafter_case(made[0], made[1], family="qwen3", appends=(25, 4), accepts=(2, 0, 1), seed=1)


def test_the_engine_in_its_cage_agrees_at_every_stage(drafter):
    """Its sliding layers past their window, its committed rows in one append and in several."""
    report = run_candidate(drafter, candidates.parse("dflash"), mode="local")
    assert report.verdict == "parity" and not report.unseen and not report.extra, report.findings


def test_the_other_role_is_refused(tmp_path):
    made = make_artifact("llama", "tiny", "bf16", tmp_path, seed=4, layers=1, **SIZES)
    with pytest.raises(UsageError, match="only drafters are driven"):
        ADAPTERS["dflash"].run(target_case(made[0], prefill=2, block=0), tmp_path / "dump")


PATCHES = {
    "draft.fc": scaled("fc.weight"),
    "draft.ctx": scaled("hidden_norm.weight"),
    "draft.L1.ctx.v": scaled("layers.1.self_attn.v_proj.weight"),
    "draft.L0.ctx.k_norm": scaled("layers.0.self_attn.k_norm.weight"),
    "draft.L0.ctx.k_rope": scaled("rotary_emb.inv_freq", 1.02),
    "draft.L1.q_norm": scaled("layers.1.self_attn.q_norm.weight"),
    "draft.L0.attn": scaled("layers.0.self_attn.sliding_window", 2),
    "draft.L2.mlp_act": lambda model: model.layers[2].mlp.act_fn.register_forward_hook(lambda *call: call[2].relu()),
    "draft.final_norm": scaled("norm.weight"),
}


@pytest.mark.parametrize("stage", PATCHES)
def test_a_module_patched_wrong_is_named(stage, drafter, tmp_path):
    from parity.adapters import dflash as adapter

    model = adapter.load(drafter.model)
    PATCHES[stage](model)
    dump = dumped(adapter, "dflash", drafter, model, tmp_path)
    assert first_divergence(drafter, dump, ADAPTERS["dflash"].arithmetic) == stage
