"""Muse Glimmer targets: what the two containers say, that both are one model, and every rule by which a file is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracle.artifacts import ArtifactError, inspect_artifact, make_artifact, open_borrowed, open_target_files
from oracle.artifacts.make import TARGET_MODELS
from oracle.models import open_target
from oracle.targets.muse_glimmer import MuseGeometry, MuseLayer
from tests.artifacts.artifact_files import DIM, HIDDEN, VOCAB, Folder, Gguf, Tensor, changed, numbers
from tests.artifacts.muse_target_files import ARCH, PREFIX, constant, muse_target_folder, muse_target_gguf

A = f"{ARCH}.attention."


def put(path: Path, file: Gguf) -> Path:
    path.write_bytes(file.render())
    return path


def opened(files: Any) -> tuple[MuseGeometry, MuseLayer]:
    assert isinstance(files.geometry, MuseGeometry) and isinstance(files.weights.layers[0], MuseLayer)
    return files.geometry, files.weights.layers[0]


def test_what_a_gguf_says(tmp_path: Path) -> None:
    g, layer = opened(open_target_files(put(tmp_path / "t.gguf", muse_target_gguf())))
    assert g.sliding == g.roped == (True, False, True) and g.window == 8
    assert (g.eps, g.post_norm_eps, g.norm_offset) == (1e-5, 1e-8, 0.0)
    assert (g.qk_scale, g.output_multiplier, g.softcap, g.rope.style) == (3.87, 0.5, 20.0, "interleaved")
    assert layer.q_norm is not None and np.allclose(layer.q_norm.array(), 3.87, rtol=1e-7)
    assert g.placeholders == ()


def test_what_a_folder_says(tmp_path: Path) -> None:
    g, layer = opened(open_target_files(muse_target_folder().write(tmp_path / "t")))
    assert g.sliding == g.roped == (True, False, True) and g.window == 8
    assert (g.eps, g.post_norm_eps, g.norm_offset) == (1e-6, 1e-8, 1.0)
    assert (g.qk_scale, g.output_multiplier, g.softcap, g.rope.style) == (3.87, 0.5, 20.0, "neox")
    assert layer.q_norm is not None and np.allclose(layer.q_norm.array(), 3.87, rtol=1e-7)
    assert g.placeholders == (3, 4)
    with pytest.raises(ValueError, match="token id 4 at row 1 stands for an image or video"):
        open_target(tmp_path / "t").window([0, 4])


def test_a_period_counts_from_the_first_layer(tmp_path: Path) -> None:
    """Scalar patterns are forward in every engine that reads GGUF (`specs/muse-glimmer.md` 1.2)."""
    file = changed(muse_target_gguf(), lambda f: f.keys.update({f"{A}sliding_window_pattern": ("u32", 2)}))
    assert opened(open_target_files(put(tmp_path / "t.gguf", file)))[0].sliding == (True, False, True)
    file.keys[f"{A}sliding_window_pattern"] = ("u32", 3)
    assert opened(open_target_files(put(tmp_path / "t.gguf", file)))[0].sliding == (True, True, False)


def test_the_vision_part_is_left_out_aloud(tmp_path: Path) -> None:
    file = changed(muse_target_folder(), lambda f: f.tensors.update({"model.vision_tower.ln_pre.weight": ["F32", [2], numbers(2)]}))
    assert "1 tensors of the vision part are not used" in open_target_files(file.write(tmp_path / "t")).identity.warnings[0]


def test_layers_rotate_where_their_theta_is_not_zero(tmp_path: Path) -> None:
    def edit(f: Folder) -> None:
        f.config["text_config"]["layer_rope_theta"] = [0, 500000.0, 500000]

    assert opened(open_target_files(changed(muse_target_folder(), edit).write(tmp_path / "t")))[0].roped == (False, True, True)


@pytest.mark.parametrize("layers", [5, 8])
def test_both_containers_hold_one_model(layers: int, tmp_path: Path) -> None:
    """The folded 1, the permuted rows and the synthesized norms undo each other; only f32's rounding of 1 + w is left."""
    pattern = tuple(i % 3 != 2 for i in range(layers))
    sizes: dict[str, Any] = {"hidden": 24, "intermediate": 32, "heads": 4, "kv_heads": 2, "head_dim": 8, "vocab": 40, "window": 5}
    results = []
    for kind in ("gguf", "safetensors"):
        made = make_artifact("muse-glimmer", "tiny", "f32", tmp_path, 3, kind, "target", layers=layers, sliding=pattern, **sizes)
        target = open_target(made[0])
        assert isinstance(target.geometry, MuseGeometry) and target.geometry.sliding == pattern
        results.append(target.window(np.arange(15) * 7 % 40, taps=(0, layers - 1)))
    assert np.abs(results[0].logits - results[1].logits).max() < 1e-5
    assert np.abs(results[0].features - results[1].features).max() < 1e-5 * np.abs(results[0].features).max()


