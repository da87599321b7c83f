"""Target and drafter: what does not belong together, and which dtypes meet; by `parity inspect --target` and in a case's report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from oracle.artifacts import inspect_artifact, make_artifact, muse, open_drafter_files, open_target_files, qwen38
from oracle.artifacts.dtypes import pair_hazards, promoted
from oracle.artifacts.pairing import mismatches
from oracle.artifacts.sizes import released_taps
from oracle.weights import Weight
from tests.artifacts.test_artifact_heads import FEWER
from tests.artifacts.test_target_gguf import DRAFTER


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    draft, target = make_artifact("laguna", "tiny", "bf16", tmp_path_factory.mktemp("pair"), 2, None, None, **DRAFTER)
    return open_drafter_files(draft), open_target_files(target)


def said(pair: tuple[Any, Any], family: str = "laguna", embedding: Weight | None = None, **drafter: Any) -> list[str]:
    target = {k: drafter.pop(k) for k in list(drafter) if k.startswith("target_of_")}
    geometry = replace(pair[1].geometry, **{k.removeprefix("target_of_"): v for k, v in target.items()})
    return mismatches(family, replace(pair[0].geometry, **drafter), embedding or pair[1].weights.embedding, geometry)


RULES: dict[str, tuple[dict[str, Any], str]] = {
    "hidden width": ({"hidden": 48}, "the hidden width is 32, the drafter's is 48"),
    "vocabulary": ({"vocab": 61}, "the vocabulary is 60, the drafter's is 61"),
    "vocabulary of a padded table": ({"family": "qwen3", "vocab": 61, "target_of_family": "x"}, "60, fewer than the drafter's 61"),
    "mask token": ({"mask_token_id": 60}, "the drafter's mask token is 60"),
    "another family's drafter": ({"family": "qwen3"}, "a laguna target takes a laguna drafter, this one is qwen3"),
    "tap width": ({"target_hidden": 48}, "its layers are 32 wide, the drafter's taps 48"),
    "depth": ({"target_layers": 7}, "it has 6 layers, the drafter was made for 7"),
    "tapped layers": ({"tap_ids": (1, 3, 6), "target_layers": None}, "the drafter taps layer 6 (counted from 0), it has 6 layers"),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_drafter_of_another_target_is_refused(rule: str, pair: tuple[Any, Any]) -> None:
    changes, words = RULES[rule]
    assert any(words in text for text in said(pair, **changes)), said(pair, **changes)


def test_the_pair_belongs_together_and_a_padded_table_is_allowed(pair: tuple[Any, Any]) -> None:
    assert said(pair) == []
    wide = Weight.of(np.zeros((64, 32)), ("vocab", "in"))
    assert said(pair, "qwen38-flash-next", wide, target_of_family="x") == []
    assert said(pair, "laguna", wide) == ["the vocabulary is 64, the drafter's is 60"]


def test_taps_that_are_one_off_the_released_ones_are_named(pair: tuple[Any, Any]) -> None:
    """One-based ids in a zero-based list, and the other way round: nothing else can tell, the text stays fluent."""
    from oracle.artifacts import open_container

    container = open_container(pair[0].identity.files[0].path.parent)
    for released in (muse.RELEASE_TAPS, qwen38.RELEASE_TAPS):
        assert released_taps(container, released, released) == []
        for step, word in ((1, "one more"), (-1, "one less")):
            (text,) = released_taps(container, tuple(t + step for t in released), released)
            assert word in text and "counted from 1" in text
        (text,) = released_taps(container, (0, *released[1:]), released)
        assert "check who wrote the file" in text


def test_promotion_is_that_of_the_frameworks() -> None:
    """`specs/laguna.md` 4: bf16 with f16 is f32; anything with f32 is f32; alike stays; blocks take no part."""
    assert promoted(["bf16", "f16"]) == promoted(["bf16", "f32"]) == promoted(["f16", "f32"]) == "f32"
    assert promoted(["bf16", "bf16"]) == "bf16" and promoted(["f16", "f64"]) == "f64" and promoted(["q4_k"]) is None


LIKE = {"weights": "bf16", "norms": "bf16", "embedding": "bf16"}
HAZARDS: dict[str, tuple[dict[str, str], list[str]]] = {
    "weights and embedding": (LIKE | {"weights": "f16", "norms": "f16"}, ["draft.L0.xn (embedding bf16 x weights f16)", "f32"]),
    "weights and taps": (LIKE | {"taps": "f32"}, ["draft.fc (taps f32 x weights bf16)"]),
    "weights and norms": (LIKE | {"norms": "f32"}, ["draft.ctx (norms f32 x weights bf16)"]),
}


@pytest.mark.parametrize("name", HAZARDS)
def test_dtypes_that_meet_and_differ_are_named_with_where(name: str) -> None:
    parts, words = HAZARDS[name]
    (text,) = pair_hazards(parts)
    assert [w for w in words if w not in text] == []
    assert pair_hazards(dict.fromkeys(parts, "bf16")) == []
    assert pair_hazards(parts | {"weights": "q8_0"}) == []


def test_inspect_names_what_is_mixed_in_one_file_and_across_a_pair(tmp_path: Path) -> None:
    from parity.cli import cli

    draft = make_artifact("qwen3", "tiny", "f16", tmp_path / "a", 1, "safetensors", **FEWER)[0]
    target = make_artifact("qwen3", "tiny", "bf16", tmp_path / "b", 1, "safetensors", **FEWER)[1]
    found = inspect_artifact(draft, None, target)
    assert found["dtypes"] == {"f16": 25} and found["problems"] == []
    assert any("draft.L0.xn (embedding bf16 x weights f16)" in w and "goes on in f32" in w for w in found["warnings"])
    shown = CliRunner().invoke(cli, ["inspect", str(draft), "--target", str(target)])
    assert shown.exit_code == 0 and "25 in f16" in shown.output and "goes on in f32" in shown.output
    config = json.loads((draft / "config.json").read_text()) | {"dtype": "bfloat16"}
    (draft / "config.json").write_text(json.dumps(config))
    assert any("config.json declares bf16, no tensor is stored in it (f16 are)" in w for w in inspect_artifact(draft)["warnings"])
    other = make_artifact("llama", "tiny", "f32", tmp_path / "c", 1, "safetensors", vocab=100)[0]
    wrong = CliRunner().invoke(cli, ["inspect", str(draft), "--target", str(other)])
    assert wrong.output.startswith("INVALID") and "not the target of" in wrong.output


def test_a_norm_in_another_dtype_is_named_in_its_file(tmp_path: Path) -> None:
    import safetensors.numpy

    draft = make_artifact("qwen3", "tiny", "f16", tmp_path, 1, "safetensors", **FEWER)[0]
    loaded = safetensors.numpy.load_file(draft / "model.safetensors")
    loaded["norm.weight"] = loaded["norm.weight"].astype(np.float32)
    safetensors.numpy.save_file(loaded, draft / "model.safetensors")
    (text,) = inspect_artifact(draft)["warnings"]
    assert "24 tensors in f16, 1 tensors in f32 (norm.weight)" in text and "goes on in f32" in text


def test_a_case_records_the_dtypes_and_its_report_the_hazard(tmp_path: Path) -> None:
    import parity
    from parity.models import open_case_model

    draft = make_artifact("qwen3", "tiny", "f16", tmp_path / "a", 1, "safetensors", **FEWER)[0]
    target = make_artifact("qwen3", "tiny", "bf16", tmp_path / "b", 1, "safetensors", **FEWER)[1]
    case = parity.drafter_case(draft, target, appends=(4,))
    assert open_case_model(case).geometry["dtypes"] == {"weights": "f16", "norms": "f16", "embedding": "bf16", "taps": "bf16"}
    report = parity.assert_parity("f32", case)
    assert any("goes on in f32" in note for note in report.notes)
