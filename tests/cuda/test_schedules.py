"""Every family's drafter and target under the schedules of the emulator, and so every operation: the same bits, and nothing found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dumps import open_dump
from oracle.artifacts import make_artifact
from parity.candidates import execute, parse
from parity.case import Case
from parity.diffing import difference
from parity.emulated import read_findings
from parity.making import drafter_case, target_case
from tests.artifacts.test_artifact_heads import DFLASH2, DSPARK, FEWER

pytestmark = pytest.mark.slow
# A number also seeds the order of blocks and threads.
SCHEDULES = ["late", *map(str, range(1, 21))]
HEADS = {"dflash 2": DFLASH2, "dspark": DSPARK | {"markov": "rnn"}}
FAMILIES = ("muse-glimmer", "qwen3", "qwen38-flash-next", "laguna")
TARGETS = ("muse-glimmer target", "llama target", "qwen38-flash-next target", "laguna target")
RUNS = [*((name, entry) for name in (*FAMILIES, *HEADS) for entry in ("fused", "op")), *((name, "op") for name in TARGETS)]


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    def make(name: str) -> Case:
        root = tmp_path_factory.mktemp("schedules")
        if name in TARGETS:
            family = name.removesuffix(" target")
            weights = "q4_k" if family == "muse-glimmer" else "bf16"
            return target_case(make_artifact(family, "tiny", weights, root, 3, role="target")[0], prefill=4, block=2, seed=4)
        if name in FAMILIES:
            model, target = make_artifact(name, "tiny", "q4_k" if name == "muse-glimmer" else "bf16", root, 3, role="drafter")
            return drafter_case(model, target, family=name, block=3, appends=(3, 2), seed=4)
        model, target = make_artifact("qwen3", "tiny", "f32", root, 3, "safetensors", **FEWER, **HEADS[name])
        return drafter_case(model, target, family="qwen3", block=3, appends=(3, 2), accepts=(1,), seed=4)

    return make


@pytest.mark.parametrize(("name", "entry"), RUNS)
def test_every_schedule_gives_the_same_bits(name: str, entry: str, candidate: str, case: Callable[[str], Case], tmp_path: Path) -> None:
    made = case(name)
    execute(parse(candidate, entry, schedule="eager"), made, tmp_path / "eager", None)
    assert read_findings(tmp_path / "eager") == []
    want = open_dump(tmp_path / "eager")
    for schedule in SCHEDULES:
        out = tmp_path / schedule
        execute(parse(candidate, entry, schedule=schedule), made, out, None)
        found = difference(want, open_dump(out))
        assert found.exit_status == 0, (schedule, found.first)
        assert read_findings(out) == [], schedule
