"""Each mistake in a whole engine, as `parity run` reports it: a verdict of its own, with both source lines or the copy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import native
from native.emulation import Emulation
from oracle import open_drafter, open_target
from oracle.artifacts import make_artifact
from parity.errors import CandidateError
from parity.native_drafter import fused_config, fused_weights
from parity.speculating import rows
from parity.speculating.greedy import compare
from parity.speculating.setup import Setup
from tests.artifacts.test_artifact_heads import FEWER
from tests.cuda.planted_engine import NUMBERS, build, line

# As many heads per key/value head as the engine of the report had, so that its rows overwrite row 0 only.
HEADS, KV_HEADS, ROWS = 24, 2, 7
EXPECTED = {
    "barrier left out": ("race", {"shared.write", "shared.read"}, "top2_kernel"),
    "shared write out of bounds": ("out-of-bounds", {"shared.write"}, "top2_kernel"),
    "shared memory unwritten": ("uninitialised", {"shared.read"}, "top2_kernel"),
    "diverging shuffle": ("divergent-sync", {"shuffle", "shuffle.others"}, "top2_kernel"),
    "shared staging": ("hazard", {"staging.copy", "staging.rewrite"}, "pinned"),
    "metadata rewritten": ("hazard", {"metadata.copy", "metadata.rewrite"}, "pinned"),
}
# Late shows most; the others show that a finding does not depend on it.
SCHEDULES = ["late", *(pytest.param(s, marks=pytest.mark.slow) for s in ("eager", "3"))]

Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    sizes = FEWER | {"heads": HEADS, "kv_heads": KV_HEADS}
    return make_artifact("qwen3", "tiny", "f32", tmp_path_factory.mktemp("engine"), 3, "safetensors", **sizes)


@pytest.fixture
def run(files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`parity run` of the engine with a mistake: (exit status, report)."""
    from parity.cli import main

    def call(mistake: str, *more: str) -> tuple[int, dict[str, Any]]:
        monkeypatch.setenv("DLAB_PLANTED", str(NUMBERS.get(mistake, 0)))
        arguments = ["--candidate", str(build()), "--entry", "fused", "--arithmetic", "cuda-f32", "--mode", "local", "--seed", "4"]
        model = ["--family", "qwen3", "--model", str(files[0]), "--borrowed", str(files[1])]
        with pytest.raises(SystemExit) as ended:
            main(["run", *model, "--context", "6", "--block", str(ROWS), *arguments, "--json", str(tmp_path / "r.json"), *more])
        capsys.readouterr()
        return int(ended.value.code or 0), json.loads((tmp_path / "r.json").read_text())

    return call


def places(finding: dict[str, Any]) -> set[str]:
    return {place.rpartition("/")[2] for place in finding["places"]}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_without_a_mistake_it_is_parity(run: Run, schedule: str) -> None:
    status, report = run("none", "--schedule", schedule)
    assert (status, report["verdict"], report["findings"]) == (0, "parity", [])


@pytest.mark.parametrize("mistake", EXPECTED)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_mistake_is_its_own_verdict_with_its_lines(run: Run, mistake: str, schedule: str) -> None:
    kind, marks, says = EXPECTED[mistake]
    status, report = run(mistake, "--schedule", schedule)
    assert status in (1, 4) and report["verdict"] == kind, report["findings"][:2]
    assert any(places(f) == {line(m) for m in marks} and says in f["text"] for f in report["findings"] if f["kind"] == kind)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_copy_on_a_stream_that_no_event_orders_is_a_race_with_the_kernel(run: Run, schedule: str) -> None:
    status, report = run("masks by another stream", "--schedule", schedule)
    assert status == 1 and report["verdict"] == "race"
    first = report["findings"][0]
    assert "no event or synchronisation orders the two" in first["text"] and "attention_kernel" in first["text"]
    assert line("masks.copy") in places(first)


def test_an_event_wait_left_out_between_append_and_block(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen where nothing is recorded: a recorded append ends by waiting for its own stages."""
    model = open_drafter(files[0], family="qwen3")
    target, width = open_target(files[1]), len(model.geometry.tap_ids) * model.geometry.target_hidden
    config, weights = fused_config(model), fused_weights(model, target.embedding, target.head)
    library = native.open_library(build())
    emulation = Emulation(library.info.path)
    for mistake, expected in (("none", []), ("event wait left out", ["race"])):
        monkeypatch.setenv("DLAB_PLANTED", str(NUMBERS.get(mistake, 0)))
        emulation.clear()
        emulation.schedule("late")
        with library.context() as context, context.drafter(config, weights) as drafter:
            for start in (0, 3):  # the first proposal makes room, which waits
                drafter.append(np.ones((3, width), np.float32), start)
                drafter.propose(np.zeros(2, np.int32), start + 3)
        found = emulation.findings()
        assert [f.kind for f in found][:1] == expected, found[:1]
    assert "no event or synchronisation orders the two" in found[0].text and len(found[0].places) == 2


def test_shared_staging_overwrites_the_first_heads_of_row_0_in_every_layer(run: Run) -> None:
    """Heads 0 .. 2K-1 of row 0 take the positions of the keys; the first two are right by coincidence."""
    _, report = run("shared staging", "--schedule", "late")
    found = {d["stage"]: d for d in report["divergences"]}
    for layer in range(FEWER["layers"]):
        divergence = found[f"draft.L{layer}.q_rope"]
        assert (divergence["extent"]["rows"], divergence["extent"]["heads"]) == ([0], list(range(KV_HEADS, KV_HEADS * ROWS)))
        assert divergence["explanations"][0]["kind"].startswith("rope.position"), divergence["explanations"]


def test_shared_staging_shows_no_wrong_number_when_copies_run_at_once(run: Run) -> None:
    _, report = run("shared staging", "--schedule", "eager")
    assert report["verdict"] == "hazard" and report["divergences"] == []


@pytest.mark.slow
def test_a_race_in_a_whole_generation_is_no_parity(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(files[1], (3, 17, 9), 3, "steered", files[0], "qwen3", verify_length=2, accepts=(0,), candidate=str(build()))
    monkeypatch.setenv("DLAB_PLANTED", str(NUMBERS["barrier left out"]))
    report, _ = compare(setup, arithmetic="cuda-f32", members=2)
    assert report.verdict == "divergence" and all(line(m) in report.misuse[0] for m in ("shared.write", "shared.read"))
    assert report.misuse[0].startswith("race: ") and report.misuse[0] in report.broken


def test_a_race_in_a_window_is_told_by_the_probe_of_rows(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLAB_PLANTED", str(NUMBERS["barrier left out"]))
    with pytest.raises(CandidateError, match="race: byte 16 of __shared__ warps"):
        rows.probe(files[1], str(build()), 2, contexts=(2,), arithmetic="cuda-f32")
