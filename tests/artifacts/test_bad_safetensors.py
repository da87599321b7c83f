"""Every way a SafeTensors folder can be wrong that we know of: each is one line that names the file and the thing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oracle.artifacts import ArtifactError, open_borrowed, open_drafter_files, open_target_files
from tests.artifacts.artifact_files import (
    HIDDEN,
    Folder,
    changed,
    llama_folder,
    muse_folder,
    numbers,
    qwen3_folder,
    sharded,
)

Edit = Callable[[Folder], Any]
FC, Q0 = "fc.weight", "layers.0.self_attn.q_proj.weight"
LAST = "layers.1.mlp.down_proj.weight"
WEIGHTS, CONFIG, INDEX = "model.safetensors", "config.json", "model.safetensors.index.json"
SHARD = "model-00001-of-00002.safetensors"


def config(**changes: Any) -> Edit:
    return lambda f: f.config.update(changes)


def inner(**changes: Any) -> Edit:
    return lambda f: f.config["dflash_config"].update(changes)


def without(key: str) -> Edit:
    return lambda f: f.config.pop(key)


def attribute(**changes: Any) -> Edit:
    return lambda f: vars(f).update(changes)


def entry(name: str, change: Any) -> Edit:
    return lambda f: f.header.update({name: change})


def tensor(name: str, dtype: str, *shape: int) -> Edit:
    width = {"F64": 2, "F32": 1, "I32": 1}[dtype]
    return lambda f: f.tensors.update({name: [dtype, list(shape), numbers(*shape) * width]})


def text(raw: bytes) -> Edit:
    return attribute(config_text=raw)


DEEP = b'{"a":' * 5000 + b"1" + b"}" * 5000

FILE: dict[str, tuple[Edit, list[str]]] = {
    "no config": (attribute(drop=[CONFIG]), ["no config.json"]),
    "no weights": (attribute(drop=[WEIGHTS]), ["no weights", WEIGHTS]),
    "empty config": (text(b""), [CONFIG, "truncated"]),
    "config a list": (text(b"[1]"), [CONFIG, "found list"]),
    "config a string": (text(b'"x"'), [CONFIG, "found str"]),
    "config not JSON": (text(b"{'a': 1}"), [CONFIG, "not valid JSON", "line 1"]),
    "config not UTF-8": (text(b'{"a": "\xff"}'), [CONFIG, "UTF-8"]),
    "config cut": (text(b'{"hidden_size": 8'), [CONFIG, "not valid JSON"]),
    "config duplicate key": (text(b'{"a": 1, "a": 2}'), [CONFIG, "duplicate key 'a'"]),
    "config NaN": (text(b'{"a": NaN}'), [CONFIG, "NaN"]),
    "config infinite": (text(b'{"a": -Infinity}'), [CONFIG, "Infinity"]),
    "config float overflow": (text(b'{"a": 1e999}'), [CONFIG, "1e999"]),
    "config huge number": (text(b'{"a": ' + b"9" * 5000 + b"}"), [CONFIG, "5000 digits"]),
    "config nested deeply": (text(DEEP), [CONFIG, "nesting"]),
    "header length huge": (attribute(header_size=1 << 62), [WEIGHTS, "header of 4611686018427387904"]),
    "header length past the end": (attribute(header_size=1 << 20), [WEIGHTS, "header of 1048576"]),
    "header length zero": (attribute(header_size=0), [WEIGHTS, "header of 0"]),
    "header not an object": (attribute(header_text=b"[]"), [WEIGHTS, "header", "list"]),
    "header not JSON": (attribute(header_text=b"{abc}"), [WEIGHTS, "not valid JSON"]),
    "header duplicate tensor": (
        attribute(header_text=b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{}}'),
        [WEIGHTS, "duplicate key 'a'"],
    ),
    "metadata of numbers": (entry("__metadata__", {"format": 1}), ["__metadata__"]),
    "entry not an object": (entry(FC, 3), [FC, "expected an object"]),
    "entry without a shape": (entry("x", {"dtype": "F32", "data_offsets": [0, 4]}), ["'x'", "shape"]),
    "entry with more": (entry(FC, {"extra": 1}), [FC, "expected an object"]),
    "dtype unknown": (entry(FC, {"dtype": "F31"}), [FC, "'F31'"]),
    "dtype a number": (entry(FC, {"dtype": 32}), [FC, "32"]),
    "dtype other than the data": (entry(FC, {"dtype": "BF16"}), [FC, "needs 256 bytes", "span 512"]),
    "shape negative": (entry(FC, {"shape": [-8, -16]}), [FC, "[-8, -16]"]),
    "shape of floats": (entry(FC, {"shape": [8.0, 16.0]}), [FC, "[8.0, 16.0]"]),
    "shape of bools": (entry(FC, {"shape": [True, 128]}), [FC, "[True, 128]", "whole numbers"]),
    "shape huge": (entry(FC, {"shape": [1 << 62, 1 << 62]}), [FC, "needs"]),
    "shape of another size": (entry(FC, {"shape": [8, 15]}), [FC, "needs 480 bytes"]),
    "shape a number": (entry(FC, {"shape": 128}), [FC, "128"]),
    "shape beyond 64 bits": (entry(FC, {"shape": [10**30]}), [FC, "whole numbers"]),
    "offsets reversed": (entry(FC, {"data_offsets": [512, 0]}), [FC, "span -512"]),
    "offsets negative": (entry(FC, {"data_offsets": [-512, 0]}), [FC, "data_offsets"]),
    "one offset": (entry(FC, {"data_offsets": [0]}), [FC, "data_offsets"]),
    "offsets overlap": (entry("hidden_norm.weight", {"data_offsets": [0, 32]}), ["hidden_norm.weight", "overlaps"]),
    "offsets past the end": (entry(LAST, {"data_offsets": [99999, 99999 + 384]}), [LAST, "hole"]),
    "data truncated": (
        lambda f: f.header.update({"z": {"dtype": "F32", "shape": [4], "data_offsets": [len(f.weights()), len(f.weights()) + 16]}}),
        ["'z'", "hole"],
    ),
    "trailing bytes": (attribute(tail=b"12345"), ["5 unexplained bytes"]),
    "both styles of weights": (
        lambda f: (sharded(f), f.shards.update({WEIGHTS: [FC]})),
        ["both", INDEX],
    ),
}

SHARDS: dict[str, tuple[Edit, list[str]]] = {
    "index without a map": (attribute(index={}), [INDEX, "weight_map"]),
    "index map a list": (attribute(index={"weight_map": [1]}), [INDEX, "weight_map"]),
    "index of numbers": (attribute(index={"weight_map": {FC: 3}}), [INDEX, FC]),
    "index leads up": (attribute(index={"weight_map": {FC: "../x.safetensors"}}), [INDEX, "../x.safetensors", "plain name"]),
    "index leads away": (attribute(index={"weight_map": {FC: "/etc/x.safetensors"}}), [INDEX, "/etc/x.safetensors"]),
    "index with a backslash": (attribute(index={"weight_map": {FC: "a\\b.safetensors"}}), [INDEX, "plain name"]),
    "index to the folder": (attribute(index={"weight_map": {FC: ".."}}), [INDEX, "plain name"]),
    "index to another kind of file": (attribute(index={"weight_map": {FC: "config.json"}}), [INDEX, "config.json"]),
    "index with a zero byte": (attribute(index={"weight_map": {FC: "a\0.safetensors"}}), [INDEX, "plain name"]),
    "shard missing": (attribute(drop=[SHARD]), [SHARD, "missing"]),
    "shard empty": (lambda f: f.shards.update({SHARD: []}), ["tensors"]),
    "tensor only in the index": (
        lambda f: setattr(f, "index", {"weight_map": {n: s for s, names in f.shards.items() for n in names} | {"ghost": SHARD}}),
        [SHARD, "missing", "ghost"],
    ),
    "tensor only in a shard": (
        lambda f: setattr(f, "index", {"weight_map": {n: s for s, names in f.shards.items() for n in names if n != FC}}),
        [SHARD, FC, "does not place"],
    ),
}

QWEN3: dict[str, tuple[Edit, list[str]]] = {
    "another architecture": (config(architectures=["DFlash2DraftModel"]), ["architectures", "DFlash2DraftModel"]),
    "two architectures": (config(architectures=["DFlashDraftModel", "X"]), ["architectures"]),
    "architecture a string": (config(architectures="DFlashDraftModel"), ["architectures"]),
    "another model type": (config(model_type="gemma"), ["model_type", "'gemma'"]),
    "no model type": (without("model_type"), ["ambiguous", "--family"]),
    "layers missing": (without("num_hidden_layers"), ["missing key num_hidden_layers"]),
    "layers a float": (config(num_hidden_layers=2.0), ["num_hidden_layers", "2.0"]),
    "layers a string": (config(num_hidden_layers="2"), ["num_hidden_layers", "'2'"]),
    "layers a bool": (config(num_hidden_layers=True), ["num_hidden_layers", "True"]),
    "layers negative": (config(num_hidden_layers=-2), ["num_hidden_layers", "-2"]),
    "layers huge": (config(num_hidden_layers=10**30), ["num_hidden_layers"]),
    "hidden a list": (config(hidden_size=[8]), ["hidden_size", "[8]"]),
    "heads do not divide": (config(num_key_value_heads=3), ["num_key_value_heads", "divisor"]),
    "head width missing": (without("head_dim"), ["missing key head_dim"]),
    "kv heads missing": (without("num_key_value_heads"), ["missing key num_key_value_heads"]),
    "head width odd": (config(head_dim=3), ["head_dim", "even"]),
    "eps zero": (config(rms_norm_eps=0), ["rms_norm_eps"]),
    "eps a string": (config(rms_norm_eps="1e-6"), ["rms_norm_eps", "'1e-6'"]),
    "block of one": (config(block_size=1), ["block_size", "2 to 512"]),
    "mask missing": (lambda f: f.config["dflash_config"].pop("mask_token_id"), ["missing key mask_token_id"]),
    "mask outside the vocabulary": (inner(mask_token_id=6), ["dflash_config.mask_token_id", "0 to 5"]),
    "taps missing": (lambda f: f.config["dflash_config"].pop("target_layer_ids"), ["missing key target_layer_ids"]),
    "taps beyond the target": (inner(target_layer_ids=[1, 6]), ["target_layer_ids", "0 to 5"]),
    "taps twice": (inner(target_layer_ids=[1, 1]), ["target_layer_ids", "distinct"]),
    "taps of bools": (inner(target_layer_ids=[True, 4]), ["target_layer_ids"]),
    "one tap more": (inner(target_layer_ids=[1, 2, 4]), [FC, "[8, 24]"]),
    "inner not an object": (config(dflash_config=[1]), ["dflash_config", "object"]),
    "inner unknown key": (inner(tap_norm=True), ["dflash_config.tap_norm"]),
    "inner confidence": (inner(confidence_head=True), ["dflash_config.confidence_head"]),
    "causal a number": (config(is_causal=1), ["is_causal", "bool"]),
    "layer types too few": (config(layer_types=["full_attention"]), ["layer_types", "2 entries"]),
    "layer types unknown": (config(layer_types=["full_attention", "linear_attention"]), ["layer_types", "linear_attention"]),
    "window of one": (config(sliding_window=1, layer_types=["sliding_attention"] * 2), ["sliding_window", "2 to 1048576"]),
    "sliding without a window": (config(layer_types=["full_attention", "sliding_attention"]), ["sliding_window", "slide"]),
    "window zero": (config(sliding_window=0), ["sliding_window"]),
    "window switched off": (
        config(layer_types=["sliding_attention"] * 2, sliding_window=8, use_sliding_window=False),
        ["use_sliding_window"],
    ),
    "yarn": (config(rope_scaling={"type": "yarn", "factor": 4.0}), ["rope_scaling.type", "yarn"]),
    "rope of an unknown kind": (config(rope_scaling={"rope_type": "x"}), ["rope_scaling.rope_type", "'x'"]),
    "rope scaling not an object": (config(rope_scaling="yarn"), ["rope_scaling", "object"]),
    "two thetas": (config(rope_parameters={"rope_theta": 5.0}), ["rope_theta", "5"]),
    "two rope types": (config(rope_scaling={"type": "default", "rope_type": "linear"}), ["rope_scaling.type", "rope_scaling.rope_type"]),
    "partial rotary": (config(partial_rotary_factor=0.5), ["partial_rotary_factor"]),
    "another activation": (config(hidden_act="gelu"), ["hidden_act", "'gelu'"]),
    "a gate": (config(attention_gate=True), ["attention_gate"]),
    "a Markov rank": (config(markov_rank=4), ["markov_rank"]),
    "quantised": (config(quantization_config={"bits": 4}), ["quantization_config"]),
    "softcap negative": (inner(final_logit_softcapping=-1.0), ["final_logit_softcapping"]),
    "missing tensor": (lambda f: f.tensors.pop(Q0), ["missing tensors", Q0]),
    "unknown tensor": (tensor("layers.0.self_attn.g_proj.weight", "F32", 4, 8), ["layers.0.self_attn.g_proj.weight"]),
    "tap norms": (tensor("aux_hidden_norms.0.weight", "F32", 8), ["aux_hidden_norms.0.weight"]),
    "biases not announced": (tensor("layers.0.self_attn.q_proj.bias", "F32", 16), ["layers.0.self_attn.q_proj.bias"]),
    "biases announced only": (config(attention_bias=True), ["missing tensors", "q_proj.bias"]),
    "transposed tensor": (tensor(FC, "F32", 16, 8), [FC, "[16, 8]", "[8, 16]"]),
    "integer tensor": (tensor(FC, "I32", 8, 16), [FC, "i32"]),
    "half of the names prefixed": (
        lambda f: f.tensors.update({"model." + FC: f.tensors.pop(FC)}),
        ["prefix 'model.'"],
    ),
}

MUSE: dict[str, tuple[Edit, list[str]]] = {
    "four layers": (config(num_hidden_layers=4), ["num_hidden_layers", "exactly 5"]),
    "a full layer": (
        config(layer_types=["sliding_attention"] * 4 + ["full_attention"]),
        ["layer_types", "5 entries, each sliding_attention"],
    ),
    "taps beyond the target": (config(target_layer_ids=[1, 52]), ["target_layer_ids", "51"]),
    "two masks": (config(dflash_config={"mask_token_id": 4}), ["mask_token_id", "dflash_config"]),
    "causal": (config(is_causal=True), ["is_causal"]),
    "biases": (config(attention_bias=True), ["attention_bias"]),
    "mixed names": (lambda f: f.tensors.update({FC: f.tensors.pop("encoder.fc.weight")}), ["encoder.fc.weight", "'fc.weight'"]),
    "softcap": (config(final_logit_softcapping=20.0), ["final_logit_softcapping"]),
}

LLAMA: dict[str, tuple[Edit, list[str]]] = {
    "another target": (config(architectures=["Qwen3ForCausalLM"]), ["architectures", "Qwen3ForCausalLM"]),
    "biases": (config(attention_bias=True), ["attention_bias"]),
    "MLP biases": (config(mlp_bias=True), ["mlp_bias"]),
    "tied a string": (config(tie_word_embeddings="yes"), ["tie_word_embeddings"]),
    "tied with another head": (
        lambda f: (f.config.update(tie_word_embeddings=True), f.tensors["lm_head.weight"].__setitem__(2, bytes(192))),
        ["lm_head.weight", "differs"],
    ),
    "untied without a head": (lambda f: f.tensors.pop("lm_head.weight"), ["missing tensors", "lm_head.weight"]),
    "llama3 without its factor": (config(rope_parameters={"rope_type": "llama3", "rope_theta": 1e4}), ["rope_parameters.factor"]),
    "llama3 upside down": (
        config(rope_parameters={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0}),
        ["high_freq_factor"],
    ),
    "dynamic rope": (config(rope_parameters={"rope_type": "dynamic", "factor": 2.0}), ["rope_parameters.rope_type", "dynamic"]),
    "rope with more keys": (config(rope_parameters={"rope_type": "default", "mscale": 1.0}), ["rope_parameters.mscale"]),
    "both rope tables": (config(rope_scaling={"type": "linear", "factor": 2.0}), ["rope_scaling"]),
    "q norms": (tensor("model.layers.0.self_attn.q_norm.weight", "F32", 4), ["q_norm"]),
}


def refused(folder: Path, file: Folder, open_it: Callable[[Path], Any], words: list[str]) -> None:
    file.write(folder)
    with pytest.raises(ArtifactError) as caught:
        open_it(folder)
    message = str(caught.value)
    assert message.startswith(str(folder)), message
    assert "\n" not in message and len(message) < 1000
    for word in words:
        assert word in message, f"{word!r} not in {message!r}"


@pytest.mark.parametrize("name", FILE)
def test_a_broken_folder_is_refused(name: str, tmp_path: Path) -> None:
    edit, words = FILE[name]
    refused(tmp_path / "m", changed(qwen3_folder(), edit), open_drafter_files, words)


@pytest.mark.parametrize("name", SHARDS)
def test_a_broken_index_is_refused(name: str, tmp_path: Path) -> None:
    edit, words = SHARDS[name]
    refused(tmp_path / "m", changed(sharded(qwen3_folder()), edit), open_drafter_files, words)


@pytest.mark.parametrize("name", QWEN3)
def test_a_wrong_generic_drafter_is_refused(name: str, tmp_path: Path) -> None:
    edit, words = QWEN3[name]
    refused(tmp_path / "m", changed(qwen3_folder(), edit), open_drafter_files, words)


@pytest.mark.parametrize("name", MUSE)
def test_a_wrong_muse_folder_is_refused(name: str, tmp_path: Path) -> None:
    edit, words = MUSE[name]
    refused(tmp_path / "m", changed(muse_folder(), edit), open_drafter_files, words)


@pytest.mark.parametrize("name", LLAMA)
def test_a_wrong_target_is_refused(name: str, tmp_path: Path) -> None:
    edit, words = LLAMA[name]
    refused(tmp_path / "m", changed(llama_folder(), edit), open_target_files, words)


def test_the_originals_are_accepted(tmp_path: Path) -> None:
    """Without this, every test above could pass for a reason of its own."""
    for number, file in enumerate((qwen3_folder(), muse_folder(), sharded(qwen3_folder()))):
        open_drafter_files(file.write(tmp_path / str(number)))
    target = llama_folder().write(tmp_path / "target")
    assert open_target_files(target).geometry.hidden == HIDDEN
    open_borrowed(target)


def test_a_file_cut_in_its_data_is_refused(tmp_path: Path) -> None:
    folder = qwen3_folder().write(tmp_path / "m")
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[:-10])
    with pytest.raises(ArtifactError, match=r"layers.1.mlp.down_proj.weight.*truncated"):
        open_drafter_files(folder)


def test_a_shard_may_not_leave_the_folder_by_a_link(tmp_path: Path) -> None:
    folder = sharded(qwen3_folder()).write(tmp_path / "m")
    outside = tmp_path / "outside.safetensors"
    (folder / SHARD).rename(outside)
    (folder / SHARD).symlink_to(outside)
    with pytest.raises(ArtifactError, match="outside the folder"):
        open_drafter_files(folder)


def test_a_shard_may_link_to_the_blobs_of_a_hub_cache(tmp_path: Path) -> None:
    (tmp_path / "snapshots").mkdir()
    (tmp_path / "blobs").mkdir()
    folder = sharded(qwen3_folder()).write(tmp_path / "snapshots" / "abc")
    (folder / SHARD).rename(tmp_path / "blobs" / "1234")
    (folder / SHARD).symlink_to(tmp_path / "blobs" / "1234")
    open_drafter_files(folder)


def test_an_unknown_harmless_key_is_said_aloud(tmp_path: Path) -> None:
    folder = changed(qwen3_folder(), config(training_notes="fine")).write(tmp_path / "m")
    assert open_drafter_files(folder).identity.warnings == ("ignored unknown keys of config.json: training_notes",)


def test_a_lender_needs_one_embedding_and_one_head(tmp_path: Path) -> None:
    both = changed(llama_folder(), tensor("embed_tokens.weight", "F32", 6, 8))
    refused(tmp_path / "a", both, open_borrowed, ["no single embedding", "embed_tokens.weight"])
    refused(tmp_path / "b", changed(llama_folder(), lambda f: f.tensors.pop("lm_head.weight")), open_borrowed, ["no single head"])


def test_the_message_of_a_hostile_name_is_one_ascii_line(tmp_path: Path) -> None:
    name = "x\n\x1b[31m" + "y" * 5000 + "\ud800"
    file = changed(qwen3_folder(), attribute(config_text=json.dumps({"architectures": [name]}).encode()))
    with pytest.raises(ArtifactError) as caught:
        open_drafter_files(file.write(tmp_path / "m"))
    assert str(caught.value).isascii() and "\n" not in str(caught.value) and len(str(caught.value)) < 600
