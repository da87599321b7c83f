"""Seeded artifacts: every family, container and format opens; what was asked for is what is found; nothing half written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracle.artifacts import blocks, inspect_artifact, make_artifact, open_borrowed, open_drafter_files, open_target_files
from oracle.artifacts.make import MODELS
from oracle.artifacts.muse import context_bound
from oracle.artifacts.roles import drafter_roles
from oracle.artifacts.seeds import CHUNK_VALUES, Recipe, interleave, plan, values_of
from oracle.artifacts.writers import PlannedTensor, replacing, write_gguf, write_safetensors

COMBINATIONS = [
    (family, container, weights)
    for family in ("muse-glimmer", "qwen3", "llama")
    for container in ("gguf", "safetensors")
    for weights in blocks.FORMATS
    if container == "gguf" or weights in blocks.PLAIN
]


def small_model(family: str, container: str, weights: str, out: Path, **more: Any) -> list[Path]:
    """The tiny artifact, with fewer layers where the family allows it, to keep the tests quick."""
    fewer = {"qwen3": {"layers": 2, "sliding": (True, False)}, "llama": {"layers": 1}}.get(family, {})
    return make_artifact(family, "tiny", weights, out, 7, container, **(fewer | more))


@pytest.mark.parametrize(("family", "container", "weights"), COMBINATIONS)
def test_every_combination_opens_with_what_was_asked_for(family: str, container: str, weights: str, tmp_path: Path) -> None:
    paths = small_model(family, container, weights, tmp_path)
    files = open_target_files(paths[0]) if family == "llama" else open_drafter_files(paths[0])
    assert files.identity.family == family and files.identity.container == container and weights in files.identity.formats
    tiny = MODELS[family, "tiny"]
    assert (files.geometry.hidden, files.geometry.head_dim, files.geometry.vocab) == (tiny.hidden, tiny.head_dim, tiny.vocab)
    want = values_of(7, "0.up", (tiny.intermediate, tiny.hidden))
    assert np.array_equal(files.weights.layers[0].up.array(), blocks.decode(blocks.encode(want, weights), weights, tiny.hidden))
    if family != "llama":
        assert files.geometry.tap_ids == tiny.tap_ids
        lent = open_borrowed(paths[1])
        assert lent.embedding.shape == (tiny.vocab, tiny.hidden)


def test_other_packages_read_the_files(tmp_path: Path) -> None:
    gguf, safetensors = pytest.importorskip("gguf"), pytest.importorskip("safetensors.numpy")
    draft, _ = small_model("muse-glimmer", "gguf", "q4_k", tmp_path)
    ours = open_drafter_files(draft)
    tensors = {t.name: t for t in gguf.GGUFReader(draft).tensors}
    assert np.array_equal(tensors["fc.weight"].data, ours.weights.fc.raw)
    down = tensors["blk.2.ffn_down.weight"]
    assert down.tensor_type.name == "Q6_K"
    assert np.array_equal(gguf.dequantize(down.data, down.tensor_type), ours.weights.layers[2].down.array())
    folder, _ = small_model("qwen3", "safetensors", "f32", tmp_path)
    loaded = safetensors.load_file(folder / "model.safetensors")
    assert np.array_equal(loaded["fc.weight"], open_drafter_files(folder).weights.fc.array())


def test_files_of_the_safetensors_package_open(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    folder, _ = small_model("qwen3", "safetensors", "f32", tmp_path)
    safetensors.save_file(safetensors.load_file(folder / "model.safetensors"), folder / "model.safetensors", {"format": "pt"})
    open_drafter_files(folder)


def test_both_containers_of_a_target_hold_one_model(tmp_path: Path) -> None:
    """GGUF rows of q and k are permuted for interleaved pairs; undone, they are the rows of the folder."""
    gguf = open_target_files(small_model("llama", "gguf", "f32", tmp_path)[0])
    folder = open_target_files(small_model("llama", "safetensors", "f32", tmp_path)[0])
    a, b = gguf.weights.layers[0], folder.weights.layers[0]
    for part, heads in (("q", 8), ("k", 2)):
        mine, theirs = getattr(a, part).array(), getattr(b, part).array()
        assert np.array_equal(mine.reshape(-1, 256), interleave(theirs.reshape(-1, 256), heads))
        assert not np.array_equal(mine, theirs)
    for part in ("v", "o", "gate", "up", "down", "input_norm"):
        assert np.array_equal(getattr(a, part).array(), getattr(b, part).array())


def test_interleaving_puts_the_halves_of_each_head_side_by_side() -> None:
    rows = np.arange(2 * 6 * 3.0).reshape(12, 3)
    out = interleave(rows, heads=2)
    for head in range(2):
        for pair in range(3):
            assert np.array_equal(out[6 * head + 2 * pair], rows[6 * head + pair])
            assert np.array_equal(out[6 * head + 2 * pair + 1], rows[6 * head + pair + 3])


def test_seeds_decide_the_values(tmp_path: Path) -> None:
    def digest(name: str, seed: int) -> str:
        (path, _) = make_artifact("qwen3", "tiny", "bf16", tmp_path / name, seed, layers=2, sliding=(True, False), target_layers=5)
        return open_drafter_files(path).identity.sha256["model.safetensors"]

    assert digest("a", 1) == digest("b", 1) != digest("c", 2)


def test_values_are_uneven_enough_to_show_mistakes() -> None:
    norm = values_of(0, "3.input_norm", (256,))
    assert (norm > 0).all() and norm.std() > 0.2 and norm.max() / norm.min() > 4
    table = values_of(0, "embedding", (500, 256), small_row=166)
    sizes = np.sqrt(np.mean(table**2, axis=1))
    assert sizes[166] < 0.03 * np.median(sizes) and sizes.max() > 2 * np.median(np.delete(sizes, 166)) / 1.5
    q = values_of(0, "0.q", (8, 32, 256)).reshape(256, 256)
    assert not np.allclose(q, q.T) and np.ptp(q.std(axis=1)) > 0.5 * q.std()


OVERRIDES: list[dict[str, Any]] = [
    {"is_causal": True},
    {"is_causal": False},
    {"embed_scale": 2.5, "output_multiplier": 0.5, "softcap": 3.0},
    {"attention_bias": True},
    {"sliding": (False, False), "window": None},
    {"tap_ids": (4, 0), "block_size": 16, "eps": 1e-5, "theta": 1e6},
]


@pytest.mark.parametrize("container", ["gguf", "safetensors"])
@pytest.mark.parametrize("override", OVERRIDES, ids=lambda o: ",".join(o))
def test_overrides_are_found_again(container: str, override: dict[str, Any], tmp_path: Path) -> None:
    path = small_model("qwen3", container, "f32", tmp_path, target_layers=5, **({"tap_ids": (1, 3)} | override))[0]
    files = open_drafter_files(path)
    g, d = files.geometry, files.dialect
    biased = files.weights.layers[0].q_bias is not None
    found = {**vars(g), **vars(d), "theta": d.rope.theta, "is_causal": d.causal[0], "attention_bias": biased}
    assert {k: found[k] for k in override} == override
    assert len(set(d.causal)) == (2 if "is_causal" not in override and any(g.sliding) else 1)


@pytest.mark.parametrize("container", ["gguf", "safetensors"])
def test_scaled_and_tied_targets(container: str, tmp_path: Path) -> None:
    files = open_target_files(small_model("llama", container, "f32", tmp_path, tied=True, llama3_scaling=(8.0, 1.0, 4.0, 64))[0])
    assert files.geometry.tied_embedding and files.weights.head is files.weights.embedding
    factors = files.geometry.rope.factors
    assert factors is not None and factors[0] == 1.0 and factors[-1] == 8.0


def test_the_muse_export_naming(tmp_path: Path) -> None:
    path = small_model("muse-glimmer", "safetensors", "bf16", tmp_path, naming="export")[0]
    assert "dflash_config" in json.loads((path / "config.json").read_text())
    assert open_drafter_files(path).geometry.target_layers == MODELS["muse-glimmer", "tiny"].target_layers


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("gpt", "tiny", "f32"), "family 'gpt'.*qwen3"),
        (("qwen3", "huge", "f32"), "size 'huge'.*tiny"),
        (("qwen3", "tiny", "q3_k"), "weights 'q3_k'.*q4_k"),
    ],
)
def test_choices_that_do_not_exist_are_named(arguments: tuple[str, str, str], word: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=word):
        make_artifact(*arguments, tmp_path)
    with pytest.raises(ValueError, match=r"override 'depth'.*layers"):
        make_artifact("qwen3", "tiny", "f32", tmp_path, depth=3)
    with pytest.raises(ValueError, match="need a GGUF file"):
        make_artifact("qwen3", "tiny", "q8_0", tmp_path, container="safetensors")
    assert not list(tmp_path.iterdir())


def test_a_model_our_loader_refuses_is_not_left_behind(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="exactly 5"):
        make_artifact("muse-glimmer", "tiny", "f32", tmp_path, layers=4, sliding=(True,) * 4)
    with pytest.raises(ValueError, match="multiple of 256"):
        make_artifact("muse-glimmer", "tiny", "q4_k", tmp_path, hidden=128)
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_an_interrupted_write_leaves_nothing_and_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"old")

    def broken() -> Any:
        yield np.zeros((1, 4), np.uint8)
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        write_gguf(path, {}, [PlannedTensor("a", (1,), "f32", broken)])
    with pytest.raises(ValueError, match="4 bytes were produced"):
        write_safetensors(path, [PlannedTensor("a", (2,), "f32", lambda: iter([np.zeros((1, 4), np.uint8)]))])
    assert [p.name for p in tmp_path.iterdir()] == ["x.gguf"] and path.read_bytes() == b"old"
    with pytest.raises(ValueError, match="cannot be written"), replacing(path / "below" / "y"):
        pass


def test_release_geometry_is_that_of_the_specification() -> None:
    muse = MODELS["muse-glimmer", "release"]
    assert (muse.hidden, muse.intermediate, muse.heads, muse.kv_heads, muse.head_dim) == (6656, 19968, 32, 8, 128)
    assert (muse.vocab, muse.mask_token_id, muse.window, muse.block_size) == (202048, 201818, 2048, 16)


def test_the_context_bound_of_the_release() -> None:
    """`specs/muse-glimmer.md` 5.1: the trained window, and the 1,024 that cost the acceptance."""
    g = MODELS["muse-glimmer", "release"].geometry()
    assert context_bound(g) == 86_507_520
    assert context_bound(replace(g, window=1024)) == 44_564_480


def test_release_tensors_are_drawn_in_bounded_chunks() -> None:
    roles = drafter_roles(MODELS["muse-glimmer", "release"].geometry(), "gguf")
    for planned in plan(Recipe(0, "q4_k", random=True), {"fc": roles["fc"], "0.down": roles["0.down"]}):
        first = next(planned.chunks())
        assert len(first) * planned.shape[1] <= CHUNK_VALUES < planned.shape[0] * planned.shape[1]
        assert first.shape[1] == blocks.row_bytes(planned.stored, planned.shape[1])
    size = sum(-(-p.size // 32) * 32 for p in plan(Recipe(0, "q4_k", random=True), roles))
    assert size == pytest.approx(1_631_205_312, rel=0.01), "the released drafter file, `specs/muse-glimmer.md` section 1.7"


def test_the_release_path_writes_a_sound_file(tmp_path: Path) -> None:
    sizes = {"hidden": 512, "intermediate": 1024, "vocab": 2048, "mask_token_id": 2000}
    path, lender = make_artifact("muse-glimmer", "release", "q4_k", tmp_path, **sizes)
    assert inspect_artifact(lender)["role"] == "lender"
    values = open_drafter_files(path).weights.layers[4].down.array()
    assert np.isfinite(values).all() and 0.5 < values.std() * np.sqrt(1024) < 2.0


def test_inspect_a_sound_and_a_damaged_file(tmp_path: Path) -> None:
    draft, target = small_model("muse-glimmer", "gguf", "q4_k", tmp_path)
    report = json.loads(json.dumps(inspect_artifact(draft)))
    assert report["problems"] == [] and report["role"] == "drafter" and report["family"] == "muse-glimmer"
    assert report["context"] == {"sink": 64, "window": 24, "bytes": 5 * 2 * (64 + 24) * 2 * 32 * 4}
    assert report["geometry"]["window"] == 24 and report["dialect"]["window_rule"] == "W_LE"
    assert len(report["files"][0]["sha256"]) == 64 and len(report["tensors"]) == 58
    assert inspect_artifact(target)["role"] == "target" and inspect_artifact(target)["geometry"]["softcap"] == 20.0
    assert inspect_artifact(small_model("llama", "safetensors", "f32", tmp_path)[0])["role"] == "target"
    data = bytearray(draft.read_bytes())
    at = draft.read_bytes().index(np.asarray(open_drafter_files(draft).weights.norm.raw).tobytes())
    data[at : at + 4] = np.array([np.nan], "<f4").tobytes()
    draft.write_bytes(bytes(data))
    assert "'output_norm.weight' has 1 non-finite values, the first at element 0" in inspect_artifact(draft)["problems"][0]
    draft.write_bytes(bytes(data[:-5000]))
    assert "truncated" in inspect_artifact(draft)["problems"][0]
    assert "no such file" in inspect_artifact(tmp_path / "none")["problems"][0]


def test_inspect_reports_a_refused_model_with_its_tensors(tmp_path: Path) -> None:
    folder = small_model("llama", "safetensors", "f32", tmp_path)[0]
    config = json.loads((folder / "config.json").read_text()) | {"mlp_bias": True}
    (folder / "config.json").write_text(json.dumps(config))
    report = inspect_artifact(folder)
    assert "mlp_bias" in report["problems"][0] and report["tensors"] and report["geometry"] is None
