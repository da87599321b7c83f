"""GGUF files of Laguna targets and drafters and of Qwen3.8-Flash-Next targets: llama.cpp's names, one model, refusals by rule."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oracle
from oracle.artifacts import ArtifactError, make_artifact, open_drafter_files, open_target_files
from oracle.artifacts.gguf_file import read_gguf
from oracle.artifacts.writers import Typed
from tests.artifacts.gguf_edit import Edit, Keys, Tensors, add, drop, put, rewritten, zeros

LAGUNA: dict[str, Any] = {
    "hidden": 32, "intermediate": 48, "heads": 4, "kv_heads": 2, "head_dim": 16, "vocab": 60, "window": 8, "experts": 4,
    "experts_per_token": 2, "moe_intermediate": 32,
}  # fmt: skip
DRAFTER: dict[str, Any] = {k: LAGUNA[k] for k in ("hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocab", "window")}
DRAFTER |= {"mask_token_id": 55}
QWEN: dict[str, Any] = {"hidden": 32, "intermediate": 24, "heads": 4, "kv_heads": 2, "head_dim": 8, "vocab": 60, "mask_token_id": 55}
SIZES = {"laguna": LAGUNA, "qwen38-flash-next": QWEN}
in_laguna, in_qwen = partial(put, arch="laguna."), partial(put, arch="qwen4exp.")
from_laguna, from_qwen = partial(drop, arch="laguna."), partial(drop, arch="qwen4exp.")


def make(family: str, out: Path, container: str, weights: str = "f32", role: str | None = "target") -> Path:
    sizes = DRAFTER if family == "laguna" and role is None else SIZES[family]
    return make_artifact(family, "tiny", weights, out, 3, container, role, **sizes)[0]


@pytest.fixture(scope="module")
def laguna(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("laguna", tmp_path_factory.mktemp("laguna"), "gguf")


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("qwen38-flash-next", tmp_path_factory.mktemp("qwen"), "gguf")


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("laguna", tmp_path_factory.mktemp("drafter"), "gguf", role=None)


@pytest.mark.parametrize("family", SIZES)
def test_both_containers_of_one_seed_are_one_target(family: str, tmp_path: Path) -> None:
    files = [make(family, tmp_path / kind, kind, "bf16") for kind in ("safetensors", "gguf")]
    one, two = (oracle.open_target(f).window([1, 5, 9, 2, 40, 5, 9, 2, 17, 30], taps=(1, 4)) for f in files)
    assert np.array_equal(one.logits, two.logits) and np.array_equal(one.features, two.features)


@pytest.mark.parametrize("weights", ["q8_0"])
@pytest.mark.parametrize("family", SIZES)
def test_block_formats_stay_near_the_plain_model(family: str, weights: str, tmp_path: Path) -> None:
    """Heads tiled in blocks of 16 columns are torn out of blocks of 32 values: they must still be the right columns."""
    plain, blocky = (oracle.open_target(make(family, tmp_path / w, "gguf", w)) for w in ("f32", weights))
    assert weights in blocky.identity.formats
    a, b = (t.window([1, 5, 9, 2]).logits for t in (plain, blocky))
    cosine = (a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))
    assert 0.7 < cosine.min() < 1 - 1e-9


def test_laguna_names_are_those_of_llama_cpp(laguna: Path) -> None:
    names = set(read_gguf(laguna).tensors)
    attention = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "attn_q_norm", "attn_k_norm", "attn_gate", "ffn_norm")
    dense = {f"blk.0.{n}.weight" for n in (*attention, "ffn_gate", "ffn_up", "ffn_down")}
    sparse = {f"ffn_{n}_{kind}.weight" for n in ("gate", "up", "down") for kind in ("exps", "shexp")} | {"ffn_gate_inp.weight"}
    sparse |= {f"{n}.weight" for n in attention} | {"exp_probs_b.bias"}
    assert {n for n in names if n.startswith("blk.0.")} == dense
    assert {n.removeprefix("blk.1.") for n in names if n.startswith("blk.1.")} == sparse
    assert {n for n in names if not n.startswith("blk.")} == {"token_embd.weight", "output_norm.weight", "output.weight"}


def test_qwen38_layout_is_that_of_llama_cpp(qwen: Path, tmp_path: Path) -> None:
    """Against the folder of the same seed, by plain loops: norms with their 1, tiled heads, the exponential, a split indexer."""
    from oracle.artifacts import open_container

    folder = open_container(make("qwen38-flash-next", tmp_path, "safetensors")).tensors
    file = read_gguf(qwen).tensors

    def hf(name: str) -> Any:
        t = folder[f"model.{name}"]
        return np.ascontiguousarray(t.raw).reshape(-1).view("<f4").reshape(t.shape).astype(np.float64)

    def gg(name: str) -> Any:
        t = file[name]
        return np.ascontiguousarray(t.raw).reshape(-1).view("<f4").reshape(t.shape)

    def single(x: Any) -> Any:
        return x.astype(np.float32)

    keys, values, dim, wide = 2, 6, 16, 2 * 2 * 16
    tiled = [k * (values // keys) + j for j in range(values // keys) for k in range(keys)]
    assert tiled == [0, 3, 1, 4, 2, 5]
    stem = "layers.0.linear_attn."
    assert np.array_equal(gg("blk.0.ssm_beta.weight"), hf(f"{stem}in_proj_b.weight")[tiled])
    assert np.array_equal(gg("blk.0.ssm_alpha.weight"), hf(f"{stem}in_proj_a.weight")[tiled])
    assert np.array_equal(gg("blk.0.ssm_dt.bias"), hf(f"{stem}dt_bias")[tiled])
    assert np.array_equal(gg("blk.0.ssm_a"), single(-np.exp(hf(f"{stem}A_log")[tiled])))
    qkv, z = hf(f"{stem}in_proj_qkv.weight"), hf(f"{stem}in_proj_z.weight")
    for place, head in enumerate(tiled):
        at, of = slice(place * dim, (place + 1) * dim), slice(head * dim, (head + 1) * dim)
        assert np.array_equal(gg("blk.0.attn_qkv.weight")[wide:][at], qkv[wide:][of])
        assert np.array_equal(gg("blk.0.attn_gate.weight")[at], z[of])
        assert np.array_equal(gg("blk.0.ssm_out.weight")[:, at], hf(f"{stem}out_proj.weight")[:, of])
        assert np.array_equal(gg("blk.0.ssm_conv1d.weight")[wide:][at], hf(f"{stem}conv1d.weight")[wide:, 0][of])
    assert np.array_equal(gg("blk.0.attn_qkv.weight")[:wide], qkv[:wide])
    assert np.array_equal(gg("blk.0.hc_attn_norm.weight"), single(1 + hf("layers.0.attn_hyper_connection.hc_norm.weight")))
    assert np.array_equal(gg("output_hc_norm.weight"), single(1 + hf("hyper_connection_mixer.hc_norm.weight")))
    assert np.array_equal(gg("blk.0.ssm_norm.weight"), hf(f"{stem}norm.weight"))
    index = hf("layers.3.self_attn.indexer.index_qk_proj.weight")
    assert np.array_equal(np.concatenate([gg("blk.3.indexer.q_proj.weight"), gg("blk.3.indexer.k_proj.weight")]), index)
    assert np.array_equal(gg("per_layer_token_embd.weight"), hf("layers.1.ple.ple_embedding.ngram_embedding.weight"))
    both = hf("layers.2.mlp.experts.gate_up_proj")
    assert np.array_equal(gg("blk.2.ffn_gate_exps.weight"), both[:, :32]) and np.array_equal(gg("blk.2.ffn_up_exps.weight"), both[:, 32:])


def test_gate_and_up_rows_of_an_expert_may_be_one_tensor(qwen: Path, tmp_path: Path) -> None:
    def fuse(keys: Keys, tensors: Tensors) -> None:
        for n in range(8):
            gate, up = (tensors.pop(f"blk.{n}.ffn_{p}_exps.weight") for p in ("gate", "up"))
            rows = [np.concatenate(list(t.chunks())).reshape(8, 32, -1) for t in (gate, up)]
            both = np.concatenate(rows, 1)
            made = zeros(f"blk.{n}.ffn_gate_up_exps.weight", 8, 64, 32)
            raw = both.reshape(8 * 64, -1)
            object.__setattr__(made, "chunks", lambda raw=raw: iter([raw]))
            tensors[made.name] = made

    one, two = (oracle.open_target(p).window([1, 2, 3]).logits for p in (qwen, rewritten(qwen, tmp_path / "f.gguf", fuse)))
    assert np.array_equal(one, two)


def test_the_multiplier_in_force_is_the_engine_s(laguna: Path, tmp_path: Path) -> None:
    """Declared as llama.cpp derives it, declared through its own factor, and declared where it is not read."""
    own = 0.1 * np.log(32) + 1
    name = "rope.scaling.yarn_attn_factor"
    assert open_target_files(laguna).geometry.rope.attention_factor == own

    def scaled(keys: Keys, tensors: Tensors) -> None:
        keys["laguna.rope.scaling.attn_factor"] = Typed("f32", 0.5 / own)
        keys[f"laguna.{name}"] = Typed("f32", 0.5)

    assert open_target_files(rewritten(laguna, tmp_path / "a.gguf", scaled)).geometry.rope.attention_factor == 0.5
    files = open_target_files(rewritten(laguna, tmp_path / "b.gguf", in_laguna(name, "f32", 1.0)))
    assert files.geometry.rope.attention_factor == own
    assert any("is not in force" in w and "1.34" in w for w in files.identity.warnings)


def test_a_pattern_may_be_a_period_from_a_full_first_layer(laguna: Path, tmp_path: Path) -> None:
    name = "attention.sliding_window_pattern"
    want = open_target_files(laguna).geometry.sliding
    assert want == (False, True, True, True, False, True)
    for number, edit in enumerate((in_laguna(name, "u32", 4), from_laguna(name))):
        assert open_target_files(rewritten(laguna, tmp_path / f"{number}.gguf", edit)).geometry.sliding == want


def test_laguna_tap_norms_are_one_row_per_tap_or_one_vector(drafter: Path, tmp_path: Path) -> None:
    files = open_drafter_files(drafter)
    assert files.identity.family == "laguna" and files.geometry.target_layers == 6
    assert read_gguf(drafter).tensors["enc.aux_norm.weight"].shape == (3, 32)
    assert len(read_gguf(drafter).tensors) == 12 * 3 + 3 + 1

    def flat(keys: Keys, tensors: Tensors) -> None:
        object.__setattr__(tensors["enc.aux_norm.weight"], "shape", (96,))

    again = open_drafter_files(rewritten(drafter, tmp_path / "d.gguf", flat))
    assert np.array_equal(files.weights.tap_norm.array(), again.weights.tap_norm.array())


LAGUNA_TARGET: dict[str, tuple[Edit, list[str]]] = {
    "another router": (in_laguna("expert_gating_func", "u32", 1), ["expert_gating_func", "2 (sigmoid)"]),
    "unnormalised experts": (in_laguna("expert_weights_norm", "bool", False), ["expert_weights_norm", "expected True"]),
    "two shared experts": (in_laguna("expert_shared_count", "u32", 2), ["expert_shared_count", "expected 1"]),
    "more experts than there are": (in_laguna("expert_used_count", "u32", 5), ["expert_used_count", "1 to 4"]),
    "experts beyond bounds": (in_laguna("expert_count", "u32", 4097), ["expert_count", "1 to 4096"]),
    "layers beyond bounds": (in_laguna("block_count", "u32", 1025), ["block_count", "1 to 1024"]),
    "heads of another depth": (in_laguna("attention.head_count", "array of i32", [4] * 5), ["head_count", "6 whole numbers"]),
    "heads that do not divide": (in_laguna("attention.head_count", "array of i32", [4, 5, 6, 6, 4, 6]), ["head_count", "2 kv heads"]),
    "heads as floats": (in_laguna("attention.head_count", "array of f32", [4.0] * 6), ["head_count", "array of f32"]),
    "a pattern of another depth": (in_laguna("attention.sliding_window_pattern", "array of bool", [True]), ["pattern", "6 bools"]),
    "a period of one": (in_laguna("attention.sliding_window_pattern", "u32", 1), ["pattern", "found u32 1"]),
    "a window of one": (in_laguna("attention.sliding_window", "u32", 1), ["sliding_window", "2 to 1048576"]),
    "a window beyond bounds": (in_laguna("attention.sliding_window", "u32", (1 << 20) + 1), ["sliding_window", "1048576"]),
    "no width of sliding ropes": (from_laguna("rope.dimension_count_swa"), ["missing key laguna.rope.dimension_count_swa"]),
    "an odd rope": (in_laguna("rope.dimension_count", "u32", 7), ["rope.dimension_count", "even"]),
    "a rope wider than a head": (in_laguna("rope.dimension_count", "u32", 18), ["rope.dimension_count", "2 to 16"]),
    "another scaling": (in_laguna("rope.scaling.type", "string", "linear"), ["scaling.type", "'none' or 'yarn'"]),
    "yarn without its length": (from_laguna("rope.scaling.original_context_length"), ["missing key", "original_context_length"]),
    "an extrapolation": (in_laguna("rope.scaling.yarn_ext_factor", "f32", 0.5), ["yarn_ext_factor", "expected 1.0"]),
    "a softcap of logits": (in_laguna("final_logit_softcapping", "f32", 30.0), ["final_logit_softcapping", "found f32 30.0"]),
    "value width differs": (in_laguna("attention.value_length", "u32", 8), ["value_length", "expected 16"]),
    "an unknown key": (in_laguna("surprise", "u32", 1), ["laguna.surprise", "does not know"]),
    "no eps": (from_laguna("attention.layer_norm_rms_epsilon"), ["missing key", "layer_norm_rms_epsilon"]),
    "another vocabulary": (in_laguna("vocab_size", "u32", 61), ["vocab_size", "60, the rows of token_embd.weight"]),
    "a gate of another width": (add("blk.2.attn_gate.weight", 5, 32), ["blk.2.attn_gate.weight", "6 rows", "96 (per element)"]),
    "a sink": (add("blk.1.attn_sinks.weight", 6), ["blk.1.attn_sinks.weight", "does not know"]),
    "a router's bias missing": (drop("blk.3.exp_probs_b.bias"), ["missing tensors", "blk.3.exp_probs_b.bias"]),
    "experts of another count": (add("blk.1.ffn_up_exps.weight", 3, 32, 32), ["ffn_up_exps", "[3, 32, 32]", "[4, 32, 32]"]),
}
QWEN_TARGET: dict[str, tuple[Edit, list[str]]] = {
    "no state": (from_qwen("ssm.state_size"), ["missing key qwen4exp.ssm.state_size"]),
    "another inner size": (in_qwen("ssm.inner_size", "u32", 90), ["ssm.inner_size", "expected 96"]),
    "key heads that do not divide": (in_qwen("ssm.group_count", "u32", 4), ["ssm.group_count", "divisor of 6"]),
    "one stream": (in_qwen("hyper_connection.count", "u32", 1), ["hyper_connection.count", "2 to 64"]),
    "no rank": (in_qwen("hyper_connection.low_rank", "u32", 0), ["hyper_connection.low_rank"]),
    "two ratios": (in_qwen("attention.compress_ratios", "array of i32", [0, 0, 0, 4, 0, 0, 0, 2]), ["compress_ratios", "one ratio"]),
    "a ratio on linear attention": (in_qwen("attention.compress_ratios", "array of i32", [4] * 8), ["compress_ratios", "0 for the others"]),
    "a budget that is no multiple": (in_qwen("attention.indexer.top_k", "u32", 9), ["top_k", "multiple of the compression ratio 4"]),
    "an indexer narrower than the rope": (in_qwen("attention.indexer.key_length", "u32", 6), ["key_length", "rotary width 8"]),
    "recurrent layers of another depth": (in_qwen("attention.recurrent_layers", "array of bool", [True]), ["recurrent_layers", "8 bools"]),
    "n-grams on sparse attention": (in_qwen("ple.layers", "array of i32", [3]), ["ple.layers", "linear attention"]),
    "two n-gram layers": (in_qwen("ple.layers", "array of i32", [0, 1]), ["ple.layers", "1 to 1"]),
    "an even multiplier": (in_qwen("ple.layer_multipliers", "array of u64", [2, 3, 5]), ["layer_multipliers", "odd"]),
    "a multiplier that overflows": (in_qwen("ple.layer_multipliers", "array of u64", [1 << 62, 3, 5]), ["layer_multipliers"]),
    "offsets that do not add up": (in_qwen("ple.head_offsets", "array of u64", [0, 1, 2, 3]), ["head_offsets", "running sum"]),
    "another seed": (in_qwen("ple.seed", "u32", 7), ["ple.seed", "a seed that gives"]),
    "another divisor": (in_qwen("ple.divisor", "u32", 7), ["ple.divisor", "pads the table"]),
    "a short table": (add("per_layer_token_embd.weight", 100, 8), ["per_layer_token_embd.weight", "at least", "found 100"]),
    "an end mark outside the vocabulary": (in_qwen("ple.eos_token_id", "u32", 60), ["ple.eos_token_id", "0 to 59"]),
    "another output gate": (in_qwen("output_gate_type", "string", "relu"), ["output_gate_type", "'sigmoid' or 'silu'"]),
    "a scaled rope": (in_qwen("rope.scaling.type", "string", "yarn"), ["scaling.type", "expected 'none'"]),
    "an unknown key": (in_qwen("surprise", "u32", 1), ["qwen4exp.surprise", "does not know"]),
    "an ordinary norm": (add("blk.0.attn_norm.weight", 32), ["blk.0.attn_norm.weight", "does not know"]),
    "no head": (drop("output.weight"), ["missing tensors", "output.weight"]),
    "a decay above zero": (add("blk.0.ssm_a", 6), ["ssm_a", "below 0"]),
}
LAGUNA_DRAFTER: dict[str, tuple[Edit, list[str]]] = {
    "causality left out": (drop("attention.causal"), ["missing key dflash.attention.causal"]),
    "a bidirectional block": (put("attention.causal", "bool", False), ["attention.causal", "expected true"]),
    "a full layer": (put("attention.sliding_window_pattern", "array of bool", [True, False, True]), ["pattern", "true for every layer"]),
    "no window": (drop("attention.sliding_window"), ["missing key dflash.attention.sliding_window"]),
    "a window of one": (put("attention.sliding_window", "u32", 1), ["sliding_window", "2 to 1048576"]),
    "falling taps": (put("target_layers", "array of i32", [4, 2, 6]), ["target_layers", "3 rising layers"]),
    "taps counted from zero": (put("target_layers", "array of i32", [0, 3, 5]), ["target_layers", "from 1 to 1024"]),
    "two taps": (put("target_layers", "array of i32", [2, 4]), ["target_layers", "3 rising layers"]),
    "taps beyond the target": (put("target_block_count", "u32", 5), ["target_block_count", "from 6 to 1024"]),
    "a block of 513": (put("block_size", "u32", 513), ["block_size", "2 to 512"]),
    "a partial rope": (put("rope.dimension_count", "u32", 8), ["rope.dimension_count", "expected 16"]),
    "a stretched rope": (put("rope.scaling.type", "string", "yarn"), ["scaling.type", "expected 'none'"]),
    "an embedding scale": (put("embedding_scale", "f32", 2.0), ["embedding_scale", "expected 1.0"]),
    "a gate missing": (drop("blk.1.attn_gate.weight"), ["missing tensors", "blk.1.attn_gate.weight"]),
    "a gate per element": (add("blk.1.attn_gate.weight", 64, 32), ["blk.1.attn_gate.weight", "[64, 32]", "[4, 32]"]),
    "tap norms of another width": (add("enc.aux_norm.weight", 3, 31), ["enc.aux_norm.weight", "[3, 31]", "[3, 32]"]),
    "its own embedding": (add("token_embd.weight", 60, 32), ["token_embd.weight", "does not know"]),
    "its own head": (add("output.weight", 60, 32), ["output.weight", "does not know"]),
    "an unknown key": (put("surprise", "u32", 1), ["dflash.surprise", "does not know"]),
}


def refused(path: Path, out: Path, rule: tuple[Edit, list[str]], open_it: Any) -> None:
    edit, words = rule
    with pytest.raises(ArtifactError) as caught:
        open_it(rewritten(path, out, edit))
    text = str(caught.value)
    assert text.startswith(str(out)) and "\n" not in text
    assert [w for w in words if w not in text] == [], text


@pytest.mark.parametrize("rule", LAGUNA_TARGET)
def test_a_wrong_laguna_target_is_refused(rule: str, laguna: Path, tmp_path: Path) -> None:
    refused(laguna, tmp_path / "t.gguf", LAGUNA_TARGET[rule], open_target_files)


@pytest.mark.parametrize("rule", QWEN_TARGET)
def test_a_wrong_qwen38_target_is_refused(rule: str, qwen: Path, tmp_path: Path) -> None:
    refused(qwen, tmp_path / "t.gguf", QWEN_TARGET[rule], open_target_files)


@pytest.mark.parametrize("rule", LAGUNA_DRAFTER)
def test_a_wrong_laguna_drafter_is_refused(rule: str, drafter: Path, tmp_path: Path) -> None:
    refused(drafter, tmp_path / "d.gguf", LAGUNA_DRAFTER[rule], open_drafter_files)
