"""Conversion of every family and role: there and back to the bit in every plain format, and what the other container cannot hold."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oracle
from oracle.artifacts import ArtifactError, blocks, make_artifact, open_container, open_drafter_files, open_target_files
from oracle.artifacts.convert import by_role, convert_artifact
from oracle.artifacts.reordered import Reordered, tiled_heads
from oracle.artifacts.writers import PlannedTensor, Typed
from oracle.weights import Weight
from tests.artifacts.gguf_edit import Keys, Tensors, rewritten
from tests.artifacts.test_artifact_heads import FEWER
from tests.artifacts.test_target_gguf import DRAFTER, LAGUNA, QWEN

MUSE_TARGET: dict[str, Any] = {k: v for k, v in FEWER.items() if k not in ("layers", "sliding", "mask_token_id")}
MUSE_TARGET |= {"layers": 4, "sliding": (True, True, True, False), "vocab": 60}
CASES: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "laguna target": ("laguna", "target", LAGUNA),
    "laguna target, packed": ("laguna", "target", LAGUNA | {"naming": "packed"}),
    "laguna drafter": ("laguna", None, DRAFTER),
    "laguna drafter, split": ("laguna", None, DRAFTER | {"naming": "split"}),
    "qwen38 target": ("qwen38-flash-next", "target", QWEN),
    "qwen38 drafter": ("qwen38-flash-next", None, QWEN),
    "muse target": ("muse-glimmer", "target", MUSE_TARGET),
}
PACKED = ("packed", "split")


def made(name: str, container: str, out: Path, weights: str = "bf16") -> Path:
    family, role, sizes = CASES[name]
    return make_artifact(family, "tiny", weights, out, 5, container, role, **sizes)[0]


def opened(name: str, path: Path) -> Any:
    return open_target_files(path) if CASES[name][1] == "target" else open_drafter_files(path)


def stored(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {n: (t.stored, t.shape, t.raw.tobytes()) for n, t in open_container(path).tensors.items()}


@pytest.mark.parametrize("weights", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_a_folder_comes_back_byte_for_byte(name: str, weights: str, tmp_path: Path) -> None:
    """Fused or split, packed or one by one: the published form comes back; the other forms come back as that, equal in every weight."""
    folder = made(name, "safetensors", tmp_path / "a", weights)
    file = convert_artifact(folder, tmp_path / "b.gguf").path
    back = convert_artifact(file, tmp_path / "c").path
    one, two, three = (opened(name, p) for p in (folder, file, back))
    if not name.endswith(PACKED):
        assert stored(folder) == stored(back)
    first, last = by_role(one.weights), by_role(three.weights)
    assert first.keys() == last.keys()
    for key, w in first.items():
        assert np.array_equal(w.tile(0, w.row_count), last[key].tile(0, w.row_count)), key
    assert asdict(one.geometry) == asdict(three.geometry)
    assert getattr(one, "dialect", None) == getattr(two, "dialect", None) == getattr(three, "dialect", None)


@pytest.mark.parametrize("name", ["laguna target", "laguna drafter", "qwen38 target", "qwen38 drafter", "muse target"])
def test_a_file_comes_back_byte_for_byte(name: str, tmp_path: Path) -> None:
    file = made(name, "gguf", tmp_path / "a")
    back = convert_artifact(convert_artifact(file, tmp_path / "b").path, tmp_path / "c.gguf").path
    assert stored(file) == stored(back)
    a, b = (open_container(p).metadata for p in (file, back))
    names = {"general.name"}
    assert a.keys() - names == b.keys() - names
    assert all(np.array_equal(a[k], b[k]) for k in a.keys() - names)


@pytest.mark.parametrize("name", ["laguna target", "qwen38 target", "muse target"])
def test_a_converted_target_computes_the_same(name: str, tmp_path: Path) -> None:
    folder = made(name, "safetensors", tmp_path / "a", "f32")
    pair = [oracle.open_target(p) for p in (folder, convert_artifact(folder, tmp_path / "b.gguf").path)]
    one, two = (t.window([1, 5, 9, 2, 40, 5, 9, 2, 17, 30], taps=(1, 3)) for t in pair)
    # A Muse target's pairs stand otherwise in memory, so its sums have another order.
    assert np.abs(one.logits - two.logits).max() <= (1e-12 if name == "muse target" else 0)
    assert np.abs(one.features - two.features).max() <= (1e-12 if name == "muse target" else 0)


def test_a_norm_with_its_one_takes_the_format_that_holds_it(tmp_path: Path) -> None:
    """A bf16 weight and its 1 fit into f32; an f32 weight and its 1 need f64; a number that fits neither is refused."""
    wide = {w: convert_artifact(made("muse target", "safetensors", tmp_path / w, w), tmp_path / f"{w}.gguf").path for w in ("bf16", "f32")}
    norms = {w: [t for n, t in open_container(p).tensors.items() if n.endswith("attn_norm.weight")] for w, p in wide.items()}
    formats = {w: Counter(t.stored for t in found) for w, found in norms.items()}
    assert formats == {"bf16": {"f32": 4}, "f32": {"f64": 4}}
    folder = made("muse target", "safetensors", tmp_path / "tiny", "f32")
    _spoil(folder, "model.language_model.layers.1.input_layernorm.weight", np.float32(1e-30))
    with pytest.raises(ArtifactError, match=r"'blk.1.attn_norm.weight': its values change even in f64"):
        convert_artifact(folder, tmp_path / "no.gguf")
    assert not (tmp_path / "no.gguf").exists()


def _spoil(folder: Path, name: str, value: np.float32) -> None:
    """The first value of a tensor, overwritten in the file."""
    tensor = open_container(folder).tensors[name]
    with tensor.path.open("r+b") as file:
        file.seek(tensor.offset)
        file.write(value.tobytes())


def edited(folder: Path, **changes: Any) -> Path:
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_what_gguf_has_no_place_for_is_refused(tmp_path: Path) -> None:
    sparse = make_artifact("qwen38-flash-next", "tiny", "f32", tmp_path / "q", 1, None, "target", **QWEN, ple_layers=(1, 2))[0]
    with pytest.raises(ArtifactError, match="n-gram tables of 2 layers have no place in GGUF"):
        convert_artifact(sparse, tmp_path / "a.gguf")
    wide = make_artifact("qwen38-flash-next", "tiny", "f32", tmp_path / "w", 1, None, "target", **QWEN, value_dim=8)[0]
    with pytest.raises(ArtifactError, match="linear heads of 16 and 8 have no place in GGUF"):
        convert_artifact(wide, tmp_path / "b.gguf")
    folder = made("laguna target", "safetensors", tmp_path / "l", "f32")
    table = json.loads((folder / "config.json").read_text())["rope_parameters"]
    near = table["full_attention"] | {"partial_rotary_factor": 1.0}
    with pytest.raises(ArtifactError, match="a stretched rope of sliding layers has no place in GGUF"):
        convert_artifact(edited(folder, rope_parameters=table | {"sliding_attention": near}), tmp_path / "c.gguf")


def test_hash_constants_without_their_seed_have_no_place_in_a_config(tmp_path: Path) -> None:
    file = made("qwen38 target", "gguf", tmp_path)

    def foreign(keys: Keys, tensors: Tensors) -> None:
        for name in ("vocab_size_base", "seed", "divisor"):
            del keys[f"qwen4exp.ple.{name}"]

    known = rewritten(file, tmp_path / "known.gguf", foreign)
    assert open_target_files(known).geometry.ngram_origin is None
    assert open_target_files(convert_artifact(known, tmp_path / "known").path).geometry.ngram_origin is not None

    def other(keys: Keys, tensors: Tensors) -> None:
        foreign(keys, tensors)
        keys["qwen4exp.ple.layer_multipliers"] = Typed("array of u64", [3, 5, 7])

    with pytest.raises(ArtifactError, match=r"add the key qwen4exp\.ple\.seed"):
        convert_artifact(rewritten(file, tmp_path / "other.gguf", other), tmp_path / "other")


def test_experts_of_two_formats_have_no_tensor_in_common(tmp_path: Path) -> None:
    folder = made("laguna target", "safetensors", tmp_path / "a", "f32")
    container = open_container(folder)
    from oracle.artifacts.writers import write_safetensors

    def planned(t: Any) -> PlannedTensor:
        if t.name.endswith("layers.2.mlp.experts.1.up_proj.weight"):
            narrow = blocks.encode(blocks.decode(t.raw, "f32", t.shape[1]), "bf16")
            return PlannedTensor(t.name, t.shape, "bf16", lambda: iter([narrow]))
        return PlannedTensor(t.name, t.shape, t.stored, lambda: iter([t.raw]))

    out = tmp_path / "mixed"
    out.mkdir()
    (out / "config.json").write_bytes((folder / "config.json").read_bytes())
    write_safetensors(out / "model.safetensors", [planned(t) for t in container.tensors.values()])
    with pytest.raises(ArtifactError, match=r"'blk.2.ffn_up_exps.weight' would hold weights of the formats bf16, f32"):
        convert_artifact(out, tmp_path / "b.gguf")


@pytest.mark.parametrize("stored_as", ["f32", "bf16", "q8_0", "q4_k"])
@pytest.mark.parametrize("width", [16, 32, 128])
def test_reordered_rows_and_columns_are_the_ones_asked_for(stored_as: str, width: int) -> None:
    """Whole blocks move as they are; a torn block is decoded, which an f32 weight then says of itself."""
    heads = 6 if stored_as != "q4_k" else 16
    rng = np.random.default_rng(4)
    if heads * width % blocks.format_of(stored_as).values:
        pytest.skip("no row of blocks this wide")
    w = Weight.of(rng.standard_normal((heads * 2, heads * width)), ("dim", "in"), stored_as)
    columns, rows = tiled_heads(2, heads, width), tiled_heads(2, heads, 2)
    moved = Reordered(w, w.axes, w.shape, rows, columns)
    assert np.array_equal(moved.array(), w.array()[rows][:, columns])
    assert np.array_equal(np.concatenate([t for _, _, t in moved.tiles()]), moved.array())
    assert moved.stored == (stored_as if width % blocks.format_of(stored_as).values == 0 else "f32")
    again = Weight(moved.raw, moved.axes, moved.shape, moved.stored)
    assert np.array_equal(again.array(), moved.array())
    part = moved.part(heads, 2 * heads, ("dim", "in"), (heads, heads * width))
    assert np.array_equal(part.array(), moved.array()[heads:])
    still = Reordered(w, w.axes, w.shape, rows).part(0, 1, ("dim", "in"), (1, heads * width))
    assert type(still) is Weight and np.shares_memory(still.raw, w.raw)