def test_the_seeded_release_is_that_of_the_specification() -> None:
    m = TARGET_MODELS["muse-glimmer", "release"]
    assert (m.hidden, m.intermediate, m.layers, m.heads, m.kv_heads, m.head_dim, m.vocab) == (6656, 19968, 52, 32, 2, 128, 202048)
    assert [i for i, s in enumerate(m.sliding) if not s] == list(range(3, 52, 4))
    assert (m.window, m.softcap, m.theta, m.output_multiplier) == (2048, 20.0, 5e5, pytest.approx(0.19611613513818404, rel=1e-15))


def test_a_target_lends_and_is_inspected(tmp_path: Path) -> None:
    path = put(tmp_path / "t.gguf", muse_target_gguf())
    assert open_borrowed(path).head.shape == (VOCAB, HIDDEN)
    report = inspect_artifact(path)
    assert (report["role"], report["family"], report["problems"]) == ("target", ARCH, []) and report["geometry"]["qk_scale"] == 3.87


def key(name: str, kind: str, content: Any) -> Callable[[Gguf], Any]:
    return lambda f: f.keys.update({name: (kind, content)})


def without(name: str) -> Callable[[Gguf], Any]:
    return lambda f: f.keys.pop(name)


def values(name: str, content: bytes) -> Callable[[Gguf], Any]:
    return lambda f: vars(f.tensor(name)).update(data=content)


BAD_GGUF: dict[str, tuple[Callable[[Gguf], Any], list[str]]] = {
    "no cap": (without(f"{ARCH}.final_logit_softcapping"), ["missing key", "final_logit_softcapping"]),
    "cap 0": (key(f"{ARCH}.final_logit_softcapping", "f32", 0.0), ["final_logit_softcapping", "found f32 0.0"]),
    "no multiplier": (without(f"{ARCH}.logit_scale"), ["missing key", "logit_scale"]),
    "no window": (without(f"{A}sliding_window"), ["missing key", "sliding_window"]),
    "window 0": (key(f"{A}sliding_window", "u32", 0), ["sliding_window", "found u32 0"]),
    "no pattern": (without(f"{A}sliding_window_pattern"), ["missing key", "sliding_window_pattern", "one per layer"]),
    "pattern of another depth": (key(f"{A}sliding_window_pattern", "array of bool", [True] * 4), ["sliding_window_pattern", "3 bools"]),
    "pattern of numbers": (key(f"{A}sliding_window_pattern", "array of u32", [1, 0, 1]), ["sliding_window_pattern"]),
    "period 1": (key(f"{A}sliding_window_pattern", "u32", 1), ["sliding_window_pattern", "found u32 1"]),
    "another theta of sliding layers": (key(f"{ARCH}.rope.freq_base_swa", "f32", 5.0), ["freq_base_swa", "same value"]),
    "partial rope": (key(f"{ARCH}.rope.dimension_count", "u32", 2), ["dimension_count", "head width 4"]),
    "another post eps": (key(f"{A}post_norm_rms_epsilon", "f32", 1e-5), ["post_norm_rms_epsilon", "1e-08"]),
    "no head width": (without(f"{A}key_length"), ["missing key", "key_length"]),
    "eps of another type": (key(f"{A}layer_norm_rms_epsilon", "f64", 1e-5), ["layer_norm_rms_epsilon", "f64"]),
    "unknown key": (key(f"{ARCH}.expert_count", "u32", 2), ["expert_count", "does not know"]),
    "another vocabulary": (key(f"{ARCH}.vocab_size", "u32", 7), ["vocab_size", "6, the rows"]),
    "no query scale": (lambda f: f.tensors.remove(f.tensor("blk.1.attn_q_norm.weight")), ["missing", "blk.1.attn_q_norm.weight"]),
    "weights in the query norm": (values("blk.1.attn_q_norm.weight", numbers(DIM)), ["blk.1.attn_q_norm.weight", "constant"]),
    "scales that differ": (values("blk.2.attn_q_norm.weight", constant(4.0)), ["attn_q_norm", "one constant"]),
    "scaled keys": (values("blk.0.attn_k_norm.weight", constant(2.0)), ["attn_k_norm", "1 for all k"]),
    "the product 43.784": (
        lambda f: [vars(f.tensor(f"blk.{n}.attn_q_norm.weight")).update(data=constant(3.87 * DIM**0.5)) for n in range(3)],
        ["attn_q_norm", "3.87", "sqrt(4)"],
    ),
    "no gate": (lambda f: f.tensors.remove(f.tensor("blk.0.attn_gate.weight")), ["missing", "blk.0.attn_gate.weight"]),
    "a gate per head": (
        lambda f: vars(f.tensor("blk.0.attn_gate.weight")).update(dims=[HIDDEN, 4], data=numbers(4, HIDDEN)),
        ["blk.0.attn_gate.weight", "[4, 8]", "[16, 8]"],
    ),
    "a bias": (lambda f: f.tensors.append(Tensor("blk.0.attn_q.bias", [16], numbers(16))), ["blk.0.attn_q.bias", "does not know"]),
    "a tied head": (lambda f: f.tensors.remove(f.tensor("output.weight")), ["missing", "output.weight"]),
}


