"""Bytes flipped, inserted, deleted or cut at random: an `ArtifactError` or a success, and memory in proportion to the file."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oracle.artifacts import ArtifactError, inspect_artifact, open_borrowed, open_drafter_files, open_target_files
from tests.artifacts.artifact_files import llama_gguf, muse_gguf, qwen3_folder, sharded

PEAK_BYTES = 4 << 20
MUSE_FILE, LLAMA_FILE = muse_gguf(), llama_gguf()
MUSE, LLAMA = MUSE_FILE.render(), LLAMA_FILE.render()
CONFIG = qwen3_folder().config
HEADER = MUSE.index(b"fc.weight") + 4000

Edit = tuple[str, int, bytes]
edits = st.lists(
    st.tuples(
        st.sampled_from(["flip", "insert", "delete", "cut", "word"]),
        st.integers(0, 1 << 20),
        st.binary(min_size=1, max_size=9) | st.sampled_from([b"\xff" * 8, b"\0" * 8, b"\xff\xff\xff\x7f", b"\1", b"[", b"{", b'"']),
    ),
    min_size=1,
    max_size=4,
)
quick = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def damaged(data: bytes, changes: list[Edit], within: int) -> bytes:
    """``data`` with ``changes`` applied, at offsets taken modulo ``within`` (so that they mostly hit the header)."""
    out = bytearray(data)
    for kind, where, patch in changes:
        at = where % max(1, min(within, len(out)))
        if kind == "flip":
            out[at : at + 1] = bytes([(out[at] if at < len(out) else 0) ^ (patch[0] or 1)])
        elif kind == "insert":
            out[at:at] = patch
        elif kind == "delete":
            del out[at : at + len(patch)]
        elif kind == "word":
            out[at : at + len(patch)] = patch
        else:
            del out[at:]
    return bytes(out)


def opened_or_refused(path: Path, open_it: Callable[[Path], Any]) -> None:
    tracemalloc.start()
    try:
        open_it(path)
    except ArtifactError as error:
        text = str(error)
        assert text.startswith(str(path)) and "\n" not in text and len(text) < 2000
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < PEAK_BYTES, f"{peak} bytes at the peak"


@pytest.mark.parametrize(("data", "open_it"), [(MUSE, open_drafter_files), (LLAMA, open_target_files), (LLAMA, open_borrowed)])
@quick
@given(changes=edits)
def test_gguf_bytes(tmp_path: Path, data: bytes, open_it: Callable[[Path], Any], changes: list[Edit]) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(damaged(data, changes, HEADER))
    opened_or_refused(path, open_it)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sharded(qwen3_folder()).write(tmp_path_factory.mktemp("fuzz") / "m")


@pytest.mark.parametrize("name", ["config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json"])
@quick
@given(changes=edits)
def test_folder_bytes(shards: Path, name: str, changes: list[Edit]) -> None:
    sound = (shards / name).read_bytes()
    try:
        (shards / name).write_bytes(damaged(sound, changes, 1200))
        opened_or_refused(shards, open_drafter_files)
    finally:
        (shards / name).write_bytes(sound)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@quick
@given(key=st.sampled_from(sorted(CONFIG) + sorted(CONFIG["dflash_config"])), value=values)
def test_config_values(shards: Path, key: str, value: Any) -> None:
    """Any JSON value under any known key."""
    inner = CONFIG["dflash_config"]
    changed = CONFIG | ({"dflash_config": inner | {key: value}} if key in inner else {key: value})
    (shards / "config.json").write_text(json.dumps(changed))
    try:
        opened_or_refused(shards, open_drafter_files)
    finally:
        (shards / "config.json").write_text(json.dumps(CONFIG))


typed = st.one_of(
    st.tuples(st.just("u32"), st.integers(0, (1 << 32) - 1) | st.integers(0, 9)),
    st.tuples(st.just("i32"), st.integers(-9, 9)),
    st.tuples(st.just("u64"), st.integers(0, (1 << 64) - 1)),
    st.tuples(st.just("bool"), st.integers(0, 1)),
    st.tuples(st.sampled_from(["f32", "f64"]), st.floats(width=32)),
    st.tuples(st.just("string"), st.text(st.characters(codec="utf-8"), max_size=8)),
    st.tuples(st.sampled_from(["array of u32", "array of f32", "array of bool"]), st.lists(st.integers(0, 1), max_size=400)),
    st.tuples(st.just("array of string"), st.lists(st.just("t"), max_size=3) | st.just(["t"] * 300)),
)
known = [
    *sorted(MUSE_FILE.keys),
    "split.count",
    "general.alignment",
    "dflash.sample_from_anchor",
    "dflash.attention.causal",
    "dflash.vocab_size",
]


@quick
@given(changes=st.dictionaries(st.sampled_from(known), typed, min_size=1, max_size=2))
def test_gguf_values(tmp_path: Path, changes: dict[str, tuple[str, Any]]) -> None:
    """A value of any type under any known key."""
    file = replace(MUSE_FILE, keys=MUSE_FILE.keys | changes)
    path = tmp_path / "m.gguf"
    path.write_bytes(file.render())
    opened_or_refused(path, open_drafter_files)
    inspect_artifact(path)


@quick
@given(key=st.sampled_from(sorted(LLAMA_FILE.keys)), value=typed)
def test_target_values(tmp_path: Path, key: str, value: tuple[str, Any]) -> None:
    file = replace(LLAMA_FILE, keys=LLAMA_FILE.keys | {key: value})
    path = tmp_path / "m.gguf"
    path.write_bytes(file.render())
    opened_or_refused(path, open_target_files)


@quick
@given(changes=edits)
def test_inspect_reports_and_never_raises(tmp_path: Path, changes: list[Edit]) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(damaged(MUSE, changes, HEADER))
    assert isinstance(inspect_artifact(path)["problems"], list)
