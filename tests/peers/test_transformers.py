"""Transformers as a candidate: its own classes in float32 and bfloat16, every stage they show, and one module patched wrong at a time."""

from __future__ import annotations

import math
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dumps import Dump, DumpWriter, open_dump
from oracle import arithmetic as arithmetics
from oracle.artifacts import make_artifact
from oracle.readings import Noise
from parity import candidates
from parity.adapters.mapping import shipped
from parity.adapters.transformers import arithmetic
from parity.case import Case
from parity.comparing import compare_dump
from parity.flow import run_candidate
from parity.importers import import_recording
from parity.judge import Judge
from parity.local import Local
from parity.making import target_case
from parity.models import declared_stages, run
from parity.report import Report

pytestmark = [pytest.mark.peers, pytest.mark.skipif(find_spec("transformers") is None, reason="needs the extra `peers`")]
SIZES = {"hidden": 48, "intermediate": 64, "heads": 6, "kv_heads": 2, "head_dim": 8, "vocab": 67, "layers": 2}


def saved(family: str, folder: Path) -> Path:
    """A tiny model of the family with bf16 weights, as Transformers saves it (a llama: as the lab writes it)."""
    import torch

    from tests.peers import laguna_cases, laguna_peer, muse_target_peer, qwen38_cases, qwen38_peer

    if family == "llama":
        return make_artifact("llama", "tiny", "bf16", folder, seed=4, **SIZES)[0]
    made = {
        "muse-glimmer": lambda: muse_target_peer.build(5, "eager", 1.5),
        "laguna": lambda: laguna_peer.build(laguna_cases.VARIANTS[0]),
        "laguna, router capped": lambda: laguna_peer.build(laguna_cases.VARIANTS[2]),
        "qwen38-flash-next": lambda: qwen38_peer.build(qwen38_cases.CASES[0]),
        "qwen38-flash-next, silu gate": lambda: qwen38_peer.build(qwen38_cases.CASES[2]),
    }[family]()
    made.to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def cases(tmp_path_factory) -> Any:
    """A case of a family, past the windows of its layers and the budget of its indexer; made once."""

    @cache
    def made(family: str) -> Case:
        return target_case(saved(family, tmp_path_factory.mktemp("tf")), prefill=20, block=6, seed=0)

    return made


def dumped(case: Case, tmp_path: Path, dtype: str, patch: Any = None) -> Dump:
    from parity.adapters import transformers as adapter

    model = adapter.load(case.model, dtype)
    if patch is not None:
        patch(model)
    with DumpWriter(tmp_path / "dump", case.describe(), {}) as writer:
        adapter.record(case, model, shipped("transformers", case.family, "target"), writer)
    return open_dump(tmp_path / "dump")


def judged(case: Case, tmp_path: Path, dtype: str) -> Report:
    return compare_dump(case, dumped(case, tmp_path, dtype), arithmetics.named(arithmetic(case, dtype)), mode="local")


def first_divergence(case: Case, tmp_path: Path, dtype: str, patch: Any) -> str:
    """The stage at which a patched model diverges first; what explains it is not asked."""
    A = arithmetics.named(arithmetic(case, dtype))
    tape = Local(dumped(case, tmp_path, dtype, patch), A, Judge(A, sum(math.prod(s) for _, _, s in declared_stages(case))), explained=0)
    run(case, Noise(A), tape)
    return tape.divergences[0].stage


#: What the modules of a family do not show.
UNSEEN = {
    "laguna": {"router_scores", "expert_weights", "expert_out"},
    "qwen38-flash-next": {
        *("streams", "q_conv", "k_conv", "v_conv", "q_norm", "k_norm", "delta_state", "delta_norm", "ple_gate", "ple_act"),
        *("q_raw", "attn_gate", "index_cells", "index_q", "index_pooled", "index_k_norm", "index_k", "index_scores"),
        *("router_scores", "shared_out"),
    },
}


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(
    "family", ["llama", "muse-glimmer", "laguna", "laguna, router capped", "qwen38-flash-next", "qwen38-flash-next, silu gate"]
)
def test_a_family_agrees_at_every_stage_its_modules_show(family, dtype, cases, tmp_path):
    report = judged(cases(family), tmp_path, dtype)
    assert report.verdict == "parity" and not report.extra
    assert {u.rpartition(".")[2] for u in report.unseen} - UNSEEN.get(family.partition(",")[0], set()) <= {"router"}


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_the_engine_in_its_cage_is_judged_by_its_own_arithmetic(dtype, cases):
    candidate = candidates.parse("transformers" if dtype == "f32" else "transformers-bf16")
    report = run_candidate(cases("laguna"), candidate, mode="local")
    assert report.verdict == "parity" and report.candidate["dtype"] == dtype


def test_weights_cast_behind_the_loader_s_back_take_the_rotary_frequencies_along(cases, tmp_path):
    """``model.to(bfloat16)`` rounds the frequencies, which ``from_pretrained`` leaves in float32."""
    import torch

    assert first_divergence(cases("llama"), tmp_path, "bf16", lambda model: model.to(torch.bfloat16)) == "target.L0.q_rope"


