"""No key and no tensor of a file is silently ignored, whatever the family, role and container: an added one is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oracle.artifacts import ArtifactError, inspect_artifact, make_artifact
from oracle.artifacts.fields import DIALECT_WORDS
from oracle.artifacts.writers import PlannedTensor, Typed, write_safetensors
from tests.artifacts.gguf_edit import Keys, Tensors, rewritten, zeros
from tests.artifacts.test_artifact_heads import DFLASH2, FEWER
from tests.artifacts.test_convert_families import MUSE_TARGET
from tests.artifacts.test_target_gguf import DRAFTER, LAGUNA, QWEN

LLAMA = {k: v for k, v in FEWER.items() if k not in ("sliding", "mask_token_id")}
MUSE = {k: v for k, v in FEWER.items() if k not in ("layers", "sliding")}
CASES: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "llama target": ("llama", None, LLAMA),
    "qwen3 drafter": ("qwen3", None, FEWER),
    "dflash 2 drafter": ("qwen3", None, FEWER | DFLASH2 | {"sinks": "all"}),
    "muse drafter": ("muse-glimmer", None, MUSE),
    "muse target": ("muse-glimmer", "target", MUSE_TARGET),
    "laguna drafter": ("laguna", None, DRAFTER),
    "laguna target": ("laguna", "target", LAGUNA),
    "qwen38 drafter": ("qwen38-flash-next", None, QWEN),
    "qwen38 target": ("qwen38-flash-next", "target", QWEN),
}
ARCHITECTURES = {"llama": "llama", "muse-glimmer": "muse-glimmer", "laguna": "laguna", "qwen38-flash-next": "qwen4exp"}
few = settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
letters = st.text("abcdefghijklmnopqrstuvwxyz", min_size=4, max_size=10)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    made = {}
    for name, (family, role, sizes) in CASES.items():
        for kind in ("gguf", "safetensors"):
            out = tmp_path_factory.mktemp("made")
            made[name, kind] = make_artifact(family, "tiny", "f32", out, 1, kind, role, **sizes)[0]
    return made


def findings(path: Path, name: str) -> tuple[list[str], list[str]]:
    family, role, _ = CASES[name]
    drafter = role is None and family != "llama"
    found = inspect_artifact(path, family if drafter else None)
    assert found["role"] == ("drafter" if drafter else "target")
    return found["problems"], found["warnings"]


@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
@pytest.mark.parametrize("name", CASES)
def test_the_files_are_sound(name: str, kind: str, files: dict[tuple[str, str], Path]) -> None:
    assert findings(files[name, kind], name) == ([], [])


@pytest.mark.parametrize("name", CASES)
@few
@given(word=letters, layer=st.booleans())
def test_an_added_tensor_of_a_gguf_is_named(name: str, word: str, layer: bool, files: dict[tuple[str, str], Path], tmp_path: Path) -> None:
    added = f"blk.0.x{word}.weight" if layer else f"x{word}.weight"

    def edit(keys: Keys, tensors: Tensors) -> None:
        tensors[added] = zeros(added, 3, 4)

    problems, _ = findings(rewritten(files[name, "gguf"], tmp_path / "a.gguf", edit), name)
    assert any(added in p for p in problems)


@pytest.mark.parametrize("name", CASES)
@few
@given(word=letters, value=st.sampled_from([Typed("u32", 0), Typed("bool", False), Typed("string", ""), Typed("array of i32", [])]))
def test_an_added_key_of_a_gguf_is_named(name: str, word: str, value: Typed, files: dict[tuple[str, str], Path], tmp_path: Path) -> None:
    """Even one whose value looks harmless."""
    family, role, _ = CASES[name]
    arch = "dflash" if role is None and family != "llama" else ARCHITECTURES[family]

    def edit(keys: Keys, tensors: Tensors) -> None:
        keys[f"{arch}.x{word}"] = value

    problems, _ = findings(rewritten(files[name, "gguf"], tmp_path / "a.gguf", edit), name)
    assert any(f"{arch}.x{word}" in p for p in problems)


@pytest.mark.parametrize("name", CASES)
@few
@given(word=letters, layer=st.booleans())
def test_an_added_tensor_of_a_folder_is_named(
    name: str, word: str, layer: bool, files: dict[tuple[str, str], Path], tmp_path: Path
) -> None:
    from oracle.artifacts import open_container

    folder, out = files[name, "safetensors"], tmp_path / "a"
    tensors = open_container(folder).tensors
    prefix = next((p for p in ("model.language_model.", "model.") if all(n.startswith((p, "lm_head")) for n in tensors)), "")
    added = f"{prefix}layers.0.x{word}.weight" if layer else f"{prefix}x{word}.weight"
    out.mkdir(exist_ok=True)
    shutil.copy(folder / "config.json", out / "config.json")
    kept = [PlannedTensor.whole(t.name, t.shape, t.stored, t.raw) for t in tensors.values()]
    write_safetensors(out / "model.safetensors", [*kept, zeros(added, 3, 4)])
    problems, _ = findings(out, name)
    assert any(f"x{word}.weight" in p for p in problems)


@pytest.mark.parametrize("name", CASES)
@few
@given(word=letters, value=st.sampled_from([0, False, "", [], {}, 1.5, [1]]), inside=st.booleans())
def test_an_added_key_of_a_config_is_named(
    name: str, word: str, value: Any, inside: bool, files: dict[tuple[str, str], Path], tmp_path: Path
) -> None:
    """Refused where its name suggests another model or it stands in an object of the family's own, else warned of."""
    folder, out = files[name, "safetensors"], tmp_path / "a"
    out.mkdir(exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    inner = next((config[k] for k in ("dflash_config", "text_config") if k in config), config) if inside else config
    inner[f"x{word}"] = value
    (out / "config.json").write_text(json.dumps(config))
    (out / "model.safetensors").unlink(missing_ok=True)
    (out / "model.safetensors").symlink_to(folder / "model.safetensors")
    try:
        problems, warnings = findings(out, name)
    except ArtifactError as error:
        problems, warnings = [str(error)], []
    assert any(f"x{word}" in text for text in problems + warnings)
    if DIALECT_WORDS.search(f"x{word}"):
        assert any(f"x{word}" in p for p in problems)
