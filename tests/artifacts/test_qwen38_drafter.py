"""The DeepSpec drafter's files: both containers hold one drafter, and every rule by which a file is refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oracle
from oracle.artifacts import ArtifactError, make_artifact, open_drafter_files, open_target_files, qwen38
from oracle.artifacts.gguf_file import read_gguf
from oracle.artifacts.writers import Typed
from oracle.drafters.dialect import DialectError
from tests.artifacts.gguf_edit import Edit, Keys, Tensors, add, both, drop, put, renamed, rewritten

D = "dflash."

SIZES: dict[str, Any] = {"hidden": 16, "intermediate": 24, "heads": 4, "kv_heads": 2, "head_dim": 8, "vocab": 40, "mask_token_id": 36}

@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_artifact("qwen38-flash-next", "tiny", "f32", tmp_path_factory.mktemp("hf"), seed=3, **SIZES)[0]


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_artifact("qwen38-flash-next", "tiny", "f32", tmp_path_factory.mktemp("gguf"), seed=3, container="gguf", **SIZES)[0]


def test_it_has_58_tensors_and_predicts_from_the_anchor(folder: Path, gguf: Path):
    a, b = open_drafter_files(folder), open_drafter_files(gguf)
    assert len(read_gguf(gguf).tensors) == qwen38.TENSORS == 58
    assert a.identity.family == b.identity.family == "qwen38-flash-next"
    assert a.geometry == b.geometry and a.dialect == b.dialect
    assert a.dialect.anchor_layout == "predict_next" and not any(a.dialect.causal) and a.dialect.window_rule == "none"
    assert a.dialect.rope.dim == a.geometry.head_dim
    assert a.geometry.tap_ids == (0, 2, 3, 4, 6)
    assert np.array_equal(a.weights.layers[4].k.array(), b.weights.layers[4].k.array())
    assert np.array_equal(a.weights.hidden_norm.array(), b.weights.hidden_norm.array())


def test_a_writer_that_stores_taps_plus_one_is_told_by_its_keys(gguf: Path, tmp_path: Path):
    def other(keys: Keys, tensors: Tensors) -> None:
        theta, mask = keys.pop(D + "rope.frequency_base"), keys.pop(D + "mask_token_id")
        keys[D + "rope.freq_base"] = Typed("f32", theta.value)
        keys["tokenizer.ggml.mask_token_id"] = mask
        keys[D + "target_layers"] = Typed("array of i32", [t + 1 for t in keys[D + "target_layers"].value])
        keys[D + "sample_from_anchor"] = Typed("bool", True)

    made = open_drafter_files(rewritten(gguf, tmp_path / "d.gguf", other))
    assert made.geometry == open_drafter_files(gguf).geometry and made.dialect == open_drafter_files(gguf).dialect


ALIASED: dict[str, Edit] = {
    **{key: renamed(key, names[-1]) for key, names in qwen38.ALIASES.items()},
    "a second name of the same value": put("embedding_length", "u32", 16, arch="qwen3_dflash."),
    "the folder's names": renamed("blk.1.attn_q.weight", "layers.1.self_attn.q_proj.weight"),
    "the folder's outer names": both(
        renamed("output_norm.weight", "norm.weight"), renamed("enc.output_norm.weight", "hidden_norm.weight")
    ),
    "causality under the other name": renamed("dflash.attention.causal", "dflash.causal"),
    "no flags": drop("sample_from_anchor", "attention.causal", "has_confidence_head", "markov_rank"),
}


@pytest.mark.parametrize("name", ALIASED)
def test_other_names_of_keys_and_tensors_are_read(name: str, gguf: Path, tmp_path: Path):
    """`specs/qwen38-flash-next.md` 4.2, 4.3: nothing but the name changes."""
    one = open_drafter_files(gguf)
    made = open_drafter_files(rewritten(gguf, tmp_path / "d.gguf", ALIASED[name]), "qwen38-flash-next")
    assert (made.geometry, made.dialect) == (one.geometry, one.dialect) and made.identity.warnings == one.identity.warnings
    assert np.array_equal(made.weights.layers[1].q.array(), one.weights.layers[1].q.array())
    assert np.array_equal(made.weights.norm.array(), one.weights.norm.array())


def test_what_may_be_left_out_has_a_default_that_is_said(gguf: Path, tmp_path: Path):
    """The mask token has none: whoever opens the file gives it, within the vocabulary."""
    bare = rewritten(gguf, tmp_path / "d.gguf", drop("mask_token_id"))
    assert oracle.open_drafter(bare, {"mask_token_id": "7"}).geometry.mask_token_id == 7
    assert oracle.open_drafter(gguf, {"mask_token_id": "7"}).geometry.mask_token_id == 7
    with pytest.raises(ArtifactError, match="mask token 40 was asked for; expected one from 0 to 39"):
        oracle.open_drafter(bare, {"mask_token_id": "40"})
    for wrong in ("-1", "x"):
        with pytest.raises(DialectError, match=f"mask_token_id='{wrong}': expected a token id"):
            oracle.open_drafter(bare, {"mask_token_id": wrong})
    angle = open_drafter_files(rewritten(gguf, tmp_path / "t.gguf", drop("rope.frequency_base")))
    assert angle.dialect.rope.theta == 1e7 and any("theta 1e+07 is assumed" in w for w in angle.identity.warnings)
    square = make_artifact("qwen38-flash-next", "tiny", "f32", tmp_path / "s", seed=3, container="gguf", **(SIZES | {"head_dim": 4}))[0]
    width = open_drafter_files(rewritten(square, tmp_path / "w.gguf", drop("attention.key_length", "attention.value_length")))
    assert width.geometry.head_dim == 4 and any("hidden / heads = 4 is assumed" in w for w in width.identity.warnings)


REFUSED: dict[str, tuple[Edit, list[str]]] = {
    "a selector": (add("selector_hidden.weight", 4, 16), ["selector_hidden.weight", "a DFlash 2 part", "58"]),
    "a convolution": (add("blk.0.attn_conv_base.weight", 4, 16), ["attn_conv_base", "a DFlash 2 part"]),
    "a convolution's projection": (add("blk.0.ffn_conv_proj.weight", 4, 16), ["ffn_conv_proj", "a DFlash 2 part"]),
    "a confidence head": (add("conf_proj.weight", 1, 16), ["conf_proj.weight", "a DSpark part"]),
    "a reduced vocabulary": (add("d2t", 8), ["'d2t'", "a DSpark part"]),
    "its own embedding": (add("token_embd.weight", 40, 16), ["token_embd.weight", "an embedding of its own"]),
    "its own head": (add("output.weight", 40, 16), ["'output.weight'", "a head of its own"]),
    "a 59th tensor": (add("blk.0.attn_gate.weight", 8, 16), ["59 tensors", "expected the 58", "attn_gate"]),
    "57 tensors": (drop("blk.2.attn_k_norm.weight"), ["missing tensors", "blk.2.attn_k_norm.weight"]),
    "a tensor of another shape": (add("fc.weight", 16, 64), ["fc.weight", "[16, 64]", "[16, 80]"]),
    "a Markov rank": (put("markov_rank", "u32", 8), ["markov_rank", "no such part"]),
    "a selector's width": (put("selector_top_k", "u32", 4), ["selector_top_k", "no such part"]),
    "a confidence flag": (put("has_confidence_head", "string", "true"), ["has_confidence_head", "expected false"]),
    "the other layout": (put("sample_from_anchor", "string", "false"), ["sample_from_anchor", "expected true"]),
    "a causal block": (put("attention.causal", "bool", True), ["attention.causal", "expected false"]),
    "no taps": (drop("target_layers"), ["missing key dflash.target_layers"]),
    "falling taps": (put("target_layers", "array of u32", [0, 2, 4, 3, 6]), ["[0, 2, 4, 3, 6]", "strictly rising"]),
    "four taps": (put("target_layers", "array of u32", [0, 2, 3, 6]), ["4 taps", "5 taps"]),
    "four layers": (put("block_count", "u32", 4), ["4 layers", "5 layers"]),
    "a block of 129": (put("block_size", "u32", 129), ["block_size", "from 1 to 128"]),
    "no head width, and another than derived": (drop("attention.key_length"), ["blk.0.attn_q.weight", "[32, 16]", "[16, 16]"]),
    "no head width, and none to derive": (
        both(drop("attention.key_length"), put("attention.head_count", "u32", 5)),
        ["missing key dflash.attention.key_length"],
    ),
    "two names of a projection": (
        add("layers.1.self_attn.q_proj.weight", 32, 16),
        ["blk.1.attn_q.weight", "layers.1.self_attn.q_proj.weight", "two names of one tensor"],
    ),
    "two names of the final norm": (add("norm.weight", 16), ["norm.weight", "output_norm.weight", "two names of one tensor"]),
    "two names of the fusion norm": (add("hidden_norm.weight", 16), ["enc.output_norm.weight", "two names of one tensor"]),
    "a layer beyond the last under the other name": (add("layers.5.mlp.up_proj.weight", 24, 16), ["59 tensors", "layers.5"]),
    "an alias of another value": (
        put("block_count", "u32", 4, arch="qwen3_dflash."),
        ["qwen3_dflash.block_count", "expected the value of dflash.block_count, 5", "two names of one thing"],
    ),
    "an alias of another list of taps": (put("target_layers", "array of u32", [0, 2, 3, 4, 5], arch=""), ["target_layers", "two names"]),
    "an alias that is none": (put("context_length", "u32", 64, arch="qwen3."), ["qwen3.context_length", "does not know"]),
    "a causal block under the other name": (put("causal", "string", "1"), ["dflash.causal", "expected false"]),
    "layers beyond 64": (put("block_count", "u32", 65), ["block_count", "from 1 to 64"]),
    "taps beyond 64": (put("target_layers", "array of u32", list(range(65))), ["target_layers", "1 to 64 distinct"]),
    "a negative tap": (put("target_layers", "array of i32", [-1, 2, 3, 4, 6]), ["target_layers", "from 0 to"]),
    "a width of zero": (put("embedding_length", "u32", 0), ["embedding_length", "from 1 to"]),
    "a theta of zero": (put("rope.frequency_base", "f64", 0.0), ["rope.frequency_base", "a number from"]),
    "no vocabulary": (drop("vocab_size", "tokenizer.ggml.tokens"), ["tokenizer.ggml.tokens", "expected an array"]),
    "a mask outside the vocabulary": (put("mask_token_id", "u32", 40), ["mask_token_id", "from 0 to 39"]),
    "no mask": (drop("mask_token_id"), ["missing key dflash.mask_token_id", "--dialect mask_token_id=N"]),
    "two writers' keys": (put("rope.freq_base", "f32", 1e7), ["cannot tell who wrote the file", "plus one"]),
    "no writer's keys": (drop("rope.frequency_base", "mask_token_id"), ["cannot tell who wrote the file"]),
    "another architecture": (lambda keys, tensors: keys.update({"general.architecture": Typed("string", "llama")}), ["'dflash'"]),
    "an unknown key": (put("surprise", "u32", 1), ["dflash.surprise", "does not know"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_is_refused_by_rule(name: str, gguf: Path, tmp_path: Path):
    edit, words = REFUSED[name]
    with pytest.raises(ArtifactError) as caught:
        open_drafter_files(rewritten(gguf, tmp_path / "d.gguf", edit), "qwen38-flash-next")
    text = str(caught.value)
    assert "d.gguf" in text and "\n" not in text
    assert [w for w in words if w not in text] == [], text


CONFIG: dict[str, tuple[dict[str, Any], list[str]]] = {
    "no layout": ({"query_zero_predicts_next": None}, ["sample_from_anchor or query_zero_predicts_next"]),
    "the other layout": ({"query_zero_predicts_next": False}, ["query_zero_predicts_next", "expected true"]),
    "a Markov rank": ({"markov_rank": 4}, ["markov_rank", "no such part"]),
    "a confidence head": ({"enable_confidence_head": True}, ["enable_confidence_head", "expected false"]),
    "a causal block": ({"is_causal": True}, ["is_causal", "expected false"]),
    "a sliding layer": ({"layer_types": ["sliding_attention"] * 5}, ["layer_types"]),
    "another activation": ({"hidden_act": "gelu"}, ["hidden_act"]),
    "no mask": ({"mask_token_id": None}, ["missing key mask_token_id", "--dialect mask_token_id=N"]),
    "layers beyond 64": ({"num_hidden_layers": 65}, ["num_hidden_layers", "from 1 to 64"]),
    "falling taps": ({"target_layer_ids": [6, 4, 3, 2, 0]}, ["[6, 4, 3, 2, 0]", "strictly rising"]),
    "a block of 129": ({"block_size": 129}, ["block_size", "from 1 to 128"]),
    "a selector's width": ({"selector_top_k": 4}, ["selector_top_k", "no such part"]),
}


@pytest.mark.parametrize("name", CONFIG)
def test_a_config_is_refused_by_rule(name: str, folder: Path, tmp_path: Path):
    changes, words = CONFIG[name]
    config = copy.deepcopy(json.loads((folder / "config.json").read_text()))
    for key, value in changes.items():
        (config["dflash_config"] if key in config["dflash_config"] else config)[key] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    with pytest.raises(ArtifactError) as caught:
        open_drafter_files(tmp_path, "qwen38-flash-next")
    assert [w for w in words if w not in str(caught.value)] == [], str(caught.value)


TARGET: dict[str, tuple[dict[str, Any], list[str]]] = {
    "no output gate": ({"output_gate_type": None}, ["output_gate_type"]),
    "another output gate": ({"output_gate_type": "relu"}, ["output_gate_type", "'sigmoid' or 'silu'"]),
    "no end mark": ({"eos_token_id": None}, ["eos_token_id", "n-gram hash"]),
    "n-grams on sparse attention": ({"ple_layer_ids": [4]}, ["ple_layer_ids", "linear attention only"]),
    "a budget that is no multiple": ({"indexer_budget": 9}, ["indexer_budget", "multiple"]),
    "unnormalised experts": ({"norm_topk_prob": False}, ["norm_topk_prob"]),
    "more experts than there are": ({"num_experts_per_tok": 9}, ["num_experts_per_tok", "1 to 8"]),
    "another seed's table": ({"ngram_vocab_size_base": 90}, ["ngram_embedding.weight", "configuration asks"]),
    "a rotary width beyond the indexer's": ({"indexer_head_dim": 6}, ["indexer_head_dim", "rotary width 8"]),
    "no theta": ({"rope_parameters": {}}, ["rope_theta"]),
}


@pytest.mark.parametrize("name", TARGET)
def test_a_target_is_refused_by_rule(name: str, folder: Path, tmp_path: Path):
    changes, words = TARGET[name]
    home = folder.parent / "target"
    config = json.loads((home / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(home / "model.safetensors")
    with pytest.raises(ArtifactError) as caught:
        open_target_files(tmp_path)
    assert [w for w in words if w not in str(caught.value)] == [], str(caught.value)
