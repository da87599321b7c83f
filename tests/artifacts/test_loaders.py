"""What an engine's own loader refuses of a drafter that the lab reads: ``parity inspect --loader``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from oracle.artifacts import inspect_artifact, make_artifact, open_drafter_files
from oracle.artifacts.container import open_container
from oracle.artifacts.loaders import LOADERS, SHELL_FORMATS, SHELL_SIZES, STRATA_FORMATS, STRATA_SIZES, refusals
from tests.artifacts.artifact_files import muse_folder
from tests.artifacts.test_qwen38_drafter import SIZES

MUSE: dict[str, Any] = {"hidden": 256, "intermediate": 256, "heads": 4, "kv_heads": 2, "head_dim": 64, "vocab": 40, "mask_token_id": 36}
FILES: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "muser-shell": ("muse-glimmer", "gguf", "q4_k", MUSE),
    "strata": ("qwen38-flash-next", "gguf", "bf16", SIZES),
    "mlxcel": ("muse-glimmer", "safetensors", "bf16", MUSE),
    "mlx-vlm": ("laguna", "safetensors", "bf16", {"mask_token_id": 55, "vocab": 60}),
}
RELEASED = {"muser-shell": SHELL_SIZES, "strata": STRATA_SIZES, "mlxcel": {}, "mlx-vlm": {}}


class Opened:
    """A drafter as its loader would find it at the released sizes: only what the rules read, so that any part can be wrong."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.container = name, open_container(path)
        files = open_drafter_files(path)
        self.family, self.geometry = files.identity.family, replace(files.geometry, **RELEASED[name])
        if name == "strata":
            self.store("bf16", 1)
        if name == "mlx-vlm":
            self.put("dflash_config", self.container.metadata["dflash_config"] | {"eagle_aux_hidden_state_layer_ids": [1]})

    def put(self, key: str, value: Any) -> None:
        kept = {k: v for k, v in self.container.metadata.items() if k != key}
        self.container = replace(self.container, metadata=kept if value is None else kept | {key: value})

    def store(self, stored: str, rank: int) -> None:
        changed = {n: replace(t, stored=stored) if len(t.shape) == rank else t for n, t in self.container.tensors.items()}
        self.container = replace(self.container, tensors=changed)

    def size(self, name: str, value: Any) -> None:
        self.geometry = replace(self.geometry, **{name: value})

    def said(self) -> list[str]:
        return refusals(self.name, self.family, self.container, self.geometry)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for name, (family, container, weights, sizes) in FILES.items():
        made[name] = make_artifact(family, "tiny", weights, tmp_path_factory.mktemp(name), 3, container, None, **sizes)[0]
    return made


def test_a_released_drafter_is_taken(paths: dict[str, Path]) -> None:
    assert set(FILES) == set(LOADERS)
    for name, path in paths.items():
        assert Opened(name, path).said() == [], name


@pytest.mark.parametrize(("name", "stored"), [("muser-shell", f) for f in SHELL_FORMATS] + [("strata", f) for f in STRATA_FORMATS])
def test_every_format_of_a_loader_is_taken(name: str, stored: str, paths: dict[str, Path]) -> None:
    made = Opened(name, paths[name])
    made.store(stored, 2)
    assert made.said() == []


