"""Every way a GGUF file can be wrong that we know of: each is one line that names the file and the thing."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oracle.artifacts import ArtifactError, open_borrowed, open_drafter_files, open_target_files
from tests.artifacts.artifact_files import HIDDEN, VOCAB, Gguf, Tensor, changed, llama_gguf, muse_gguf, numbers, qwen3_gguf, string, value

Edit = Callable[[Gguf], Any]


def key(name: str, kind: str, content: Any) -> Edit:
    return lambda f: f.keys.update({name: (kind, content)})


def without(name: str) -> Edit:
    return lambda f: f.keys.pop(name)


def tensor(which: str, /, **changes: Any) -> Edit:
    return lambda f: vars(f.tensor(which)).update(changes)


def attribute(**changes: Any) -> Edit:
    return lambda f: vars(f).update(changes)


def add_tensor(name: str, dims: list[int], kind: int = 0) -> Edit:
    return lambda f: f.tensors.append(Tensor(name, dims, numbers(*dims), kind))


def drop_tensor(name: str) -> Edit:
    return lambda f: f.tensors.remove(f.tensor(name))


def raw_key(name: str, content: bytes) -> Edit:
    return lambda f: f.extra_keys.append(string(name) + content)


def array_of(code: int, count: int, data: bytes = b"") -> bytes:
    return struct.pack("<IIQ", 9, code, count) + data


D, A = "dflash.", "dflash.attention."
FC, Q0 = "fc.weight", "blk.0.attn_q.weight"

# name -> (edit of a valid Muse file, words the message must hold)
CONTAINER: dict[str, tuple[Edit, list[str]]] = {
    "magic": (attribute(magic=b"GGML"), ["not a GGUF file", "GGML"]),
    "version 1": (attribute(version=1), ["version 1", "expected 2 or 3"]),
    "version big endian": (attribute(version=3 << 24), ["big endian"]),
    "tensor count huge": (attribute(tensor_count=1 << 62), ["tensor count 4611686018427387904"]),
    "key count huge": (attribute(key_count=1 << 40), ["key count 1099511627776"]),
    "tensor count too large": (attribute(tensor_count=59), ["tensor 58"]),
    "key count too small": (attribute(key_count=3), []),
    "duplicate key": (raw_key("dflash.block_size", value("u32", 4)), ["duplicate key 'dflash.block_size'"]),
    "empty key": (raw_key("", value("u32", 4)), ["empty name"]),
    "key name huge": (lambda f: f.extra_keys.append(struct.pack("<Q", 1 << 60) + b"x"), ["length of 1152921504606846976"]),
    "key name not UTF-8": (lambda f: f.extra_keys.append(string(b"\xff\xfe") + value("u32", 1)), ["not valid UTF-8"]),
    "string value huge": (raw_key("general.name", struct.pack("<IQ", 8, 1 << 50)), ["general.name", "1125899906842624"]),
    "string value not UTF-8": (raw_key("general.name", struct.pack("<I", 8) + string(b"\xc3\x28")), ["general.name", "UTF-8"]),
    "unknown value type": (raw_key("general.name", struct.pack("<II", 13, 0)), ["general.name", "type 13"]),
    "unknown element type": (raw_key("general.name", array_of(99, 1)), ["general.name", "element type 99"]),
    "array of arrays": (raw_key("general.x", array_of(9, 1)), ["general.x", "array of arrays"]),
    "array huge": (raw_key("general.x", array_of(4, 1 << 61)), ["general.x", "2305843009213693952 elements"]),
    "array of strings huge": (raw_key("general.x", array_of(8, 1 << 58)), ["general.x", "strings"]),
    "array of strings runs out": (raw_key("general.x", array_of(8, 2, string("a") + struct.pack("<Q", 1 << 63))), ["string 1 of 2"]),
    "bool of two": (raw_key("general.x", struct.pack("<IB", 7, 2)), ["general.x", "expected 0 or 1"]),
    "array of bools of three": (raw_key("general.x", array_of(7, 1, b"\3")), ["general.x", "other than 0 and 1"]),
    "alignment zero": (key("general.alignment", "u32", 0), ["general.alignment", "u32 0"]),
    "alignment not a power of two": (key("general.alignment", "u32", 24), ["general.alignment", "power of two"]),
    "alignment of another type": (key("general.alignment", "i32", 32), ["general.alignment", "i32 32"]),
    "alignment huge": (key("general.alignment", "u32", 1 << 31), ["general.alignment"]),
    "split count an array": (key("split.count", "array of u32", [1, 1]), ["split.count"]),
    "split file": (key("split.count", "u32", 3), ["split.count", "merge"]),
    "tensor name empty": (tensor(FC, name=""), ["tensor 0 has an empty name"]),
    "tensor name too long": (tensor(FC, name="x" * 64), ["length of 64 bytes"]),
    "duplicate tensor": (tensor("blk.1.attn_q.weight", name=Q0), ["duplicate tensor 'blk.0.attn_q.weight'"]),
    "no dimensions": (tensor(FC, dims=[]), [FC, "0 dimensions"]),
    "five dimensions": (tensor(FC, dims=[1] * 5), [FC, "5 dimensions"]),
    "a zero dimension": (tensor(FC, dims=[0, 8]), [FC, "[0, 8]"]),
    "product of dimensions huge": (tensor(FC, dims=[1 << 62, 1 << 62]), [FC, "needs"]),
    "unknown ggml type": (tensor(FC, type=4), [FC, "ggml type 4"]),
    "rows not a multiple of the block": (tensor(FC, type=12), [FC, "multiple of 256"]),
    "offset not aligned": (tensor(FC, offset=4), [FC, "alignment 32"]),
    "offsets overlap": (tensor("enc.output_norm.weight", offset=0), ["enc.output_norm.weight", "overlaps"]),
    "offset leaves a gap": (tensor("blk.4.ffn_down.weight", offset=1 << 20), ["blk.4.ffn_down.weight", "starts at offset 1048576"]),
    "offset huge": (tensor("blk.4.ffn_down.weight", offset=(1 << 64) - 32), ["blk.4.ffn_down.weight"]),
    "last tensor truncated": (lambda f: setattr(f.tensors[-1], "data", b""), ["blk.4.ffn_down.weight", "truncated"]),
    "trailing bytes": (attribute(tail=b"x" * 64), ["64 unexplained bytes", "blk.4.ffn_down.weight"]),
}

# What must be there, and typed u32 (`specs/muse-glimmer.md` 4.1).
REQUIRED = [D + name for name in ("embedding_length", "feed_forward_length", "block_count", "block_size", "context_length")]
REQUIRED += [A + name for name in ("head_count", "head_count_kv", "key_length", "value_length")]
REQUIRED += ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.mask_token_id"]

MUSE: dict[str, tuple[Edit, list[str]]] = {
    "another architecture": (key("general.architecture", "string", "mamba"), ["general.architecture", "'mamba'"]),
    "architecture is a number": (key("general.architecture", "u32", 4), ["general.architecture", "4"]),
    "no architecture": (without("general.architecture"), ["general.architecture"]),
    "four layers": (key(D + "block_count", "u32", 4), ["dflash.block_count", "exactly 5"]),
    "layers as u64": (key(D + "block_count", "u64", 5), ["dflash.block_count", "u64 5"]),
    "layers as f32": (key(D + "block_count", "f32", 5.0), ["dflash.block_count", "f32 5.0"]),
    "layers beyond bounds": (key(D + "block_count", "u32", (1 << 32) - 1), ["dflash.block_count", "1 to 1024"]),
    "hidden zero": (key(D + "embedding_length", "u32", 0), ["dflash.embedding_length"]),
    "hidden differs from the tensors": (key(D + "embedding_length", "u32", 16), ["has the shape", "configuration"]),
    "hidden beyond bounds": (key(D + "embedding_length", "u32", 1 << 25), ["dflash.embedding_length", "16777216"]),
    "block of one": (key(D + "block_size", "u32", 1), ["dflash.block_size", "2 to 512"]),
    "block beyond bounds": (key(D + "block_size", "u32", 513), ["dflash.block_size"]),
    "kv heads zero": (key(A + "head_count_kv", "u32", 0), [A + "head_count_kv"]),
    "kv heads do not divide": (key(A + "head_count_kv", "u32", 3), [A + "head_count_kv", "divisor of the 4"]),
    "heads beyond bounds": (key(A + "head_count", "u32", 2048), [A + "head_count", "1024"]),
    "head width zero": (key(A + "key_length", "u32", 0), [A + "key_length"]),
    "head width odd": (lambda f: f.keys.update({A + "key_length": ("u32", 3), A + "value_length": ("u32", 3)}), [A + "key_length", "even"]),
    "value width differs": (key(A + "value_length", "u32", 8), [A + "value_length", "4"]),
    "eps NaN": (key(A + "layer_norm_rms_epsilon", "f32", float("nan")), [A + "layer_norm_rms_epsilon", "nan"]),
    "eps negative": (key(A + "layer_norm_rms_epsilon", "f32", -1e-5), [A + "layer_norm_rms_epsilon"]),
    "eps as f64": (key(A + "layer_norm_rms_epsilon", "f64", 1e-5), [A + "layer_norm_rms_epsilon", "f64"]),
    "eps missing": (without(A + "layer_norm_rms_epsilon"), ["missing key", "layer_norm_rms_epsilon"]),
    "theta infinite": (key(D + "rope.freq_base", "f32", float("inf")), [D + "rope.freq_base", "inf"]),
    "theta as a number": (key(D + "rope.freq_base", "u32", 10000), [D + "rope.freq_base", "u32 10000"]),
    "taps one-based zero": (key(D + "target_layers", "array of i32", [0, 13]), [D + "target_layers", "from 1 to 52"]),
    "taps negative": (key(D + "target_layers", "array of i32", [-1, 13]), [D + "target_layers"]),
    "taps beyond the target": (key(D + "target_layers", "array of u32", [2, 53]), [D + "target_layers", "52"]),
    "taps twice": (key(D + "target_layers", "array of i32", [2, 2]), [D + "target_layers", "distinct"]),
    "taps empty": (key(D + "target_layers", "array of i32", []), [D + "target_layers"]),
    "taps as floats": (key(D + "target_layers", "array of f32", [2.0, 14.0]), [D + "target_layers", "array of f32"]),
    "taps as one number": (key(D + "target_layers", "u32", 2), [D + "target_layers", "u32 2"]),
    "taps missing": (without(D + "target_layers"), ["missing key dflash.target_layers"]),
    "window beyond bounds": (key(A + "sliding_window", "u32", 1 << 21), [A + "sliding_window"]),
    "window of one": (key(A + "sliding_window", "u32", 1), [A + "sliding_window", "2 to 1048576"]),
    "window as i32": (key(A + "sliding_window", "i32", 8), [A + "sliding_window", "i32 8"]),
    "sample from anchor": (key(D + "sample_from_anchor", "bool", True), ["sample_from_anchor", "False"]),
    "embedding scale": (key(D + "embedding_scale", "f32", 2.0), ["embedding_scale", "1.0"]),
    "own embedding": (add_tensor("token_embd.weight", [HIDDEN, VOCAB]), ["token_embd.weight", "does not know"]),
    "own head": (add_tensor("output.weight", [HIDDEN, VOCAB]), ["output.weight", "does not know"]),
    "reduced vocabulary": (add_tensor("d2t", [VOCAB]), ["d2t", "does not know"]),
    "attention sinks": (add_tensor("blk.0.attn_sinks.weight", [4]), ["attn_sinks", "does not know"]),
    "a norm of the sublayer's output": (add_tensor("blk.0.post_attention_norm.weight", [HIDDEN]), ["post_attention_norm", "does not know"]),
    **{f"{name} missing": (without(name), [f"missing key {name}"]) for name in REQUIRED},
    **{f"{name} as i32": (key(name, "i32", 4), [f"key {name}", "i32 4"]) for name in REQUIRED},
    "pattern a scalar": (key(A + "sliding_window_pattern", "u32", 1), [A + "sliding_window_pattern", "array of 5 bools"]),
    "pattern of the wrong length": (key(A + "sliding_window_pattern", "array of bool", [True] * 4), [A + "sliding_window_pattern"]),
    "pattern of numbers": (key(A + "sliding_window_pattern", "array of u32", [1] * 5), [A + "sliding_window_pattern", "array of u32"]),
    "a full layer": (key(A + "sliding_window_pattern", "array of bool", [True] * 4 + [False]), ["sliding_window_pattern", "every layer"]),
    "tokens missing": (without("tokenizer.ggml.tokens"), ["tokenizer.ggml.tokens"]),
    "tokens one number": (key("tokenizer.ggml.tokens", "u32", 6), ["tokenizer.ggml.tokens", "found u32"]),
    "tokens empty": (key("tokenizer.ggml.tokens", "array of string", []), ["tokenizer.ggml.tokens"]),
    "tokens are numbers": (key("tokenizer.ggml.tokens", "array of u32", [1, 2]), ["tokenizer.ggml.tokens", "array of u32"]),
    "mask outside the vocabulary": (key("tokenizer.ggml.mask_token_id", "u32", VOCAB), ["tokenizer.ggml.mask_token_id", "0 to 5"]),
    "causal": (key(A + "causal", "bool", True), [A + "causal"]),
    "unknown dialect key": (key(D + "attention.value_scale_two", "f32", 2.0), ["does not know", "value_scale_two"]),
    "value scale": (key(A + "value_scale", "f32", 2.0), [A + "value_scale"]),
    "missing tensor": (drop_tensor("blk.3.attn_k_norm.weight"), ["missing tensors", "blk.3.attn_k_norm.weight"]),
    "unknown tensor": (add_tensor("blk.0.attn_gate.weight", [8]), ["blk.0.attn_gate.weight", "does not know"]),
    "renamed tensor": (tensor(Q0, name="blk.0.attn_query.weight"), [Q0, "blk.0.attn_query.weight"]),
    "transposed tensor": (tensor(FC, dims=[HIDDEN, 2 * HIDDEN]), [FC, "[16, 8]", "[8, 16]"]),
    "flattened tensor": (tensor(FC, dims=[2 * HIDDEN * HIDDEN]), [FC, "[128]"]),
    "tensor of integers": (tensor(FC, type=26), [FC, "stored as i32"]),
}

QWEN3: dict[str, tuple[Edit, list[str]]] = {
    "sample from anchor": (key(D + "sample_from_anchor", "bool", True), ["family qwen38-flash-next has 5 layers and 5 taps"]),
    "window without a pattern": (key(A + "sliding_window", "u32", 8), ["sliding_window_pattern"]),
    "pattern without a window": (
        key(A + "sliding_window_pattern", "array of bool", [True, False]),
        ["dflash.attention.sliding_window:", "some layers slide"],
    ),
    "window of one": (
        lambda f: f.keys.update({A + "sliding_window": ("u32", 1), A + "sliding_window_pattern": ("array of bool", [True] * 2)}),
        ["dflash.attention.sliding_window", "2 to 1048576"],
    ),
    "mask missing": (without("tokenizer.ggml.mask_token_id"), ["missing key tokenizer.ggml.mask_token_id"]),
    "taps missing": (without(D + "target_layers"), ["missing key dflash.target_layers"]),
    "taps one-based zero": (key(D + "target_layers", "array of i32", [0, 3]), [D + "target_layers", "from 1 to"]),
    "block of one": (key(D + "block_size", "u32", 1), ["dflash.block_size", "2 to 512"]),
    "value scale": (key(A + "value_scale", "f32", 2.0), [A + "value_scale"]),
    "another activation": (key(D + "hidden_activation", "string", "gelu"), ["hidden_activation", "silu"]),
    "partial rotary": (key(D + "rope.dimension_count", "u32", 2), ["rope.dimension_count"]),
    "own embedding": (add_tensor("token_embd.weight", [HIDDEN, VOCAB]), ["token_embd.weight", "does not know"]),
    "own head without a map": (add_tensor("output.weight", [HIDDEN, VOCAB]), ["output.weight", "does not know"]),
    "a norm of the sublayer's output": (add_tensor("blk.0.post_attention_norm.weight", [HIDDEN]), ["post_attention_norm", "does not know"]),
    "a scale of the layer's output": (add_tensor("blk.0.layer_output_scale.weight", [1]), ["layer_output_scale", "does not know"]),
    "a vector for the mask": (add_tensor("mask_embedding.weight", [HIDDEN]), ["mask_embedding", "does not know"]),
    "a selector": (key(D + "selector_rank", "u32", 4), ["selector_rank"]),
    "yarn": (key(D + "rope.scaling.type", "string", "yarn"), ["rope.scaling.type", "yarn"]),
    "causal as a number": (key(A + "causal", "u32", 1), [A + "causal", "bool"]),
    "a Markov head": (add_tensor("markov_w1.weight", [8, 8]), ["markov_w1.weight"]),
    "one bias only": (add_tensor("blk.0.attn_q.bias", [16]), ["missing tensors", "blk.0.attn_k.bias"]),
}

LLAMA: dict[str, tuple[Edit, list[str]]] = {
    "another target": (key("general.architecture", "string", "gemma4"), ["general.architecture", "gemma4"]),
    "experts": (key("llama.expert_count", "u32", 8), ["llama.expert_count"]),
    "rope scaling": (key("llama.rope.scaling.type", "string", "linear"), ["llama.rope.scaling.type", "linear"]),
    "rotary width odd": (key("llama.rope.dimension_count", "u32", 3), ["llama.rope.dimension_count", "even"]),
    "vocabulary differs": (key("llama.vocab_size", "u32", 7), ["llama.vocab_size", "6"]),
    "tokens differ": (key("tokenizer.ggml.tokens", "array of string", ["a"]), ["tokenizer.ggml.tokens", "found 1"]),
    "no embedding": (drop_tensor("token_embd.weight"), ["token_embd.weight"]),
    "rope factors of the wrong length": (add_tensor("rope_freqs.weight", [5]), ["rope_freqs.weight", "[5]", "[2]"]),
    "rope factors of zero": (lambda f: f.tensors.append(Tensor("rope_freqs.weight", [2], bytes(8))), ["rope_freqs.weight", "positive"]),
    "unknown key": (key("llama.attention.sliding_window", "u32", 8), ["llama.attention.sliding_window"]),
}


def refused(path: Path, data: bytes, open_it: Callable[[Path], Any], words: list[str]) -> None:
    path.write_bytes(data)
    with pytest.raises(ArtifactError) as caught:
        open_it(path)
    message = str(caught.value)
    assert message.startswith(str(path)), message
    assert "\n" not in message and len(message) < 1000
    for word in words:
        assert word in message, f"{word!r} not in {message!r}"


@pytest.mark.parametrize("name", CONTAINER)
def test_a_broken_container_is_refused(name: str, tmp_path: Path) -> None:
    edit, words = CONTAINER[name]
    refused(tmp_path / "draft.gguf", changed(muse_gguf(), edit).render(), open_drafter_files, words)


@pytest.mark.parametrize("name", MUSE)
def test_a_wrong_muse_file_is_refused(name: str, tmp_path: Path) -> None:
    edit, words = MUSE[name]
    data = changed(muse_gguf(), edit).render()
    refused(tmp_path / "draft.gguf", data, lambda p: open_drafter_files(p, "muse-glimmer"), words)


@pytest.mark.parametrize("name", QWEN3)
def test_a_wrong_generic_drafter_is_refused(name: str, tmp_path: Path) -> None:
    edit, words = QWEN3[name]
    refused(tmp_path / "draft.gguf", changed(qwen3_gguf(), edit).render(), open_drafter_files, words)


@pytest.mark.parametrize("name", LLAMA)
def test_a_wrong_target_is_refused(name: str, tmp_path: Path) -> None:
    edit, words = LLAMA[name]
    refused(tmp_path / "target.gguf", changed(llama_gguf(), edit).render(), open_target_files, words)


@pytest.mark.parametrize("size", [0, 3, 4, 7, 8, 23, 24, 60, 700])
def test_a_truncated_header_is_refused(size: int, tmp_path: Path) -> None:
    refused(tmp_path / "draft.gguf", muse_gguf().render()[:size], open_drafter_files, [])


def test_the_originals_are_accepted(tmp_path: Path) -> None:
    """Without this, every test above could pass for a reason of its own."""
    drafters = [(make, open_drafter_files) for make in (muse_gguf, qwen3_gguf)]
    targets = [(llama_gguf, open_it) for open_it in (open_target_files, open_borrowed)]
    for number, (make, open_it) in enumerate(drafters + targets):
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(make().render())
        open_it(path)


def test_a_path_that_is_not_a_file_is_refused(tmp_path: Path) -> None:
    for path, word in ((tmp_path / "none.gguf", "no such file"), (tmp_path / "w.safetensors", "give the folder")):
        if word != "no such file":
            path.write_bytes(b"x")
        with pytest.raises(ArtifactError, match=word):
            open_drafter_files(path)


def test_a_borrowed_head_must_fit_the_embedding(tmp_path: Path) -> None:
    for edit, words in (
        (tensor("output.weight", dims=[HIDDEN, VOCAB - 1], data=numbers(40)), ["output.weight", "[5, 8]", "[6, 8]"]),
        (drop_tensor("token_embd.weight"), ["no single embedding"]),
        (tensor("token_embd.weight", type=26), ["token_embd.weight", "i32"]),
    ):
        refused(tmp_path / "t.gguf", changed(llama_gguf(), edit).render(), open_borrowed, words)


def test_an_unknown_family_is_refused(tmp_path: Path) -> None:
    data = muse_gguf().render()
    refused(tmp_path / "d.gguf", data, lambda p: open_drafter_files(p, "gpt"), ["'gpt'", "unknown", "qwen3"])
