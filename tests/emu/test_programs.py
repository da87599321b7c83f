"""Programs with a mistake in how their threads meet: each is reported when the program ends, and none ends the emulator."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.emu.programs import Programs

pytestmark = pytest.mark.slow
SCHEDULES = [{"EMU_SCHEDULE": "eager"}, {"EMU_SCHEDULE": "late", "EMU_ORDER": "3"}, {"EMU_SCHEDULE": "7", "EMU_ORDER": "8"}]
SOURCE = Path(__file__).with_name("barriers.cu").read_text().splitlines()


def line(mark: str) -> str:
    return next(f"barriers.cu:{number}" for number, text in enumerate(SOURCE, 1) if text.endswith(f"// MARK {mark}"))


@pytest.fixture(scope="module")
def built(programs: Programs) -> Programs:
    programs.build("barriers")
    return programs


# 64 threads in groups of 16: their lists, the exit status, the kinds, and the places of the first finding of that kind.
MEETINGS = {
    "in order": (["WbRb"], 0, set(), ()),
    "no barrier": (["W.R."], 0, {"race", "uninitialised"}, ("read", "write")),
    "a barrier too early": (["bWR."], 0, {"race", "uninitialised"}, ("read", "write")),
    "no barrier before the next write": (["WbRW"], 0, {"race"}, ("write", "read")),
    "a warp's barrier for a block's": (["WwR."], 0, {"race", "uninitialised"}, ("read", "write")),
    "two barriers": (["b", "B", "b", "b"], 0, {"divergent-sync"}, ("second", "first")),
    "barriers of two kinds": (["b", "b", "c", "c"], 0, {"divergent-sync"}, ("count", "first")),
    "half a warp at each": (["b", "w", "b", "b"], 1, {"divergent-sync"}, ("first", "warp")),
    "a shuffle against a barrier": (["s", "b", "s", "s"], 1, {"divergent-sync"}, ("shuffle", "first")),
    "two meetings crossed": (["sb", "bs", "sb", "sb"], 1, {"divergent-sync"}, ("shuffle", "first")),
    "gone before a shuffle": (["s", "x", "s", "s"], 0, set(), ()),
    "gone before a barrier": (["x", "b", "b", "b"], 0, set(), ()),
    "all gone but one group": (["xxxx", "xxxx", "xxxx", "bWbR"], 0, {"uninitialised"}, ()),
    "one barrier more": (["bb", "b.", "b.", "b."], 0, set(), ()),
}


@pytest.mark.parametrize("name", MEETINGS)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=["eager", "late", "seeded"])
def test_how_threads_meet_is_reported(built: Programs, name: str, schedule: dict[str, str]) -> None:
    lists, status, kinds, places = MEETINGS[name]
    run = built.run("barriers", 64, *lists, **schedule)
    assert (run.status, run.kinds()) == (status, kinds)
    if places:
        kind = "race" if "race" in kinds else "divergent-sync"
        first = next(f for f in run.found if f["kind"] == kind)
        assert set(first["places"]) == {line(mark) for mark in places}
    if status:
        assert "these can never meet" in run.found[-1]["text"] and run.printed == "unspecified launch failure\n"


def test_a_thread_that_has_gone_is_not_counted(built: Programs) -> None:
    assert built.run("barriers", 64, "x", "c", "c", "c").printed.split()[16:] == [str(t + 48) for t in range(16, 64)]


@pytest.mark.parametrize("seed", range(40))
def test_random_lists_end_in_findings(built: Programs, seed: int) -> None:
    rng = np.random.default_rng(seed)
    length, threads = int(rng.integers(1, 9)), int(rng.choice([16, 48, 64, 128]))
    same = "".join(rng.choice(list("bBcwsuWRA"), length))
    lists = [same] * 4
    for _ in range(int(rng.integers(0, 4))):
        at, group = int(rng.integers(length)), int(rng.integers(4))
        lists[group] = lists[group][:at] + str(rng.choice(list("bBcws.x"))) + lists[group][at + 1 :]
    run = built.run("barriers", threads, *lists, **SCHEDULES[seed % 3])
    stuck = [f for f in run.found if "these can never meet" in f["text"]]
    assert run.status == len(stuck) and run.kinds() <= {"race", "uninitialised", "divergent-sync"}
    if len(set(lists)) == 1:
        assert "divergent-sync" not in run.kinds()
    barriers = ["".join(c for c in text if c in "bBc") for text in lists if "x" not in text]
    if any(a != b for pair in zip(*[iter(barriers), iter(barriers[1:])], strict=False) for a, b in zip(*pair, strict=False)):
        assert "divergent-sync" in run.kinds()


def test_what_statics_do_when_the_program_ends_is_reported(built: Programs) -> None:
    """The memory was freed already: the place is in the destructor of a static that was made before main."""
    run = built.run("barriers", 64, "b", FREE_TWICE="1")
    assert run.status == 0 and run.kinds() == {"api"} and "freed" in run.found[0]["text"]


def test_a_schedule_that_is_none_is_refused(built: Programs) -> None:
    program = [built.folder / "build/barriers", "64", "b"]
    done = subprocess.run(program, env={"EMU_SCHEDULE": "soon"}, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr == "EMU_SCHEDULE: expected eager, late or a number, found soon\n"


@pytest.mark.parametrize(("forget", "kinds"), [("OFF", set()), ("ON", {"race", "uninitialised"})])
def test_the_example(programs: Programs, forget: str, kinds: set[str]) -> None:
    programs.configure(f"-DFORGET_THE_BARRIER={forget}")
    programs.build("histogram")
    run = programs.run("histogram")
    assert run.status == 0 and run.printed.startswith("fullest bin: ") and run.kinds() == kinds
    assert all(place.startswith("histogram.cu:") for f in run.found for place in f["places"])