RULES: dict[str, tuple[tuple[str, Any], list[str]]] = {
    "muser-shell: a projection in bf16": (
        ("store", ("bf16", 2)),
        ["projections", "blk.0.attn_k.weight", "q4_k or q5_k or q6_k, found bf16"],
    ),
    "muser-shell: a projection in q8_0": (("store", ("q8_0", 2)), ["projections", "found q8_0"]),
    "muser-shell: another hidden width": (("size", ("hidden", 256)), ["hidden: expected 6656, found 256"]),
    "muser-shell: another MLP width": (("size", ("intermediate", 24)), ["intermediate: expected 19968, found 24"]),
    "muser-shell: another head width": (("size", ("head_dim", 64)), ["head_dim: expected 128, found 64"]),
    "muser-shell: four taps": (("size", ("tap_ids", (1, 2, 3, 4))), ["taps: expected 5, found 4"]),
    "strata: a projection in f16": (("store", ("f16", 2)), ["projections", "bf16 or q4_0 or q5_0 or q8_0, found f16"]),
    "strata: a projection in q4_k": (("store", ("q4_k", 2)), ["projections", "found q4_k"]),
    "strata: norms in f32": (("store", ("f32", 1)), ["norms", "expected bf16, found f32"]),
    "strata: another hidden width": (("size", ("hidden", 16)), ["hidden: expected 2560, found 16"]),
    "strata: other heads": (("size", ("heads", 12)), ["heads: expected 24, found 12"]),
    "strata: other kv heads": (("size", ("kv_heads", 8)), ["kv_heads: expected 2, found 8"]),
    "strata: another head width": (("size", ("head_dim", 106)), ["head_dim: expected 256, found 106"]),
    "strata: another MLP width": (("size", ("intermediate", 24)), ["intermediate: expected 7680, found 24"]),
    "strata: no vocabulary size": (("put", ("dflash.vocab_size", None)), ["missing key dflash.vocab_size"]),
    "strata: taps with one added": (("put", ("dflash.rope.freq_base", 1e7)), ["dflash.target_layers", "zero-based ids"]),
    "mlxcel: another model type": (("put", ("model_type", "qwen3")), ["model_type: expected 'muse_glimmer_assistant', found 'qwen3'"]),
    "mlxcel: no window": (("size", ("window_source", "default")), ["sliding_window: expected a width, found none"]),
    "mlxcel: falling taps": (("size", ("tap_ids", (5, 4, 3, 2, 1))), ["target_layer_ids: expected 5 strictly increasing"]),
    "mlxcel: fewer taps than layers": (("size", ("tap_ids", (1, 2))), ["target_layer_ids: expected 5", "[1, 2]"]),
    "mlx-vlm: no one-based ids": (("put", ("dflash_config", {})), ["missing key eagle_aux_hidden_state_layer_ids", "one more than"]),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_loader_refuses_by_rule(rule: str, paths: dict[str, Path]) -> None:
    name = rule.partition(":")[0]
    (edit, values), words = RULES[rule]
    made = Opened(name, paths[name])
    getattr(made, edit)(*values)
    (text,) = made.said()
    assert [w for w in [*words, f"loader {name} refuses it", str(made.container.path)] if w not in text] == [], text


def test_a_loader_reads_its_own_family_and_container_only(paths: dict[str, Path]) -> None:
    for name, other in (("strata", "muser-shell"), ("muser-shell", "mlxcel"), ("mlxcel", "mlx-vlm")):
        made = Opened(other, paths[other])
        (text,) = refusals(name, made.family, made.container, made.geometry)
        assert f"loader {name} reads" in text and f"not {made.family} in {made.container.kind}" in text


def test_inspect_says_what_the_loader_would(paths: dict[str, Path], tmp_path: Path) -> None:
    from parity.cli import cli

    run = CliRunner().invoke(cli, ["inspect", str(paths["strata"]), "--loader", "strata"])
    assert run.output.startswith("INVALID") and "hidden: expected 2560, found 16" in run.output
    for sound in ([str(paths["strata"])], [str(paths["mlxcel"]), "--loader", "mlxcel"]):
        assert CliRunner().invoke(cli, ["inspect", *sound]).output.startswith("VALID")
    bare = muse_folder()
    bare.config["target_layer_ids"] = [13, 1]
    said = inspect_artifact(bare.write(tmp_path / "muse"), loader="mlxcel")["problems"]
    assert len(said) == 1 and "target_layer_ids: expected 5 strictly increasing layers" in said[0]
    wrong = CliRunner().invoke(cli, ["inspect", str(paths["strata"]), "--loader", "none"])
    assert wrong.exit_code != 0 and "expected one of muser-shell, strata, mlxcel, mlx-vlm" in str(wrong.output) + str(wrong.exception)


def test_a_target_is_no_drafter(tmp_path: Path) -> None:
    target = make_artifact("llama", "tiny", "f32", tmp_path, 1, "gguf")[0]
    assert any("loader strata reads drafters only" in p for p in inspect_artifact(target, loader="strata")["problems"])
