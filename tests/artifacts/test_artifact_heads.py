"""Checkpoints with DFlash 2 and DSpark parts: every tensor in its role, both containers alike, half-declared ones refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracle.artifacts import ArtifactError, make_artifact, open_borrowed, open_drafter_files
from oracle.artifacts.gguf_file import read_gguf
from oracle.artifacts.seeds import values_of
from oracle.artifacts.writers import PlannedTensor, Typed, write_gguf
from oracle.models import open_drafter
from oracle.readings import Exact

FEWER: dict[str, Any] = {
    "layers": 2, "sliding": (True, False), "hidden": 64, "intermediate": 96, "heads": 4, "kv_heads": 2, "head_dim": 16,
    "vocab": 120, "mask_token_id": 119,
}  # fmt: skip
DFLASH2 = {"conv_kernel": 2, "conv_group": 16, "selector_rank": 32, "selector_top_k": 6}
DSPARK = {"markov_rank": 32, "confidence": "markov", "sample_from_anchor": True}
HEADS = {
    "dflash 2": DFLASH2,
    "convolution only": {"conv_kernel": 3, "conv_group": 8},
    "vanilla markov": DSPARK,
    "vanilla markov, 1 + N": DSPARK | {"sample_from_anchor": False},
    "confidence alone": {"confidence": "hidden"},
    "gated markov": DSPARK | {"markov": "gated"},
    "recurrent markov": DSPARK | {"markov": "rnn", "confidence": "hidden"},
    "reduced vocabulary": {"draft_vocab": 40},
    "reduced vocabulary with markov": DSPARK | {"draft_vocab": 40},
}


def made(out: Path, container: str, heads: dict[str, Any]) -> list[Path]:
    return make_artifact("qwen3", "tiny", "f32", out, 3, container, **FEWER, **heads)


@pytest.mark.parametrize("name", HEADS)
def test_both_containers_hold_the_same_drafter(name: str, tmp_path: Path) -> None:
    outputs = []
    for container in ("gguf", "safetensors"):
        draft, target = made(tmp_path / container, container, HEADS[name])
        lent, drafter = open_borrowed(target), open_drafter(draft)
        context = drafter.new_context(Exact())
        context.append(values_of(1, "x", (5, 3 * 64)), 0)
        block = drafter.propose(context, [4, 119, 119, 119], lent.embedding, lent.head)
        outputs.append((drafter.dialect, drafter.geometry, block))
    (d1, g1, b1), (d2, g2, b2) = outputs
    assert {s: getattr(d1, s) for s in ("conv", "selector", "markov", "confidence", "anchor_layout")} == {
        s: getattr(d2, s) for s in ("conv", "selector", "markov", "confidence", "anchor_layout")
    }
    assert g1.draft_vocab == g2.draft_vocab == HEADS[name].get("draft_vocab")
    assert np.array_equal(b1.logits.data, b2.logits.data)
    assert np.array_equal(b1.drafts.data, b2.drafts.data)
    assert len(b1.drafts.data) == (4 if HEADS[name].get("sample_from_anchor") else 3)
    assert (b1.confidence is not None) == ("confidence" in HEADS[name])


def test_a_gated_and_a_recurrent_head_are_in_their_roles(tmp_path: Path) -> None:
    for name, key in (("gated markov", "gate"), ("recurrent markov", "joint")):
        files = open_drafter_files(made(tmp_path / key, "safetensors", HEADS[name])[0])
        assert files.weights.markov is not None
        part = getattr(files.weights.markov, key)
        assert np.array_equal(part.array(), values_of(3, f"markov.{key}", part.shape).astype(np.float32))


def test_a_convolution_may_be_named_as_every_matrix_is(tmp_path: Path) -> None:
    path = made(tmp_path, "gguf", DFLASH2)[0]
    container = read_gguf(path)
    names = {n: f"{n}.weight" if n.endswith("conv_base") else n for n in container.tensors}
    assert sum(n != new for n, new in names.items()) == 4
    keys = {k: Typed(container.kinds[k], v.tolist() if isinstance(v, np.ndarray) else v) for k, v in container.metadata.items()}
    tensors = [PlannedTensor.whole(names[n], t.shape, t.stored, t.raw) for n, t in container.tensors.items()]
    write_gguf(tmp_path / "other.gguf", keys, tensors)
    one, two = (open_drafter_files(p).weights.layers[1].mlp_conv_base for p in (path, tmp_path / "other.gguf"))
    assert np.array_equal(one.array(), two.array())


def test_every_tensor_is_in_its_role(tmp_path: Path) -> None:
    files = open_drafter_files(made(tmp_path, "safetensors", DFLASH2)[0])
    layer = files.weights.layers[1]
    for key in ("attn_conv_base", "attn_conv_kernel", "mlp_conv_base", "mlp_conv_kernel"):
        w = getattr(layer, key)
        assert np.array_equal(w.array(), values_of(3, f"1.{key}", w.shape).astype(np.float32))
    assert layer.attn_conv_base.shape == (2, 2, 64) and layer.attn_conv_kernel.shape == (2, 2, 4, 64)
    assert files.weights.selector is not None and files.weights.selector.hidden.shape == (32, 64)


def test_codebooks_may_be_named_without_weight_as_the_published_package_maps_them(tmp_path: Path) -> None:
    import safetensors.numpy

    folder = made(tmp_path, "safetensors", DFLASH2)[0]
    file = folder / "model.safetensors"
    loaded = safetensors.numpy.load_file(file)
    for book in ("predecessor", "successor"):
        loaded[f"candidate_selector.{book}_codebook"] = loaded.pop(f"candidate_selector.{book}_codebook.weight")
    safetensors.numpy.save_file(loaded, file)
    assert open_drafter_files(folder).weights.selector is not None


def test_reduced_ids_are_offsets_in_a_folder_and_absolute_in_gguf(tmp_path: Path) -> None:
    import safetensors.numpy
    from gguf import GGUFReader

    both = {kind: made(tmp_path / kind, kind, {"draft_vocab": 40})[0] for kind in ("gguf", "safetensors")}
    ids = [open_drafter_files(path).weights.target_ids for path in both.values()]
    assert np.array_equal(*ids)
    offsets = safetensors.numpy.load_file(both["safetensors"] / "model.safetensors")["d2t"]
    absolute = next(t.data for t in GGUFReader(both["gguf"]).tensors if t.name == "d2t")
    assert np.array_equal(offsets + np.arange(40), absolute)
    assert np.array_equal(absolute, ids[0])


EDITS = {
    "a rank without a count": ({"dflash_config": {"selector_top_k": None}}, "selector_rank: expected selector_top_k beside it"),
    "a group that does not divide": ({"dflash_config": {"conv_group_size": 7}}, "conv_group_size: expected a divisor of the 64 channels"),
    "more candidates than ids": ({"dflash_config": {"selector_top_k": 121}}, "selector_top_k: expected at most the 120 ids"),
    "an unknown Markov head": ({"markov_rank": 32, "markov_head_type": "hmm"}, "markov_head_type: expected vanilla or gated or rnn"),
    "a Markov head without a layout": ({"markov_rank": 32}, "missing key sample_from_anchor"),
    "confidence in nothing": (
        {"enable_confidence_head": True, "confidence_head_with_markov": True, "sample_from_anchor": True},
        "confidence_head_with_markov: expected false",
    ),
    "a layout without heads": ({"sample_from_anchor": True}, "sample_from_anchor: expected False"),
    "a head that is not there": ({"markov_rank": 32, "sample_from_anchor": True}, "missing tensors: 'markov_head.markov_w1.weight'"),
    "a reduced vocabulary without a map": ({"draft_vocab_size": 40}, "missing tensor 'd2t'"),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_half_declared_head_is_refused(name: str, tmp_path: Path) -> None:
    edit, words = EDITS[name]
    folder = made(tmp_path, "safetensors", DFLASH2)[0]
    config = json.loads((folder / "config.json").read_text())
    inner = config["dflash_config"] | edit.get("dflash_config", {})
    (folder / "config.json").write_text(json.dumps(config | edit | {"dflash_config": inner}))
    with pytest.raises(ArtifactError, match=words):
        open_drafter_files(folder)


@pytest.mark.parametrize("wrong", [lambda d: d + 200, lambda d: np.zeros_like(d) - np.arange(len(d))])
def test_a_map_that_leaves_the_vocabulary_or_repeats_is_refused(wrong, tmp_path: Path) -> None:
    import safetensors.numpy

    folder = made(tmp_path, "safetensors", {"draft_vocab": 40})[0]
    file = folder / "model.safetensors"
    loaded = safetensors.numpy.load_file(file)
    safetensors.numpy.save_file(loaded | {"d2t": wrong(loaded["d2t"])}, file)
    with pytest.raises(ArtifactError, match="distinct target ids below 120"):
        open_drafter_files(folder)
    marks = np.zeros(120, bool)
    safetensors.numpy.save_file(loaded | {"t2d": marks}, file)
    with pytest.raises(ArtifactError, match="does not mark the ids"):
        open_drafter_files(folder)


def test_other_families_keep_refusing_these_parts(tmp_path: Path) -> None:
    folder = made(tmp_path, "safetensors", DFLASH2)[0]
    with pytest.raises(ArtifactError):
        open_drafter_files(folder, "muse-glimmer")


SINKS = ("self_attn.sinks", "self_attn.attention_sink_bias")


def edit(folder: Path, change: Any) -> Path:
    import safetensors.numpy

    file = folder / "model.safetensors"
    loaded = safetensors.numpy.load_file(file)
    change(loaded)
    safetensors.numpy.save_file(loaded, file)
    return folder


def test_sinks_of_some_layers_are_refused(tmp_path: Path) -> None:
    def plain(out: str) -> Path:
        return made(tmp_path / out, "safetensors", {"sinks": "all"})[0]

    renamed = edit(plain("a"), lambda t: t.update({f"layers.{n}.{SINKS[1]}": t.pop(f"layers.{n}.{SINKS[0]}") for n in range(2)}))
    assert open_drafter_files(renamed).dialect.sinks
    with pytest.raises(ArtifactError, match=r"attention sinks in layers \[1\]: expected them in every layer or in every sliding one"):
        open_drafter_files(edit(plain("b"), lambda t: t.pop(f"layers.0.{SINKS[0]}")))
    with pytest.raises(ArtifactError, match="expected one naming style"):
        open_drafter_files(edit(plain("c"), lambda t: t.update({f"layers.1.{SINKS[1]}": t.pop(f"layers.1.{SINKS[0]}")})))
    with pytest.raises(ArtifactError, match="has the shape"):
        open_drafter_files(edit(plain("d"), lambda t: t.update({f"layers.1.{SINKS[0]}": np.zeros(3, np.float32)})))
