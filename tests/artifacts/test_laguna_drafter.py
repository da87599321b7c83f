"""The Laguna drafter's folder: its forms open as one model, and every rule of `specs/laguna.md` section 4 refuses by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracle.artifacts import ArtifactError, open_drafter_files
from oracle.artifacts.laguna import QKV, matches
from oracle.drafters.dialect import DialectError
from tests.artifacts.artifact_files import DIM, HEADS, HIDDEN, INTER, KV, VOCAB, Folder, changed, config_sizes, numbers

LAYERS, TARGET_HIDDEN = 2, 24
Edit = Callable[[Folder], Any]


def folder(fused: bool = True, prefix: str = "") -> Folder:
    config = config_sizes(LAYERS) | {
        "architectures": ["DFlashLagunaForCausalLM"],
        "model_type": "laguna",
        "rope_theta": 500000.0,
        "sliding_window": 8,
        "layer_types": ["sliding_attention"] * LAYERS,
        "gating": "per-head",
        "attention_bias": False,
        "num_experts": 0,
        "draft_vocab_size": VOCAB,
        "dflash_config": {"block_size": 4, "mask_token_id": 5, "num_target_layers": 6, "target_layer_ids": [1, 4], "causal": True},
    }
    q, kv = HEADS * DIM, KV * DIM
    layer: dict[str, list[int]] = {f"self_attn.{n}_norm.weight": [DIM] for n in "qk"}
    layer |= {f"{n}_layernorm.weight": [HIDDEN] for n in ("input", "post_attention")}
    layer |= {"self_attn.o_proj.weight": [HIDDEN, q], "self_attn.g_proj.weight": [HEADS, HIDDEN]}
    layer |= {"mlp.gate_proj.weight": [INTER, HIDDEN], "mlp.up_proj.weight": [INTER, HIDDEN], "mlp.down_proj.weight": [HIDDEN, INTER]}
    apart = {f"self_attn.{n}_proj.weight": [rows, HIDDEN] for n, rows in (("q", q), ("k", kv), ("v", kv))}
    layer |= {QKV: [q + 2 * kv, HIDDEN]} if fused else apart
    shapes = {"fc.weight": [HIDDEN, 2 * TARGET_HIDDEN], "hidden_norm.weight": [HIDDEN], "norm.weight": [HIDDEN]}
    shapes |= {f"aux_hidden_norms.{i}.weight": [TARGET_HIDDEN] for i in range(2)}
    shapes |= {f"layers.{n}.{name}": shape for n in range(LAYERS) for name, shape in layer.items()}
    return Folder(config, {prefix + name: ["F32", shape, numbers(*shape)] for name, shape in shapes.items()})


def test_the_folder_opens_with_its_dialect(tmp_path: Path) -> None:
    files = open_drafter_files(folder().write(tmp_path / "d"))
    g, d = files.geometry, files.dialect
    assert files.identity.family == d.family == "laguna"
    assert (g.tap_ids, g.target_layers, g.target_hidden, g.window, g.window_source) == ((1, 4), 6, TARGET_HIDDEN, 8, "file")
    assert (d.window_rule, d.window, d.causal, d.attn_gate) == ("W_LT", 8, (True,) * LAYERS, "softplus")
    assert d.tap_norm and d.ctx_layernorm and d.rope.theta == 5e5 and d.rope.attention_factor == 1.0
    w = files.weights
    assert w.tap_norm is not None and w.tap_norm.shape == (2 * TARGET_HIDDEN,)
    assert w.layers[0].attn_gate is not None and w.layers[0].attn_gate.axes == ("head", "in")
    assert w.layers[1].q.shape == (HEADS, DIM, HIDDEN) and w.layers[1].k.shape == w.layers[1].v.shape == (KV, DIM, HIDDEN)


def test_fused_rows_are_q_then_k_then_v_and_the_taps_norms_stand_in_order(tmp_path: Path) -> None:
    made = folder()
    rows = np.arange((HEADS + 2 * KV) * DIM, dtype="<f4")[:, None].repeat(HIDDEN, 1)
    made.tensors[f"layers.0.{QKV}"][2] = rows.tobytes()
    for i in range(2):
        made.tensors[f"aux_hidden_norms.{i}.weight"][2] = np.full(TARGET_HIDDEN, i + 1, "<f4").tobytes()
    w = open_drafter_files(made.write(tmp_path / "d")).weights
    parts = [getattr(w.layers[0], n).array()[:, :, 0].ravel() for n in "qkv"]
    assert np.array_equal(np.concatenate(parts), np.arange(len(rows)))
    assert w.tap_norm is not None and w.tap_norm.array().tolist() == [1] * TARGET_HIDDEN + [2] * TARGET_HIDDEN


@pytest.mark.parametrize("prefix", ["", "model."])
def test_fused_and_apart_are_one_model(prefix: str, tmp_path: Path) -> None:
    """And so are one file and shards, with the prefix and without (rule: strip one leading ``model.``)."""
    whole, apart = folder(), folder(False, prefix)
    for n in range(LAYERS):
        data, first = whole.tensors[f"layers.{n}.{QKV}"][2], 0
        for part in "qkv":
            one = apart.tensors[f"{prefix}layers.{n}.self_attn.{part}_proj.weight"]
            size = len(one[2])
            one[2] = data[first : first + size]
            first += size
    names = list(apart.tensors)
    apart.shards = {"model-00001-of-00002.safetensors": names[:7], "model-00002-of-00002.safetensors": names[7:]}
    a, b = (open_drafter_files(f.write(tmp_path / str(i))).weights for i, f in enumerate((whole, apart)))
    for x, y in zip(a.layers, b.layers, strict=True):
        assert all(np.array_equal(getattr(x, n).array(), getattr(y, n).array()) for n in "qkvo")


def config(**changes: Any) -> Edit:
    return lambda f: f.config.update(changes)


def inner(**changes: Any) -> Edit:
    return lambda f: f.config["dflash_config"].update(changes)


def without(*keys: str) -> Edit:
    return lambda f: [f.config.pop(k) for k in keys]


def tensor(name: str, *shape: int) -> Edit:
    return lambda f: f.tensors.update({name: ["F32", list(shape), numbers(*shape)]})


def dropped(name: str) -> Edit:
    return lambda f: f.tensors.pop(name)


def doubled(f: Folder) -> None:
    """Both the prefixed and the bare copy of a tensor."""
    f.tensors["model.fc.weight"] = f.tensors["fc.weight"]


REFUSALS: dict[str, tuple[Edit, str]] = {
    "model type": (config(model_type="qwen3"), "model_type: expected 'laguna'"),
    "architecture marker": (config(architectures=["Other"]), "architectures: expected a list with 'DFlashLagunaForCausalLM'"),
    "heads divide": (config(num_key_value_heads=3), "num_key_value_heads: expected a divisor of"),
    "plain theta": (config(rope_parameters={"rope_theta": 1e4}), "rope_parameters: expected no such key"),
    "no attention bias": (config(attention_bias=True), "attention_bias: expected False"),
    "no experts": (config(num_experts=4), "num_experts: expected 0"),
    "gate per head": (config(gating="per-element"), "gating: expected 'per-head' or True"),
    "gate declared": (without("gating"), "gating: expected 'per-head' or true"),
    "layer types present": (without("layer_types"), "missing key layer_types"),
    "layer types as many": (config(layer_types=["sliding_attention"]), "layer_types: expected a list of 2"),
    "every layer slides": (config(layer_types=["sliding_attention", "full_attention"]), "each sliding_attention"),
    "window at least 2": (config(sliding_window=1), "sliding_window: expected a whole number from 2"),
    "window at most 2^20": (config(sliding_window=(1 << 20) + 1), "from 2 to 1048576"),
    "windows equal": (config(sliding_windows=[8, 9]), "sliding_windows: expected a list of 2 equal"),
    "windows as many": (config(sliding_windows=[8]), "sliding_windows: expected a list of 2 equal"),
    "draft vocabulary": (config(draft_vocab_size=VOCAB - 1), f"draft_vocab_size: expected {VOCAB}"),
    "causal": (inner(causal=False), "dflash_config.causal: expected True"),
    "block at least 2": (inner(block_size=1), "dflash_config.block_size: expected a whole number from 2 to 512"),
    "block at most 512": (inner(block_size=513), "from 2 to 512"),
    "mask inside vocabulary": (inner(mask_token_id=VOCAB), f"mask_token_id: expected a whole number from 0 to {VOCAB - 1}"),
    "taps increase": (inner(target_layer_ids=[4, 1]), "target_layer_ids: expected strictly increasing"),
    "taps below the target's layers": (inner(target_layer_ids=[1, 6]), "target_layer_ids.*from 0 to 5"),
    "one tap per layer": (inner(target_layer_ids=[1]), "target_layer_ids: expected 2 taps"),
    "eagle ids": (config(eagle_aux_hidden_state_layer_ids=[1, 4]), r"eagle_aux_hidden_state_layer_ids: expected \[2, 5\]"),
    "fused and split": (tensor("layers.0.self_attn.q_proj.weight", HEADS * DIM, HIDDEN), "q, k and v are both fused .* and apart"),
    "missing name": (dropped("aux_hidden_norms.1.weight"), "missing tensors: 'aux_hidden_norms.1.weight'"),
    "unexpected name": (tensor("embed_tokens.weight", VOCAB, HIDDEN), "does not know: 'embed_tokens.weight'"),
    "quantised leaves": (tensor("fc.scales", HIDDEN, 1), "does not know: 'fc.scales'"),
    "prefixed and bare copies": (doubled, "carry the prefix 'model.' and others do not"),
    "tap norms as wide": (tensor("aux_hidden_norms.1.weight", TARGET_HIDDEN + 1), "aux_hidden_norms.1.weight' has the shape"),
    "fc columns": (tensor("fc.weight", HIDDEN, 2 * TARGET_HIDDEN + 1), "fc.weight' has the shape"),
    "qkv rows": (tensor(f"layers.1.{QKV}", (HEADS + 2 * KV) * DIM + 1, HIDDEN), "qkv_proj.weight' has the shape"),
    "gate rows": (tensor("layers.1.self_attn.g_proj.weight", HEADS * DIM, HIDDEN), "g_proj.weight' has the shape"),
    "layers at least one": (config(num_hidden_layers=0), "num_hidden_layers: expected a whole number from 1 to 1024"),
    "kv heads at least one": (config(num_key_value_heads=0), "num_key_value_heads: expected a whole number from 1"),
    "head width at least 2": (config(head_dim=1), "head_dim: expected a whole number from 2"),
    "no rope scaling": (config(rope_scaling={"rope_type": "yarn"}), "rope_scaling: expected no such key"),
    "no attention sinks": (config(swa_attention_sink_enabled=True), "does not know: 'swa_attention_sink_enabled'"),
    "activation": (config(hidden_act="gelu"), "hidden_act: expected 'silu'"),
    "a map of a draft vocabulary": (tensor("d2t", VOCAB), "does not know: 'd2t'"),
    "own head": (tensor("lm_head.weight", VOCAB, HIDDEN), "does not know: 'lm_head.weight'"),
    "leaves of a norm": (tensor("norm.scales", HIDDEN), "does not know: 'norm.scales'"),
    "o columns": (tensor("layers.1.self_attn.o_proj.weight", HIDDEN, HEADS * DIM + 1), "o_proj.weight' has the shape"),
    "MLP rows": (tensor("layers.1.mlp.gate_proj.weight", INTER + 1, HIDDEN), "gate_proj.weight' has the shape"),
    "head norm": (tensor("layers.1.self_attn.q_norm.weight", DIM + 2), "q_norm.weight' has the shape"),
}


def test_the_folder_that_the_refusals_edit_is_sound(tmp_path: Path) -> None:
    open_drafter_files(folder().write(tmp_path / "d"), "laguna")


@pytest.mark.parametrize("rule", REFUSALS)
def test_every_rule_refuses_by_name(rule: str, tmp_path: Path) -> None:
    edit, message = REFUSALS[rule]
    made = changed(folder(), edit)
    with pytest.raises(ArtifactError, match=message):
        open_drafter_files(made.write(tmp_path / "d"), "laguna")


def test_an_incomplete_split_is_refused(tmp_path: Path) -> None:
    made = folder(False)
    made.tensors.pop("layers.1.self_attn.k_proj.weight")
    with pytest.raises(ArtifactError, match=r"missing tensors: 'layers.1.self_attn.k_proj.weight'"):
        open_drafter_files(made.write(tmp_path / "d"))


def test_routing() -> None:
    """By the architecture, or by model type with a drafter's object; a plain target does not match."""
    assert matches({"architectures": ["DFlashLagunaForCausalLM"]})
    assert matches({"model_type": "laguna", "dflash_config": {}})
    assert not matches({"model_type": "laguna", "architectures": ["LagunaForCausalLM"]})
    assert not matches({"model_type": "laguna", "dflash_config": None})


def test_a_gguf_without_its_own_parts_is_refused(tmp_path: Path) -> None:
    from tests.artifacts.artifact_files import qwen3_gguf

    path = tmp_path / "d.gguf"
    path.write_bytes(qwen3_gguf().render())
    with pytest.raises(ArtifactError, match=r"missing tensors: 'enc.aux_norm.weight'"):
        open_drafter_files(path, "laguna")


def test_engines_are_named_values_of_the_dialect(tmp_path: Path) -> None:
    """`specs/laguna.md` 3.4: rows A to D."""
    d = open_drafter_files(folder().write(tmp_path / "d")).dialect
    rules = {"vllm": ("W_LT", True), "mlxcel": ("W_LT", True), "mlx-vlm": ("W_CACHE", False), "speculators": ("W_ANCHOR", True)}
    for name, want in (rules | {"issue-1351": ("W_RING", False)}).items():
        made = d.override({"engine": name})
        assert (made.window_rule, made.ctx_layernorm) == want
    with pytest.raises(DialectError, match="engine='muser' of family laguna: expected one of vllm, mlxcel"):
        d.override({"engine": "muser"})