@pytest.mark.parametrize("case", BAD_GGUF)
def test_a_wrong_gguf_is_refused(case: str, tmp_path: Path) -> None:
    edit, words = BAD_GGUF[case]
    path = put(tmp_path / "t.gguf", changed(muse_target_gguf(), edit))
    with pytest.raises(ArtifactError) as refused:
        open_target_files(path)
    message = str(refused.value)
    assert message.startswith(str(path)) and "\n" not in message and all(w in message for w in words), message


def text(**changes: Any) -> Callable[[Folder], Any]:
    return lambda f: f.config["text_config"].update(changes)


def no_text(name: str) -> Callable[[Folder], Any]:
    return lambda f: f.config["text_config"].pop(name)


def renamed(old: str, new: str) -> Callable[[Folder], Any]:
    def edit(f: Folder) -> None:
        f.tensors = {n.replace(old, new): t for n, t in f.tensors.items()}

    return edit


BAD_FOLDER: dict[str, tuple[Callable[[Folder], Any], list[str]]] = {
    "no text": (lambda f: f.config.pop("text_config"), ["text_config"]),
    "no cap": (no_text("final_logit_softcapping"), ["missing key text_config.final_logit_softcapping"]),
    "no query scale": (no_text("qk_scale_factor"), ["missing key text_config.qk_scale_factor"]),
    "the product 43.784": (text(qk_scale_factor=3.87 * DIM**0.5), ["qk_scale_factor", "sqrt(4)"]),
    "no post eps": (no_text("post_norm_eps"), ["missing key text_config.post_norm_eps"]),
    "no window": (no_text("sliding_window"), ["missing key text_config.sliding_window"]),
    "no layer types": (no_text("layer_types"), ["layer_types", "3 entries"]),
    "no thetas for a pattern of one's own": (no_text("layer_rope_theta"), ["layer_rope_theta", "one theta per layer"]),
    "a theta per layer": (text(layer_rope_theta=[500000.0, 0, 10000.0]), ["layer_rope_theta", "global theta 500000"]),
    "head width derived": (no_text("head_dim"), ["missing key text_config.head_dim"]),
    "another activation": (text(hidden_activation="gelu"), ["hidden_activation", "silu"]),
    "biased": (text(attention_bias=True), ["attention_bias"]),
    "tied": (text(tie_word_embeddings=True), ["tie_word_embeddings"]),
    "an unknown switch": (text(attn_sinks=True), ["text_config.attn_sinks", "does not know"]),
    "no image id": (lambda f: f.config.pop("image_token_id"), ["missing key image_token_id"]),
    "legacy post norms": (
        renamed("post_feedforward_layernorm", "post_ffn_norm"),
        ["older export", "post_ffn_norm", "pre_feedforward_layernorm"],
    ),
    "legacy prefix": (renamed(PREFIX, "model."), ["older export", "model.layers.0", "norm before the MLP"]),
    "a norm missing": (
        lambda f: f.tensors.pop(f"{PREFIX}layers.2.pre_feedforward_layernorm.weight"),
        ["missing", "layers.2.pre_feedforward_layernorm"],
    ),
    "a stray tensor": (lambda f: f.tensors.update(extra=["F32", [2], numbers(2)]), ["'extra'", "does not know"]),
}


@pytest.mark.parametrize("case", BAD_FOLDER)
def test_a_wrong_folder_is_refused(case: str, tmp_path: Path) -> None:
    edit, words = BAD_FOLDER[case]
    path = changed(muse_target_folder(), edit).write(tmp_path / "t")
    with pytest.raises(ArtifactError) as refused:
        open_target_files(path)
    message = str(refused.value)
    assert message.startswith(str(path)) and "\n" not in message and all(w in message for w in words), message


def test_thetas_may_be_left_out_where_their_default_is_the_pattern(tmp_path: Path) -> None:
    def edit(f: Folder) -> None:
        f.config["text_config"].pop("layer_rope_theta")
        f.config["text_config"]["layer_types"] = ["sliding_attention", "sliding_attention", "full_attention"]

    assert opened(open_target_files(changed(muse_target_folder(), edit).write(tmp_path / "t")))[0].roped == (True, True, False)
