"""Folders of the Laguna target: every rule by which a config or its tensors are refused, and what is not one."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from oracle.artifacts import ArtifactError, open_drafter_files, open_target_files
from tests.artifacts.test_target_gguf import make

LAYERS, HEADS, DIM, HIDDEN, EXPERTS = 6, 4, 16, 32, 4
GONE = object()
Change = dict[str, Any]


def rope(kind: str = "full_attention", **changes: Any) -> Change:
    """One key of the rope of one kind of layer changed, or gone."""
    return {f"rope_parameters.{kind}.{key}": value for key, value in changes.items()}


CONFIG: dict[str, tuple[Change, list[str]]] = {
    "another model type": ({"model_type": "llama"}, ["model_type", "'laguna'"]),
    "no layers": ({"num_hidden_layers": 0}, ["num_hidden_layers", "1 to 1024"]),
    "layers beyond 1024": ({"num_hidden_layers": 1025}, ["num_hidden_layers", "1 to 1024"]),
    "experts beyond 4096": ({"num_experts": 4097}, ["num_experts", "1 to 4096"]),
    "no expert at all": ({"num_experts_per_tok": 0}, ["num_experts_per_tok", "1 to 4"]),
    "more experts than there are": ({"num_experts_per_tok": 5}, ["num_experts_per_tok", "1 to 4"]),
    "a head width of one": ({"head_dim": 1}, ["head_dim", "from 2 to"]),
    "an odd head width": ({"head_dim": 15}, ["head_dim", "even"]),
    "an odd rotary width": (rope(partial_rotary_factor=0.2), ["partial_rotary_factor", "even"]),
    "a rotary width beyond the head": (rope(partial_rotary_factor=1.5), ["partial_rotary_factor", "to 1"]),
    "heads of another depth": ({"num_attention_heads_per_layer": [4] * 5}, ["num_attention_heads_per_layer", "a list of 6"]),
    "heads that do not divide": ({"num_attention_heads_per_layer": [4, 5, 4, 4, 4, 4]}, ["num_attention_heads_per_layer", "2 kv heads"]),
    "heads beyond bounds": ({"num_attention_heads_per_layer": [2048] * 6}, ["num_attention_heads_per_layer", "1024"]),
    "layer types of another depth": ({"layer_types": ["full_attention"] * 5}, ["layer_types", "6 entries"]),
    "a layer of another type": ({"layer_types": ["linear_attention"] * 6}, ["layer_types", "full_attention or sliding_attention"]),
    "MLP types of another depth": ({"mlp_layer_types": ["sparse"] * 5}, ["mlp_layer_types", "6 entries"]),
    "an MLP of another type": ({"mlp_layer_types": ["moe"] * 6}, ["mlp_layer_types", "dense or sparse"]),
    "a window of one": ({"sliding_window": 1}, ["sliding_window", "2 to 1048576"]),
    "a window beyond bounds": ({"sliding_window": (1 << 20) + 1}, ["sliding_window", "2 to 1048576"]),
    "no window": ({"sliding_window": GONE}, ["missing key sliding_window"]),
    "a scaling that is not finite": ({"moe_routed_scaling_factor": 1e300}, ["moe_routed_scaling_factor", "finite"]),
    "a cap below zero": ({"moe_router_logit_softcapping": -1.0}, ["moe_router_logit_softcapping", "from 0"]),
    "attention biases": ({"attention_bias": True}, ["attention_bias", "False"]),
    "biases of q, k and v": ({"qkv_bias": True}, ["qkv_bias", "False"]),
    "attention sinks": ({"swa_attention_sink_enabled": True}, ["swa_attention_sink_enabled", "False"]),
    "router weights on the input": ({"moe_apply_router_weight_on_input": True}, ["moe_apply_router_weight_on_input", "False"]),
    "a softmax router": ({"moe_router_use_sigmoid": False}, ["moe_router_use_sigmoid", "True"]),
    "another router": ({"moe_router_score_func": "sqrtsoftplus"}, ["moe_router_score_func", "'sigmoid'"]),
    "unnormalised experts": ({"norm_topk_prob": False}, ["norm_topk_prob", "True"]),
    "sparse layers by a step": ({"decoder_sparse_step": 2}, ["decoder_sparse_step", "1"]),
    "dense layers by a list": ({"mlp_only_layers": [0]}, ["mlp_only_layers", "does not know"]),
    "another gate": ({"gating": "per-row"}, ["gating", "'per-head'"]),
    "another activation": ({"hidden_act": "gelu"}, ["hidden_act", "'silu'"]),
    "a softcap of logits": ({"final_logit_softcapping": 30.0}, ["final_logit_softcapping", "does not know"]),
    "an embedding scale": ({"embedding_scale": 2.0}, ["embedding_scale", "does not know"]),
    "another scaling": (rope(rope_type="llama3"), ["rope_parameters.full_attention.rope_type", "'default' or 'yarn'"]),
    "yarn without its factor": (rope(factor=GONE), ["missing key rope_parameters.full_attention.factor"]),
    "yarn without its length": (rope(original_max_position_embeddings=GONE), ["original_max_position_embeddings"]),
    "yarn that is not truncated": (rope(truncate=False), ["rope_parameters.full_attention.truncate", "True"]),
    "a rope with more keys": (rope(mscale=1.0), ["rope_parameters.full_attention.mscale", "does not know"]),
    "no theta": (rope(rope_theta=GONE), ["missing key rope_parameters.full_attention.rope_theta"]),
    "no rope of sliding layers": ({"rope_parameters.sliding_attention": GONE}, ["sliding_attention", "some layers slide"]),
    "quantised": ({"quantization_config": {"bits": 4}}, ["quantization_config", "does not know"]),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("laguna", tmp_path_factory.mktemp("laguna"), "safetensors")


def changed(sound: Path, out: Path, changes: Change) -> Path:
    """The folder with keys of its config, named by their path, changed or gone."""
    config = copy.deepcopy(json.loads((sound / "config.json").read_text()))
    for path, value in changes.items():
        *outer, last = path.split(".")
        at = config
        for name in outer:
            at = at[name]
        at.pop(last, None) if value is GONE else at.update({last: value})
    (out / "config.json").write_text(json.dumps(config))
    if not (out / "model.safetensors").exists():
        (out / "model.safetensors").symlink_to(sound / "model.safetensors")
    return out


@pytest.mark.parametrize("rule", CONFIG)
def test_a_config_is_refused_by_rule(rule: str, sound: Path, tmp_path: Path) -> None:
    changes, words = CONFIG[rule]
    with pytest.raises(ArtifactError) as caught:
        open_target_files(changed(sound, tmp_path, changes))
    text = str(caught.value)
    assert "config.json" in text and "\n" not in text and [w for w in words if w not in text] == [], text


L1 = "model.layers.1."
TENSORS: dict[str, tuple[dict[str, tuple[int, ...] | None], list[str]]] = {
    "a gate of another width": ({f"{L1}self_attn.g_proj.weight": (12, HIDDEN)}, ["g_proj.weight", "6 rows", "96 (per", "found 12"]),
    "a sink": ({f"{L1}self_attn.sink": (6,)}, ["self_attn.sink", "does not know"]),
    "a bias": ({f"{L1}self_attn.q_proj.bias": (96,)}, ["q_proj.bias", "does not know"]),
    "a router of another width": ({f"{L1}mlp.gate.weight": (3, HIDDEN)}, ["mlp.gate.weight", "[3, 32]", "[4, 32]"]),
    "a selection bias missing": ({f"{L1}mlp.experts.e_score_correction_bias": None}, ["missing tensors", "e_score_correction_bias"]),
    "an expert missing": ({f"{L1}mlp.experts.3.up_proj.weight": None}, ["missing tensors", "experts.3.up_proj"]),
    "an expert too many": ({f"{L1}mlp.experts.4.up_proj.weight": (32, HIDDEN)}, ["experts.4.up_proj", "does not know"]),
    "experts that are packed and apart": ({f"{L1}mlp.experts.gate_up_proj": (4, 64, HIDDEN)}, ["missing tensors", "gate_up_proj"]),
    "a shared expert of another width": (
        {f"{L1}mlp.shared_expert.up_proj.weight": (48, HIDDEN)},
        ["shared_expert.up_proj.weight", "[48, 32]", "[32, 32]"],
    ),
    "q shaped by one count of heads": ({f"{L1}self_attn.q_proj.weight": (HEADS * DIM, HIDDEN)}, ["q_proj.weight", "[64, 32]", "[96, 32]"]),
    "no head": ({"lm_head.weight": None}, ["missing tensors", "lm_head.weight"]),
    "the drafter's tap norms": ({"model.aux_hidden_norms.0.weight": (HIDDEN,)}, ["aux_hidden_norms", "does not know"]),
}


@pytest.mark.parametrize("rule", TENSORS)
def test_tensors_are_refused_by_rule(rule: str, sound: Path, tmp_path: Path) -> None:
    edits, words = TENSORS[rule]
    tensors = dict(safetensors.numpy.load_file(sound / "model.safetensors"))
    for name, shape in edits.items():
        if shape is None:
            del tensors[name]
        else:
            tensors[name] = np.ones(shape, "<f4")
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ArtifactError) as caught:
        open_target_files(changed(sound, tmp_path, {}))
    assert [w for w in words if w not in str(caught.value)] == [], str(caught.value)


def test_the_folder_that_the_rules_edit_is_sound(sound: Path, tmp_path: Path) -> None:
    assert open_target_files(changed(sound, tmp_path, {})).geometry.layers == LAYERS
    released = {"gating": True, "swa_attention_sink_enabled": False, "qkv_bias": False, "moe_router_use_sigmoid": True}
    assert open_target_files(changed(sound, tmp_path, released)).geometry.layers == LAYERS


@pytest.mark.parametrize("container", ["safetensors", "gguf"])
def test_a_drafter_is_no_model_by_itself_and_a_target_no_drafter(container: str, sound: Path, tmp_path: Path) -> None:
    """The families' own predicates: the message names the family, a plain target does not match the drafter's."""
    drafter = make("laguna", tmp_path / "d", container, role=None)
    with pytest.raises(ArtifactError, match="a laguna drafter, no model by itself"):
        open_target_files(drafter)
    with pytest.raises(ArtifactError, match="for a drafter, found"):
        open_drafter_files(sound)
    if container == "safetensors":
        config = json.loads((drafter / "config.json").read_text()) | {"architectures": []}
        (drafter / "config.json").write_text(json.dumps(config))
        assert open_drafter_files(drafter).identity.family == "laguna"
