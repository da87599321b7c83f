"""MLX as a candidate: the targets of mlx_lm in float32 and bfloat16, every stage they show, and one module patched wrong at a time."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dumps import Dump
from oracle import arithmetic as arithmetics
from oracle.artifacts import make_artifact
from parity import candidates
from parity.adapters import ADAPTERS
from parity.adapters import mlx as adapter
from parity.case import Case
from parity.comparing import compare_dump
from parity.errors import UsageError
from parity.flow import run_candidate
from parity.making import drafter_case, target_case
from parity.report import Report
from tests.peers.patching import dumped, first_divergence, replaced, scaled

pytestmark = [pytest.mark.peers, pytest.mark.skipif(find_spec("mlx_lm") is None, reason="needs mlx-lm (the extra `mlx`)")]
SIZES = {"hidden": 48, "intermediate": 64, "heads": 6, "kv_heads": 2, "head_dim": 8, "vocab": 67}
TARGET = {"role": "target", "container": "safetensors"}
#: Name of a model -> its family and how it is made. A Laguna of one layer has no experts, and rotates by stretched frequencies.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {**SIZES, "layers": 2}),
    "muse-glimmer": ("muse-glimmer", TARGET),
    "laguna": ("laguna", TARGET),
    "laguna, dense": ("laguna", {**TARGET, "layers": 1}),
}
#: MLX on a CPU multiplies experts in float32 only.
RUNS = [(m, d) for m in MODELS for d in ("f32", "bf16") if (m, d) != ("laguna", "bf16")]
#: What the modules of a family do not show.
UNSEEN = {"laguna": {"router_scores", "expert_weights", "expert_out"}}


@pytest.fixture(scope="module")
def cases(tmp_path_factory) -> Any:
    """A case of a model with bf16 weights, made once."""

    @cache
    def made(model: str) -> Case:
        family, sizes = MODELS[model]
        folder = make_artifact(family, "tiny", "bf16", tmp_path_factory.mktemp("mlx"), seed=4, **sizes)[0]
        return target_case(folder, prefill=40, block=6, seed=0)

    return made


def recorded(case: Case, folder: Path, dtype: str, patch: Any = None) -> Dump:
    import mlx.core as mx

    with mx.stream(mx.cpu):
        model = adapter.load(case.model, dtype)
        if patch is not None:
            patch(model)
        return dumped(adapter, "mlx_lm", case, model, folder)


def judged(case: Case, dump: Dump, arithmetic: str) -> Report:
    return compare_dump(case, dump, arithmetics.named(arithmetic), mode="local", explained=0)


def diverging(report: Report) -> set[str]:
    return {s.stage.rpartition(".")[2] for s in report.stages if s.verdict == "diverge"}


@pytest.mark.parametrize(("model", "dtype"), RUNS)
def test_a_family_agrees_at_every_stage_its_modules_show(model, dtype, cases, tmp_path):
    """Sliding layers past their window; experts of few rows, and of so many that they are sorted."""
    case = cases(model)
    report = judged(case, recorded(case, tmp_path, dtype), f"mlx-{dtype}")
    assert report.verdict == "parity" and not report.extra, report.first_divergence
    assert {u.rpartition(".")[2] for u in report.unseen} == UNSEEN.get(model, set())


#: What another engine's bf16 says wrong of MLX: where a scalar or a sum 1 + w is rounded, which side is scaled, how a sigmoid is formed.
ELSEWHERE = {
    "llama": {"attn", "mlp_act"},
    "muse-glimmer": {"xn", "q_norm", "attn", "attn_gated", "post_attn_norm", "xn_mlp", "mlp_act", "post_mlp_norm", "logits"},
    "laguna, dense": {"q_rope", "k_rope", "attn", "mlp_act"},
}


@pytest.mark.parametrize("model", ELSEWHERE)
def test_another_profile_is_not_this_engine_s(model, cases, tmp_path):
    case = cases(model)
    dump = recorded(case, tmp_path, "bf16")
    assert diverging(judged(case, dump, "transformers-bf16")) == ELSEWHERE[model]
    plain = diverging(judged(case, dump, "f32"))
    assert {"q_raw", "mlp_down", "h_mlp", "final_norm"} <= plain and not plain & {"embed", "k_cells", "v_cells", "pick"}
    assert {"xn", "q_rope", "attn", "mlp_act"} <= diverging(judged(case, dump, "bf16"))


@pytest.mark.parametrize("name", ["mlx", "mlx-bf16"])
def test_the_engine_in_its_cage_is_judged_by_its_own_arithmetic(name, cases):
    report = run_candidate(cases("llama"), candidates.parse(name), mode="local")
    assert report.verdict == "parity" and not report.unseen and not report.extra, report.findings
    assert report.candidate["dtype"] == ADAPTERS[name].options.get("dtype", "f32")


def test_what_it_cannot_run_is_refused(cases, tmp_path):
    drafter = make_artifact("qwen3", "tiny", "bf16", tmp_path / "qwen3", seed=5, block_size=6, mask_token_id=66, **SIZES)
    with pytest.raises(UsageError, match="only targets are driven"):
        ADAPTERS["mlx"].run(drafter_case(drafter[0], drafter[1], family="qwen3", appends=(3,)), tmp_path / "dump")
    with pytest.raises(UsageError, match="multiplies experts in float32 only"):
        ADAPTERS["mlx-bf16"].run(cases("laguna"), tmp_path / "dump")


L0, L1 = "model.layers.0.", "model.layers.1."
PATCHES = {
    "llama": {
        "target.L0.xn": scaled(L0 + "input_layernorm.weight"),
        "target.L0.k_raw": scaled(L0 + "self_attn.k_proj.weight"),
        "target.L0.q_rope": scaled(L0 + "self_attn.rope.base", 1.1),
        "target.L1.attn": scaled(L1 + "self_attn.scale", 1.02),
        "target.L1.o": scaled(L1 + "self_attn.o_proj.weight"),
        "target.L0.mlp_up": scaled(L0 + "mlp.up_proj.weight"),
        "target.L1.mlp_down": scaled(L1 + "mlp.down_proj.weight"),
        "target.final_norm": scaled("model.norm.weight"),
    },
    "muse-glimmer": {
        "target.embed_norm": scaled("model.embed_eps", 1e3),
        "target.L1.q_norm": scaled(L1 + "self_attn.qk_scale_factor", 1.02),
        "target.L1.attn_gate": scaled(L1 + "self_attn.gate_proj.weight", 1.02),
        "target.L1.post_attn_norm": scaled(L1 + "post_attention_layernorm.weight", 1.5),
        "target.L0.attn": scaled("model.window", 0.5),
        "target.logits": scaled("args.final_logit_softcapping", 1.5),
    },
    "laguna": {
        "target.L0.k_norm": scaled(L0 + "self_attn.k_norm.eps", 1e5),
        "target.L1.router_logits": scaled(L1 + "mlp.gate.proj.weight", 1.02),
        "target.L1.selected": scaled(L1 + "mlp.gate.e_score_correction_bias", -1.0),
        "target.L1.expert_gate": scaled(L1 + "mlp.switch_mlp.gate_proj.weight", 1.02),
        "target.L1.expert_down": scaled(L1 + "mlp.switch_mlp.down_proj.weight", 1.02),
        "target.L1.mlp_out": scaled(L1 + "mlp.routed_scaling_factor", 1.05),
        "target.L1.attn": replaced("model.sliding_window", 6),
    },
    "laguna, dense": {"target.L0.q_rope": scaled(L0 + "self_attn.rope.mscale", 1.02)},
}


@pytest.mark.parametrize(("model", "dtype", "stage"), [(m, d, stage) for m, d in RUNS for stage in PATCHES[m]])
def test_one_module_patched_wrong_is_named(model, dtype, stage, cases, tmp_path):
    case = cases(model)
    assert first_divergence(case, recorded(case, tmp_path, dtype, PATCHES[model][stage]), f"mlx-{dtype}") == stage