def scaled(path: str, factor: float) -> Any:
    def patch(model: Any) -> None:
        model.get_parameter(path).data *= factor

    return patch


def changed(path: str, name: str, factor: float) -> Any:
    def patch(model: Any) -> None:
        module = model.get_submodule(path)
        setattr(module, name, getattr(module, name) * factor)

    return patch


L0, L1, L3 = (f"model.layers.{i}." for i in (0, 1, 3))
MUSE = "model.language_model.layers.1."
PATCHES = {
    "llama": {
        "target.L0.xn": scaled(L0 + "input_layernorm.weight", 1.01),
        "target.L1.xn": changed(L1 + "input_layernorm", "variance_epsilon", 1e4),
        "target.L0.q_raw": scaled(L0 + "self_attn.q_proj.weight", 1.01),
        "target.L1.v": scaled(L1 + "self_attn.v_proj.weight", 0.99),
        "target.L0.q_rope": changed("model.rotary_emb", "inv_freq", 1.01),
        "target.L1.attn": changed(L1 + "self_attn", "scaling", 1.02),
        "target.L1.o": scaled(L1 + "self_attn.o_proj.weight", 1.01),
        "target.L0.mlp_up": scaled(L0 + "mlp.up_proj.weight", 1.01),
        "target.L1.mlp_down": scaled(L1 + "mlp.down_proj.weight", 1.01),
        "target.final_norm": scaled("model.norm.weight", 1.01),
    },
    "muse-glimmer": {
        "target.L1.q_norm": changed(MUSE + "self_attn", "qk_scale_factor", 1.02),
        "target.L1.attn_gate": scaled(MUSE + "self_attn.gate_proj.weight", 1.02),
        "target.L1.post_attn_norm": scaled(MUSE + "post_attention_layernorm.weight", 1.5),
        "target.L1.xn_mlp": scaled(MUSE + "pre_feedforward_layernorm.weight", 1.5),
        "target.logits": lambda m: setattr(m.config.text_config, "final_logit_softcapping", 30.0),
    },
    "laguna": {
        "target.L0.k_norm": changed(L0 + "self_attn.k_norm", "variance_epsilon", 1e5),
        "target.L1.router_logits": scaled(L1 + "mlp.gate.weight", 1.02),
        "target.L1.expert_gate": scaled(L1 + "mlp.experts.gate_up_proj", 1.02),
        "target.L1.expert_down": scaled(L1 + "mlp.experts.down_proj", 1.02),
        "target.L1.mlp_out": changed(L1 + "mlp", "routed_scaling_factor", 1.05),
        "target.L0.q_rope": changed("model.rotary_emb", "full_attention_inv_freq", 1.01),
        "target.L1.attn": lambda m: setattr(m.model.config, "sliding_window", 6),
    },
    "qwen38-flash-next": {
        "target.L0.attn_hc.low_raw": scaled(L0 + "attn_hyper_connection.input_mix_weight_down.weight", 1.02),
        "target.L0.q": scaled(L0 + "linear_attn.conv1d.weight", 1.02),
        "target.L0.decay": scaled(L0 + "linear_attn.dt_bias", 1.1),
        "target.L0.attn_gated": scaled(L0 + "linear_attn.norm.weight", 1.02),
        "target.L1.ple_key": scaled(L1 + "ple.norm_key.weight", 1.5),
        "target.L1.ple_conv": scaled(L1 + "ple.conv1d.weight", 1.02),
        "target.L3.index_q_norm": scaled(L3 + "self_attn.indexer.q_layernorm.weight", 1.5),
        "target.L3.index_selected": lambda m: setattr(m.model.layers[3].self_attn.indexer, "block_topk", 1),
        "target.L1.shared_router": scaled(L1 + "mlp.shared_expert_gate.weight", 1.02),
        "target.final_hc.mix": scaled("model.hyper_connection_mixer.input_mix_weight_up.weight", 1.02),
    },
}


@pytest.mark.parametrize(("family", "stage"), [(family, stage) for family, patches in PATCHES.items() for stage in patches])
def test_one_module_patched_wrong_is_named(family, stage, cases, tmp_path):
    """In bfloat16, where what a mistake moves has to stand beside coarse roundings; a llama in float32."""
    assert first_divergence(cases(family), tmp_path, "f32" if family == "llama" else "bf16", PATCHES[family][stage]) == stage


def test_what_the_hooks_saved_is_imported(cases, tmp_path):
    import torch

    from parity.adapters.hooks import saved
    from parity.adapters.transformers import load

    case = cases("llama")
    model = load(case.model)
    with torch.inference_mode(), saved(model, 0, tmp_path / "a.safetensors"):
        model(torch.from_numpy(case.steps[0].array)[None], use_cache=False)
    done = import_recording("transformers", tmp_path / "a.safetensors", case, tmp_path / "dump")
    assert not done.findings and not done.unmapped
    assert compare_dump(case, open_dump(tmp_path / "dump"), arithmetics.named("transformers-f32"), mode="local").verdict == "parity"
