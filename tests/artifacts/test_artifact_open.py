"""What a sound file means: geometry, dialect, families, causality, rope, tied heads, identity."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracle.artifacts import ArtifactError, open_borrowed, open_drafter_files, open_target_files
from oracle.artifacts.qwen3 import resolve_causal
from tests.artifacts.artifact_files import (
    DIM,
    HIDDEN,
    Gguf,
    Tensor,
    changed,
    llama_folder,
    llama_gguf,
    muse_folder,
    muse_gguf,
    numbers,
    qwen3_folder,
    qwen3_gguf,
)


def put(path: Path, file: Gguf) -> Path:
    path.write_bytes(file.render())
    return path


def config(**changes: Any) -> Any:
    return lambda f: f.config.update(changes)


def test_muse_gguf(tmp_path: Path) -> None:
    files = open_drafter_files(put(tmp_path / "d.gguf", muse_gguf()))
    g, d = files.geometry, files.dialect
    assert (files.identity.family, d.family) == ("muse-glimmer", "muse-glimmer")
    assert g.tap_ids == (1, 13), "stored one-based, opened zero-based"
    assert (g.layers, g.window, g.window_source, g.block_size, g.mask_token_id) == (5, 8, "file", 4, 5)
    assert d.causal == (False,) * 5 and d.window_rule == "W_LE" and d.window == 8
    assert d.eps == 1e-5 and d.attn_scale == DIM**-0.5 and d.rope.style == "neox"
    layer = files.weights.layers[0]
    assert layer.q.axes == ("head", "dim", "in") and layer.q.shape == (4, DIM, HIDDEN)
    assert files.weights.fc.shape == (HIDDEN, 2 * HIDDEN) and files.weights.fc.axes == ("dim", "in")
    assert np.array_equal(files.weights.fc.array().ravel(), np.frombuffer(numbers(HIDDEN, 2 * HIDDEN), "<f4"))


@pytest.mark.parametrize("absent", [True, False])
def test_muse_without_its_window_warns(absent: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = muse_gguf()
    if absent:
        del file.keys["dflash.attention.sliding_window"]
    else:
        file.keys["dflash.attention.sliding_window"] = ("u32", 0)
    with caplog.at_level(logging.WARNING, "parity"):
        files = open_drafter_files(put(tmp_path / "d.gguf", file), "muse-glimmer")
    assert (files.geometry.window, files.geometry.window_source) == (2048, "default")
    assert "2048" in caplog.text and "sliding_window" in files.identity.warnings[0]


def test_muse_folders_in_both_namings(tmp_path: Path) -> None:
    published = open_drafter_files(muse_folder().write(tmp_path / "published"))

    def export(f: Any) -> None:
        f.tensors["fc.weight"] = f.tensors.pop("encoder.fc.weight")
        f.tensors["hidden_norm.weight"] = f.tensors.pop("encoder.output_norm_enc.weight")
        f.config["dflash_config"] = {k: f.config.pop(k) for k in ("mask_token_id", "target_layer_ids")}
        f.config["architectures"] = ["DFlashDraftModel"]
        f.config["num_target_layers"] = 52

    exported = open_drafter_files(changed(muse_folder(), export).write(tmp_path / "export"))
    assert published.geometry.tap_ids == exported.geometry.tap_ids == (1, 13)
    assert published.dialect == exported.dialect
    assert exported.geometry.target_layers == 52


def test_the_model_prefix_is_optional(tmp_path: Path) -> None:
    plain = open_drafter_files(qwen3_folder().write(tmp_path / "a"))
    prefixed = changed(qwen3_folder(), lambda f: setattr(f, "tensors", {"model." + n: t for n, t in f.tensors.items()}))
    other = open_drafter_files(prefixed.write(tmp_path / "b"))
    assert plain.geometry == other.geometry
    assert np.array_equal(plain.weights.layers[1].down.array(), other.weights.layers[1].down.array())


def test_families_of_dflash_files(tmp_path: Path) -> None:
    """`DESIGN.md` section 7: window, one-based layers and five layers are Muse; otherwise generic; doubt is an error."""
    path = tmp_path / "d.gguf"
    assert open_drafter_files(put(path, qwen3_gguf())).identity.family == "qwen3"
    full = changed(muse_gguf(), lambda f: [f.keys.pop(k) for k in list(f.keys) if "sliding" in k])
    assert open_drafter_files(put(path, full)).identity.family == "qwen3"
    causal = changed(muse_gguf(), lambda f: f.keys.update({"dflash.attention.causal": ("bool", True)}))
    assert open_drafter_files(put(path, causal)).identity.family == "qwen3"
    doubtful = changed(full, lambda f: f.keys.update({"dflash.embedding_length": ("u32", 6656)}))
    with pytest.raises(ArtifactError, match=r"ambiguous.*--family"):
        open_drafter_files(put(path, doubtful))


@pytest.mark.parametrize(
    ("top", "inner", "want"),
    [
        (None, None, (True, False)),
        (None, False, (False, False)),
        (None, True, (True, True)),
        (False, True, (False, False)),
        (True, False, (True, True)),
    ],
)
def test_causality_is_resolved_in_the_order_of_the_specification(top: Any, inner: Any, want: tuple[bool, ...], tmp_path: Path) -> None:
    assert resolve_causal((True, False), top, inner) == want

    def edit(f: Any) -> None:
        f.config |= {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8, "is_causal": top}
        f.config["dflash_config"]["causal"] = inner

    d = open_drafter_files(changed(qwen3_folder(), edit).write(tmp_path / "m")).dialect
    assert d.causal == want and d.window == 8 and d.window_rule == "W_LT"


def test_generic_switches(tmp_path: Path) -> None:
    def edit(f: Any) -> None:
        f.config["attention_bias"] = True
        f.config["final_logit_softcapping"] = 9.0
        f.config["dflash_config"] |= {"input_embedding_scale": 2.5, "output_multiplier": 0.7, "final_logit_softcapping": 3.0}
        shapes = {"q": 16, "k": 8, "v": 8, "o": 8}
        f.tensors |= {f"layers.{n}.self_attn.{p}_proj.bias": ["F32", [s], numbers(s)] for n in range(2) for p, s in shapes.items()}

    files = open_drafter_files(changed(qwen3_folder(), edit).write(tmp_path / "m"))
    d = files.dialect
    assert (d.embed_scale, d.output_multiplier, d.softcap) == (2.5, 0.7, 3.0), "dflash_config comes before the top level"
    assert d.causal == (False, False) and d.window_rule == "none" and d.window is None
    bias = files.weights.layers[1].k_bias
    assert bias is not None and bias.axes == ("head", "dim") and bias.shape == (2, DIM)
    assert np.array_equal(bias.array().ravel(), np.frombuffer(numbers(8), "<f4"))


@pytest.mark.parametrize("cap", [0, 0.0, None])
def test_a_softcap_of_zero_is_none(cap: Any, tmp_path: Path) -> None:
    file = changed(qwen3_folder(), lambda f: f.config["dflash_config"].update(final_logit_softcapping=cap))
    assert open_drafter_files(file.write(tmp_path / "m")).dialect.softcap is None


def test_a_config_with_the_usual_furniture_opens_without_a_warning(tmp_path: Path) -> None:
    """The keys that `save_pretrained` writes around the ones that matter, nulls included."""
    furniture = {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "bos_token_id": 1,
        "dtype": "bfloat16",
        "eos_token_id": [1, 2],
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "layer_types": ["full_attention"] * 2,
        "max_window_layers": 2,
        "rope_scaling": None,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "transformers_version": "5.0",
        "use_cache": True,
        "use_sliding_window": False,
    }
    files = open_drafter_files(changed(qwen3_folder(), config(**furniture)).write(tmp_path / "m"))
    assert files.identity.warnings == () and files.geometry.window is None and files.dialect.causal == (False, False)


def test_layers_slide_from_max_window_layers_on(tmp_path: Path) -> None:
    file = changed(qwen3_folder(), config(use_sliding_window=True, sliding_window=8, max_window_layers=1))
    assert open_drafter_files(file.write(tmp_path / "m")).geometry.sliding == (False, True)


def test_target_containers(tmp_path: Path) -> None:
    gguf = open_target_files(put(tmp_path / "t.gguf", llama_gguf()))
    folder = open_target_files(llama_folder().write(tmp_path / "t"))
    assert (gguf.geometry.rope.style, folder.geometry.rope.style) == ("interleaved", "neox")
    assert gguf.weights.embedding.axes == ("vocab", "in") and not gguf.geometry.tied_embedding
    assert gguf.weights.layers[0].q_norm is None
    no_head = changed(llama_gguf(), lambda f: f.tensors.remove(f.tensor("output.weight")))
    tied = open_target_files(put(tmp_path / "t.gguf", no_head))
    assert tied.geometry.tied_embedding and tied.weights.head is tied.weights.embedding
    again = open_target_files(changed(llama_folder(), config(tie_word_embeddings=True)).write(tmp_path / "u"))
    assert again.weights.head is again.weights.embedding


def test_rope_factors_of_a_gguf(tmp_path: Path) -> None:
    factors = np.array([1.0, 4.0], "<f4").tobytes()
    file = changed(llama_gguf(), lambda f: f.tensors.append(Tensor("rope_freqs.weight", [2], factors)))
    assert open_target_files(put(tmp_path / "t.gguf", file)).geometry.rope.factors == (1.0, 4.0)


def test_llama3_rope(tmp_path: Path) -> None:
    """The published piecewise formula, written out pair by pair."""
    table = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    table |= {"original_max_position_embeddings": 100, "rope_theta": 100.0}
    rope = open_target_files(changed(llama_folder(), config(rope_parameters=table)).write(tmp_path / "t")).geometry.rope
    assert rope.factors is not None
    for i, factor in enumerate(rope.factors):
        freq = 100.0 ** (-2 * i / DIM)
        wave = 2 * np.pi / freq
        if wave < 100 / 4.0:
            want = freq
        elif wave > 100 / 1.0:
            want = freq / 8
        else:
            smooth = (100 / wave - 1.0) / (4.0 - 1.0)
            want = (1 - smooth) * freq / 8 + smooth * freq
        assert freq / factor == pytest.approx(want, rel=1e-14)
    assert rope.factors[0] == 1.0 and 1.0 < rope.factors[1] < 8.0


def test_linear_rope(tmp_path: Path) -> None:
    old_style = config(rope_parameters=None, rope_theta=50.0, rope_scaling={"type": "linear", "factor": 2.0})
    old = changed(llama_folder(), old_style)
    rope = open_target_files(old.write(tmp_path / "t")).geometry.rope
    assert rope.factors == (2.0, 2.0) and rope.theta == 50.0


def test_lending(tmp_path: Path) -> None:
    def multimodal(f: Any) -> None:
        f.tensors = {n.replace("model.embed_tokens", "model.language_model.embed_tokens"): t for n, t in f.tensors.items()}
        f.config = {"architectures": ["Anything"], "text_config": {"tie_word_embeddings": False}}

    for number, edit in enumerate((lambda f: None, multimodal)):
        lent = open_borrowed(changed(llama_folder(), edit).write(tmp_path / str(number)))
        assert lent.embedding.shape == lent.head.shape == (6, HIDDEN) and lent.head is not lent.embedding
    other = changed(llama_gguf(), lambda f: f.keys.update({"general.architecture": ("string", "gemma4")}))
    assert open_borrowed(put(tmp_path / "t.gguf", other)).identity.container == "gguf"


def test_identity_is_the_sha256_of_the_files(tmp_path: Path) -> None:
    path = put(tmp_path / "d.gguf", muse_gguf())
    identity = open_drafter_files(path).identity
    assert identity.sha256 == {"d.gguf": hashlib.sha256(path.read_bytes()).hexdigest()}
    assert identity.formats == ("f32",)
    folder = qwen3_folder().write(tmp_path / "m")
    names = open_drafter_files(folder).identity.sha256
    assert names.keys() == {"config.json", "model.safetensors"}


def test_weights_are_mapped_not_read(tmp_path: Path) -> None:
    raw = open_drafter_files(put(tmp_path / "d.gguf", muse_gguf())).weights.fc.raw
    base: Any = raw
    while getattr(base, "base", None) is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap) and not raw.flags.writeable
