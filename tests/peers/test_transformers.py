"""Transformers as a candidate: its own classes in float32, every stage that its modules show, and one module patched wrong at a time."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dumps import DumpWriter, open_dump
from oracle import arithmetic as arithmetics
from oracle.artifacts import make_artifact
from parity.adapters import ADAPTERS
from parity.adapters.mapping import shipped
from parity.case import Case
from parity.comparing import compare_dump
from parity.importers import import_recording
from parity.making import target_case
from parity.report import Report

pytestmark = [pytest.mark.peers, pytest.mark.skipif(find_spec("transformers") is None, reason="needs the extra `peers`")]
SIZES = {"hidden": 48, "intermediate": 64, "heads": 6, "kv_heads": 2, "head_dim": 8, "vocab": 67, "layers": 2}
DECLARED = arithmetics.named(ADAPTERS["transformers"].arithmetic)


@pytest.fixture(scope="module")
def case(tmp_path_factory) -> Case:
    return target_case(
        make_artifact("llama", "tiny", "f32", tmp_path_factory.mktemp("tf"), seed=4, **SIZES)[0], prefill=20, block=6, seed=0
    )


def judged(case: Case, tmp_path: Path, patch: Any = None) -> Report:
    from parity.adapters import transformers as adapter

    model = adapter.load(case.model)
    if patch is not None:
        patch(model)
    with DumpWriter(tmp_path / "dump", case.describe(), {}) as writer:
        adapter.record(case, model, shipped("transformers", case.family, "target"), writer)
    return compare_dump(case, open_dump(tmp_path / "dump"), DECLARED, mode="local")


def test_a_llama_agrees_at_every_stage(case, tmp_path):
    report = judged(case, tmp_path)
    assert report.verdict == "parity" and not report.unseen and not report.extra


def test_a_muse_target_agrees_past_its_window(tmp_path):
    """The layers without rope are given their normed queries and keys, which the case has as other stages: listed, not compared."""
    from tests.peers import muse_target_peer

    muse_target_peer.build(5, "eager", 1.5).float().save_pretrained(tmp_path / "m")
    report = judged(target_case(tmp_path / "m", prefill=20, block=6, seed=0), tmp_path)
    assert report.verdict == "parity" and report.counts() == {"agree": 224}
    assert {u.rpartition(".")[2] for u in report.unseen} == {"q_norm"}
    assert all("k_rope" in x or "q_rope" in x for x in report.extra)


def scaled(path: str, factor: float) -> Any:
    def patch(model: Any) -> None:
        model.get_parameter(path).data *= factor

    return patch


def eps(model: Any) -> None:
    model.model.layers[1].input_layernorm.variance_epsilon *= 100


def scale(model: Any) -> None:
    model.model.layers[1].self_attn.scaling *= 1.01


def theta(model: Any) -> None:
    model.model.rotary_emb.inv_freq *= 1.01


PATCHES = {
    "target.L0.xn": scaled("model.layers.0.input_layernorm.weight", 1.01),
    "target.L1.xn": eps,
    "target.L0.q_raw": scaled("model.layers.0.self_attn.q_proj.weight", 1.01),
    "target.L1.v": scaled("model.layers.1.self_attn.v_proj.weight", 0.99),
    "target.L0.q_rope": theta,
    "target.L1.attn": scale,
    "target.L1.o": scaled("model.layers.1.self_attn.o_proj.weight", 1.01),
    "target.L0.mlp_up": scaled("model.layers.0.mlp.up_proj.weight", 1.01),
    "target.L1.mlp_down": scaled("model.layers.1.mlp.down_proj.weight", 1.01),
    "target.final_norm": scaled("model.norm.weight", 1.01),
}


@pytest.mark.parametrize("stage", PATCHES)
def test_one_module_patched_wrong_is_named(stage, case, tmp_path):
    assert judged(case, tmp_path, PATCHES[stage]).first_divergence.stage == stage


def test_what_the_hooks_saved_is_imported(case, tmp_path):
    import torch

    from parity.adapters.hooks import saved
    from parity.adapters.transformers import load

    model = load(case.model)
    with torch.inference_mode(), saved(model, 0, tmp_path / "a.safetensors"):
        model(torch.from_numpy(case.steps[0].array)[None], use_cache=False)
    done = import_recording("transformers", tmp_path / "a.safetensors", case, tmp_path / "dump")
    assert not done.findings and not done.unmapped
    assert compare_dump(case, open_dump(tmp_path / "dump"), DECLARED, mode="local").verdict == "parity"
