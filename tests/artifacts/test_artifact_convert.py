"""Conversion between the containers: what is written holds the same model to the bit, and what cannot be held is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from oracle.artifacts import ArtifactError, blocks, convert, convert_dense, make_artifact, open_drafter_files, open_target_files
from oracle.artifacts.convert import convert_artifact, same_values
from oracle.weights import Weight
from tests.artifacts.test_artifact_heads import DFLASH2, FEWER, HEADS

MUSE = {k: v for k, v in FEWER.items() if k not in ("layers", "sliding")}
SMALL: dict[str, dict[str, Any]] = {"muse-glimmer": MUSE, "qwen3": FEWER, "llama": {k: FEWER[k] for k in FEWER if k != "sliding"}}
SMALL["llama"] = {k: v for k, v in SMALL["llama"].items() if k != "mask_token_id"}


def made(family: str, container: str, out: Path, weights: str = "bf16", **more: Any) -> Path:
    return make_artifact(family, "tiny", weights, out, 5, container, **(SMALL[family] | more))[0]


def opened(family: str, path: Path) -> Any:
    return open_target_files(path) if family == "llama" else open_drafter_files(path, family)


def everything(files: Any) -> dict[str, tuple[str, bytes]]:
    return {k: (w.stored, w.raw.tobytes()) for k, w in convert.by_role(files.weights).items()}


def other(container: str, path: Path) -> Path:
    return path / "made" if container == "gguf" else path / "made.gguf"


@pytest.mark.parametrize("weights", blocks.PLAIN)
@pytest.mark.parametrize("container", ["gguf", "safetensors"])
@pytest.mark.parametrize("family", SMALL)
def test_a_converted_model_is_the_one_made_in_that_container(family: str, container: str, weights: str, tmp_path: Path) -> None:
    """The seeded files of one seed hold one model in both containers, so the conversion of one has to be the other."""
    kinds = [container, "safetensors" if container == "gguf" else "gguf"]
    both = [made(family, kind, tmp_path / kind, weights) for kind in kinds]
    done = convert_artifact(both[0], other(container, tmp_path), family if family != "llama" else None)
    got, source, want = (opened(family, p) for p in (done.path, both[0], both[1]))
    assert {k: v[0] for k, v in everything(got).items()} == {k: v[0] for k, v in everything(source).items()}
    for key, w in convert.by_role(got.weights).items():
        reference = convert.by_role(want.weights)[key]
        assert np.array_equal(w.array(), reference.array()) or w.stored != reference.stored
    assert done.tensors == len(everything(source))


@pytest.mark.parametrize("container", ["gguf", "safetensors"])
@pytest.mark.parametrize("family", SMALL)
def test_there_and_back_again(family: str, container: str, tmp_path: Path) -> None:
    first = made(family, container, tmp_path / "source")
    there = convert_artifact(first, other(container, tmp_path), family if family != "llama" else None).path
    back = convert_artifact(there, tmp_path / ("back.gguf" if container == "gguf" else "back"), family if family != "llama" else None).path
    one, two = opened(family, first), opened(family, back)
    assert everything(one) == everything(two)
    assert getattr(one, "dialect", None) == getattr(two, "dialect", None)
    unsaid = {"window_source": None}
    assert vars(one.geometry) | unsaid == vars(two.geometry) | unsaid


VARIANTS: dict[str, dict[str, Any]] = {name: dict(heads) for name, heads in HEADS.items()}
VARIANTS |= {
    "biases": {"attention_bias": True},
    "causal": {"is_causal": True},
    "bidirectional": {"is_causal": False},
    "scales and cap": {"embed_scale": 2.5, "output_multiplier": 0.75, "softcap": 30.0},
    "no window": {"sliding": (False, False), "window": None},
    "another eps": {"eps": 3e-5, "theta": 5e5},
}


@pytest.mark.parametrize("container", ["gguf", "safetensors"])
@pytest.mark.parametrize("name", VARIANTS)
def test_every_switch_of_a_generic_drafter_survives(name: str, container: str, tmp_path: Path) -> None:
    first = made("qwen3", container, tmp_path / "source", **VARIANTS[name])
    one = opened("qwen3", first)
    two = opened("qwen3", convert_artifact(first, other(container, tmp_path)).path)
    assert one.dialect == two.dialect
    assert everything(one) == everything(two)
    assert np.array_equal(one.weights.target_ids, two.weights.target_ids)


def test_llama_rows_change_their_pairing_and_nothing_else(tmp_path: Path) -> None:
    folder = made("llama", "safetensors", tmp_path / "f", "f32")
    file = convert_artifact(folder, tmp_path / "t.gguf").path
    halves, pairs = (opened("llama", p).weights.layers[0] for p in (folder, file))
    for part in ("q", "k"):
        a, b = getattr(halves, part).array(), getattr(pairs, part).array()
        half = a.shape[1] // 2
        assert np.array_equal(a[:, :half], b[:, 0::2]) and np.array_equal(a[:, half:], b[:, 1::2])
        assert not np.array_equal(a, b)
    assert np.array_equal(halves.v.array(), pairs.v.array())
    assert opened("llama", folder).geometry.rope.style == "neox" and opened("llama", file).geometry.rope.style == "interleaved"


def test_rope_factors_go_to_a_tensor_and_even_ones_come_back(tmp_path: Path) -> None:
    scaled = made("llama", "safetensors", tmp_path / "a", llama3_scaling=(8.0, 1.0, 4.0, 8192))
    file = convert_artifact(scaled, tmp_path / "a.gguf").path
    factors = [opened("llama", p).geometry.rope.factors for p in (scaled, file)]
    assert np.allclose(*factors, rtol=1e-7) and len(set(factors[0])) > 1
    with pytest.raises(ArtifactError, match="uneven factors have no place"):
        convert_artifact(file, tmp_path / "again")
    even = made("llama", "safetensors", tmp_path / "b")
    config = json.loads((even / "config.json").read_text())
    config["rope_parameters"] |= {"rope_type": "linear", "factor": 4.0}
    (even / "config.json").write_text(json.dumps(config))
    back = convert_artifact(convert_artifact(even, tmp_path / "b.gguf").path, tmp_path / "c").path
    assert opened("llama", back).geometry.rope.factors == (4.0,) * 8


def test_a_tied_head_stays_tied(tmp_path: Path) -> None:
    first = made("llama", "safetensors", tmp_path / "a", tied=True)
    assert opened("llama", convert_artifact(first, tmp_path / "a.gguf").path).geometry.tied_embedding


@pytest.mark.parametrize("weights", [f for f in blocks.FORMATS if f not in blocks.PLAIN])
def test_block_formats_stay_in_gguf(weights: str, tmp_path: Path) -> None:
    wide = {"hidden": 256, "intermediate": 256, "heads": 4, "kv_heads": 2, "head_dim": 64, "vocab": 16, "mask_token_id": 15}
    path = made("qwen3", "gguf", tmp_path / "a", weights, **wide)
    with pytest.raises(ArtifactError, match="which SafeTensors cannot hold"):
        convert_artifact(path, tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_metadata_that_the_other_container_cannot_say_is_refused(tmp_path: Path) -> None:
    folder = made("qwen3", "safetensors", tmp_path / "a")
    config = json.loads((folder / "config.json").read_text())
    config["rms_norm_eps"] = 1e-6 + 1e-15
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ArtifactError, match=r"cannot hold this dialect: eps .* reads back as 1e-06"):
        convert_artifact(folder, tmp_path / "b.gguf")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]


def test_a_destination_is_never_overwritten_nor_of_the_same_kind(tmp_path: Path) -> None:
    folder = made("qwen3", "safetensors", tmp_path / "a")
    (tmp_path / "there.gguf").write_text("mine")
    with pytest.raises(ArtifactError, match="exists already"):
        convert_artifact(folder, tmp_path / "there.gguf")
    assert (tmp_path / "there.gguf").read_text() == "mine"
    with pytest.raises(ArtifactError, match="is a safetensors artifact already"):
        convert_artifact(folder, tmp_path / "b")


@pytest.mark.parametrize("spoil", ["a row", "the order of rows"])
def test_a_file_that_does_not_read_back_as_the_source_is_not_kept(spoil: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made("llama" if spoil == "the order of rows" else "qwen3", "safetensors", tmp_path / "a")
    carried = convert_dense.carried

    def wrong(role: Any, w: Weight, reorder: Any = None) -> Any:
        if spoil == "the order of rows":
            return carried(role, w, None)
        raw = w.raw.copy()
        raw[0, 0] ^= role.name.endswith("ffn_up.weight")
        return carried(role, Weight(raw, w.axes, w.shape, w.stored), reorder)

    monkeypatch.setattr(convert_dense, "carried", wrong)
    with pytest.raises(ArtifactError, match="does not read back as it was"):
        convert_artifact(folder, tmp_path / "b.gguf")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]


def test_values_are_compared_as_bits(tmp_path: Path) -> None:
    a = Weight.of([[0.0, np.nan], [1.0, 2.0]], ("dim", "in"))
    assert same_values(a, Weight.of([[0.0, np.nan], [1.0, 2.0]], ("dim", "in")))
    assert not same_values(a, Weight.of([[-0.0, np.nan], [1.0, 2.0]], ("dim", "in")))
    assert not same_values(a, Weight.of([[0.0, np.nan], [1.0, 2.0]], ("dim", "in"), "bf16"))


def test_the_command_says_what_it_did_and_explains_a_refusal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from parity.cli import cli, main

    folder = made("qwen3", "safetensors", tmp_path / "a", **DFLASH2)
    result = CliRunner().invoke(cli, ["convert", str(folder), str(tmp_path / "b.gguf")])
    assert result.exit_code == 0 and "CONVERTED qwen3" in result.output and "numbered tokens" in result.output
    with pytest.raises(SystemExit) as stopped:
        main(["convert", str(folder), str(tmp_path / "b.gguf")])
    assert stopped.value.code == 2
    assert "exists already" in capsys.readouterr().err
