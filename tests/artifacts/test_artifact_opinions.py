"""Inspection with a second opinion: the container's own library must read the same tensors, and formats only it decodes open."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracle.artifacts import ArtifactError, blocks, inspect_artifact, make_artifact, open_container, open_drafter_files, opinions
from oracle.artifacts.opinions import second_opinion
from tests.artifacts.artifact_files import Gguf, qwen3_folder, qwen3_gguf, sharded
from tests.artifacts.test_artifact_heads import DFLASH2, FEWER


def made(kind: str, out: Path) -> Path:
    return make_artifact("qwen3", "tiny", "bf16", out, 3, kind, **FEWER, **DFLASH2, draft_vocab=40)[0]


@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
def test_sound_files_get_no_second_opinion(kind: str, tmp_path: Path) -> None:
    path = made(kind, tmp_path)
    assert second_opinion(open_container(path)) == []
    assert inspect_artifact(path)["problems"] == []


def test_every_shard_is_looked_at(tmp_path: Path) -> None:
    container = open_container(sharded(qwen3_folder()).write(tmp_path / "m"))
    assert second_opinion(container) == []
    gone = dict(container.tensors)
    last = list(gone.values())[-1]
    del gone[last.name]
    (problem,) = second_opinion(replace(container, tensors=gone))
    assert problem.startswith(f"{last.path}: the lab does not see '{last.name}'")


EDITS: dict[str, tuple[Any, str]] = {
    "name": (lambda t: replace(t, name="fc.other"), "alone sees 'fc.other'"),
    "shape": (lambda t: replace(t, shape=t.shape[::-1]), "shape is"),
    "type": (lambda t: replace(t, stored="f16"), "stored is f16 to the lab and bf16 to the"),
    "place": (lambda t: replace(t, offset=1 << 40), "place is"),
}


@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
@pytest.mark.parametrize("what", EDITS)
def test_each_kind_of_disagreement_is_a_problem(what: str, kind: str, tmp_path: Path) -> None:
    container = open_container(made(kind, tmp_path))
    edit, words = EDITS[what]
    wrong = edit(container.tensors["fc.weight"])
    tensors = {k: v for k, v in container.tensors.items() if k != "fc.weight"} | {wrong.name: wrong}
    problems = second_opinion(replace(container, tensors=tensors))
    assert problems and any(words in p for p in problems)
    assert all(str(wrong.path) in p for p in problems)


@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
def test_a_library_that_fails_is_a_problem_of_the_file(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(kind, tmp_path)

    def broken(file: Path) -> dict[str, opinions.Seen]:
        raise OverflowError("an odd\nlength")

    monkeypatch.setattr(opinions, f"_{kind}", broken)
    (problem,) = inspect_artifact(path)["problems"]
    assert problem.endswith(f"the {kind} package cannot read this file (OverflowError: an odd length)")


def with_tensor(stored: str, width: int = 256) -> tuple[Gguf, bytes]:
    """The small drafter with one wide matrix in a format that only the package decodes."""
    file = qwen3_gguf()
    layout = blocks.READ_ONLY[stored]
    rng = np.random.default_rng(2)
    raw = rng.integers(0, 256, (8, width // layout.values, layout.bytes), np.uint8)
    file.keys["dflash.feed_forward_length"] = ("u32", width)
    for name, dims in {"ffn_gate": [8, width], "ffn_up": [8, width], "ffn_down": [width, 8]}.items():
        for layer in (0, 1):
            t = file.tensor(f"blk.{layer}.{name}.weight")
            t.dims, t.data = dims, np.ones(8 * width, "<f4").tobytes()
    t = file.tensor("blk.1.ffn_down.weight")
    t.data, t.type = raw.tobytes(), layout.ggml_type
    return file, raw.tobytes()


@pytest.mark.parametrize("stored", blocks.READ_ONLY)
def test_formats_of_the_package_decode_as_it_decodes_them(stored: str, tmp_path: Path) -> None:
    import gguf

    if not blocks.readable(stored):
        pytest.skip("this version of the package lacks it")
    file, raw = with_tensor(stored)
    path = tmp_path / "draft.gguf"
    path.write_bytes(file.render())
    down = open_drafter_files(path, "qwen3").weights.layers[1].down
    data = np.frombuffer(raw, np.uint8).reshape(8, -1)
    with np.errstate(all="ignore"):
        want = gguf.dequantize(data, gguf.GGMLQuantizationType(blocks.READ_ONLY[stored].ggml_type))
    assert down.stored == stored
    assert np.array_equal(down.array(), want.astype(np.float64), equal_nan=True)
    assert not np.array_equal(want[0], want[1], equal_nan=True)
    assert second_opinion(open_container(path)) == []


def test_the_package_agrees_on_the_size_of_every_read_only_format() -> None:
    import gguf

    for f in blocks.READ_ONLY.values():
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(f.ggml_type)] == (f.values, f.bytes)
        assert gguf.GGMLQuantizationType(f.ggml_type).name.lower() == f.name


def test_read_only_formats_are_not_written_and_a_package_without_one_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="q2_k is read only"):
        blocks.encode(np.zeros((1, 256)), "q2_k")
    monkeypatch.setattr(blocks.package_blocks, "available", lambda stored: False)
    file, _ = with_tensor("q2_k")
    path = tmp_path / "draft.gguf"
    path.write_bytes(file.render())
    with pytest.raises(ArtifactError, match="is stored as q2_k; expected one of"):
        open_drafter_files(path, "qwen3")
