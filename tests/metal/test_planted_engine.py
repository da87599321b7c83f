"""A whole engine with a barrier left out of one Metal kernel: a race in `parity run`, with both lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from native import building
from native.sources import PACKAGE
from oracle.artifacts import make_artifact
from tests.artifacts.test_artifact_heads import FEWER

BARRIER = "  threadgroup_barrier(mem_flags::mem_threadgroup);\n  if (thread_index != 0) return;\n"
WRITE, READ = "    part_values[simdgroup] = best.value;\n", "    best.take(part_values[s].x, part_indices[s].x);\n"


@pytest.fixture(scope="module")
def text() -> str:
    """rows.metal without the barrier of top2."""
    shipped = (PACKAGE / "metal/rows.metal").read_text()
    assert shipped.count(BARRIER) == 1
    return shipped.replace(BARRIER, BARRIER.splitlines(True)[1])


def place(text: str, line: str) -> str:
    return f"rows.metal:{text[: text.index(line)].count(chr(10)) + 1}"


def test_a_barrier_left_out_is_a_race_with_both_lines(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from parity.cli import main

    building.ensure("metal-emu")
    folder = PACKAGE.parent / "build" / "planted-metal-engine"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "rows.metal"
    if not file.exists() or file.read_text() != text:
        file.write_text(text)
    engine = building.build("metal-emu", "dlab_planted_metal_engine", [f"-DDLAB_PLANTED_METAL_ENGINE={folder}"])
    model, borrowed = make_artifact("qwen3", "tiny", "f32", tmp_path / "model", 3, "safetensors", **FEWER)[:2]
    files = ["--family", "qwen3", "--model", str(model), "--borrowed", str(borrowed), "--context", "2", "--block", "2"]
    candidate = ["--candidate", str(engine), "--entry", "fused", "--arithmetic", "metal-f32", "--mode", "local"]
    with pytest.raises(SystemExit) as ended:
        main(["run", *files, *candidate, "--json", str(tmp_path / "r.json")])
    assert ended.value.code == 1
    out = capsys.readouterr().out
    places = {place(text, WRITE), place(text, READ)}
    assert "race" in out.splitlines()[0].lower() and all(p in out for p in places)
    report = json.loads((tmp_path / "r.json").read_text())
    assert "top2" in json.dumps(report) and all(p in json.dumps(report) for p in places)
