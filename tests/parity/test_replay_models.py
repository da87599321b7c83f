"""`parity replay` with the models: a trace that tells nothing of its own bookkeeping is run again, and what does not follow is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dumps import DumpError
from oracle.artifacts import make_artifact
from oracle.models import open_drafter, open_target
from parity.cli import main
from parity.errors import IdentityMismatch, UsageError
from parity.speculating.bugs import BUGS
from parity.speculating.greedy import compare
from parity.speculating.replay import ReplayReport, replay
from parity.speculating.setup import Setup

SMALL: dict[str, Any] = {"hidden": 32, "intermediate": 32, "heads": 4, "kv_heads": 2, "head_dim": 8, "vocab": 67}
PROMPT = tuple(int(i) for i in np.random.default_rng(3).integers(0, 60, 11))
BARE = ("schema", "schedule", "prompt", "first", "position", "anchor", "proposals", "window", "accepted", "bonus", "picks", "chooser")
"""What an engine that knows nothing of its mistake still records rightly."""
DRAFTED = ("proposals.row", "context.proposals", "context.first")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    make_artifact("qwen3", "tiny", "f32", root / "qwen3", seed=5, **SMALL, block_size=6, mask_token_id=66)
    sliding: dict[str, Any] = {"layers": 3, "experts": 4, "experts_per_token": 2, "moe_intermediate": 16, "window": 6}
    make_artifact("laguna", "tiny", "f32", root / "laguna", seed=6, role="target", **SMALL, **sliding)
    return root


def lines(files: Path, name: str | None, record: tuple[str, ...] = (), **changes: Any) -> list[dict[str, Any]]:
    """The lines of a session with this mistake; sliding caches need the Laguna target, a drafter the generic one."""
    family = "laguna" if name in ("rollback.ring", "rollback.none") else "qwen3"
    drafter = "model" if name in (None, *DRAFTED) else "oracle"
    base: dict[str, Any] = {"max_new": 24, "drafter": drafter, "verify_length": 5, "accepts": (0, 2, 1, None), "plant": name}
    base |= {"family": "qwen3", "drafter_path": files / "qwen3/drafter"} if drafter == "model" else {"schedule": "mlxcel"}
    # A bonus found by value needs a repeated token in the window.
    prompt = (7,) * 11 if name == "bonus.by-value" else PROMPT
    _, trace = compare(Setup(files / family / "target", prompt, **(base | changes)), members=0)
    return [json.loads(line) for line in trace.lines(record).splitlines()]


def written(tmp_path: Path, made: list[dict[str, Any]], keep: Callable[[str], bool] = lambda key: True) -> Path:
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({k: v for k, v in line.items() if keep(k)}) + "\n" for line in made))
    return tmp_path / "t.jsonl"


def run(files: Path, path: Path, name: str | None, **more: Any) -> ReplayReport:
    family = "laguna" if name in ("rollback.ring", "rollback.none") else "qwen3"
    drafter = open_drafter(files / "qwen3/drafter", family="qwen3") if name in (None, *DRAFTED) else None
    return replay(path, open_target(files / family / "target"), drafter, **({"members": 2} | more))


@pytest.mark.parametrize("name", [b for b in BUGS if b != "bonus.by-value"])
def test_a_bug_is_named_from_ids_alone(files: Path, tmp_path: Path, name: str) -> None:
    """No bookkeeping, no logits: only what was proposed, verified and picked, and the models."""
    found = run(files, written(tmp_path, lines(files, name), BARE.__contains__), name)
    assert found.verdict == "divergence" and BUGS[name].check in found.by_check, found.by_check
    assert found.explanation == BUGS[name].about


@pytest.mark.parametrize("name", DRAFTED)
def test_a_bug_is_named_from_the_features_that_the_drafter_was_given(files: Path, tmp_path: Path, name: str) -> None:
    found = run(files, written(tmp_path, lines(files, name, ("taps",)), (*BARE, "taps").__contains__), name)
    assert found.verdict == "divergence" and BUGS[name].check in found.by_check, found.by_check
    told = " ".join(v.what for v in found.violations)
    held = {"context.proposals": "features of row 1 of the window", "context.first": "features of position 10"}.get(name, "")
    assert held in told and found.fed == "recorded" and found.explanation == BUGS[name].about


@pytest.mark.parametrize(("record", "fed"), [((), "target"), (("taps", "logits"), "recorded")])
def test_a_rounding_engine_s_healthy_trace_is_parity(files: Path, tmp_path: Path, record: tuple[str, ...], fed: str) -> None:
    found = run(files, written(tmp_path, lines(files, None, record, candidate="f32")), None, required=("target", "drafter"))
    assert found.verdict == "parity", found.violations
    assert found.fed == fed and found.proposals is not None and found.proposals.rows > 50
    if record:
        assert found.taps is not None and found.taps.compared == 11 + 23 and 0 < found.taps.worst < 1
        assert 0 < found.proposals.ratio < 1


def test_recorded_logits_that_are_not_the_drafter_s_are_found(files: Path, tmp_path: Path) -> None:
    made = lines(files, None, ("taps", "logits"))
    made[4]["draft_logits"] = (np.array(made[4]["draft_logits"]) * 1.001).tolist()
    found = run(files, written(tmp_path, made), None)
    assert [v.check for v in found.violations] == ["proposals"] and found.violations[0].round == 3
    assert "x tolerance from those of the drafter run again" in found.violations[0].what


def test_a_single_wrong_row_of_features_is_found_with_its_round(files: Path, tmp_path: Path) -> None:
    made = lines(files, None, ("taps",))
    made[6]["taps"][0] = [0.0] * len(made[6]["taps"][0])
    found = run(files, written(tmp_path, made), None)
    assert {(v.round, v.check) for v in found.violations} >= {(5, "context.rows")} and found.taps is not None
    assert [r.holds for r in found.taps.wrong] == ["zeros"]


def test_features_may_lie_in_files_beside_the_trace(files: Path, tmp_path: Path) -> None:
    made = lines(files, None, ("taps",), max_new=6, candidate="f32")
    for i, line in enumerate(made):
        np.save(tmp_path / f"{i}.npy", np.array(line["taps"], np.float32))
        line["taps"] = f"{i}.npy"
    found = run(files, written(tmp_path, made), None, required=("taps",))
    assert found.verdict == "parity" and found.fed == "recorded" and found.taps is not None and found.taps.compared == 11 + 5
    wrong = np.load(tmp_path / "2.npy")
    np.save(tmp_path / "2.npy", np.zeros_like(wrong))
    assert "context.rows" in run(files, tmp_path / "t.jsonl", None).by_check
    for spoiled, told in (
        (lambda: np.save(tmp_path / "2.npy", wrong.astype(np.int32)), "expected rows of float16, float32 or float64"),
        (lambda: (tmp_path / "2.npy").write_bytes((tmp_path / "1.npy").read_bytes()[:-4]), "bytes of rows"),
        (lambda: (tmp_path / "2.npy").write_bytes(b"rows"), "expected a .npy file"),
        (lambda: (tmp_path / "2.npy").unlink(), "2.npy: cannot be read"),
    ):
        spoiled()
        with pytest.raises((UsageError, DumpError), match=told):
            run(files, tmp_path / "t.jsonl", None)
    made[2]["taps"] = "../2.npy"
    with pytest.raises(UsageError, match="the plain name of a"):
        run(files, written(tmp_path, made), None)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"taps": [[1.0], [1.0, 2.0]]}, "taps: expected rows of numbers, all equally long"),
        ({"taps": [[1.0]] * 11}, "taps of 1 values, this drafter reads 96 of its target"),
        ({"taps": [[float("nan")] * 96] * 11}, "header: taps: expected finite numbers"),
        ({"taps": "rows"}, "taps: expected the plain name of a .npy file"),
        ({"taps": 3}, "taps: expected rows of numbers"),
    ],
)
def test_features_that_do_not_fit_are_refused(files: Path, tmp_path: Path, change: dict[str, Any], told: str) -> None:
    made = lines(files, None, ("taps",), max_new=4)
    with pytest.raises(UsageError, match=told):
        run(files, written(tmp_path, [made[0] | change, *made[1:]]), None)


def test_a_block_wider_than_the_drafter_takes_is_refused(files: Path, tmp_path: Path) -> None:
    made = lines(files, None, max_new=4)
    with pytest.raises(UsageError, match="round 0: block: 90 rows, this drafter takes at most 6"):
        run(files, written(tmp_path, [made[0], made[1] | {"block": [made[1]["anchor"]] * 90}, *made[2:]]), None)


@pytest.fixture(scope="module")
def short(files: Path) -> list[dict[str, Any]]:
    return lines(files, None, ("taps",), max_new=4)


def test_a_count_of_rows_that_cannot_be_allocates_nothing(files: Path, short: list[dict[str, Any]], tmp_path: Path) -> None:
    made = [short[0], short[1] | {"kept": 10**9}, *short[2:]]
    report = run(files, written(tmp_path, made), None, members=1)
    assert report.verdict == "divergence" and any("1000000000 rows were committed" in str(v) for v in report.violations)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_no_mangled_line_ends_in_a_traceback(
    files: Path, short: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    junk = st.sampled_from((None, -1, 0, 3, 66, 67, 10**9, "x", [], [3], [70], [1] * 9, [[1.0]], [[]], {}))
    at = data.draw(st.integers(0, len(short) - 1))
    made = [dict(line) for line in short]
    made[at][data.draw(st.sampled_from(sorted(made[at])))] = data.draw(junk)
    if data.draw(st.booleans()):
        for line in made:
            line.pop("taps", None)
    path = written(tmp_path_factory.mktemp("mangled"), made)
    try:
        assert run(files, path, None, members=1).verdict in ("parity", "divergence", "inconclusive")
    except UsageError as e:
        assert str(path) in str(e)


def test_acceptance_is_counted_as_each_engine_does_and_the_differences_are_named(files: Path, tmp_path: Path) -> None:
    made = lines(files, None, max_new=10)
    found = replay(written(tmp_path, made))
    accepted, rounds = sum(r["accepted"] for r in made[1:]), len(made) - 1
    counts = {a["engine"]: a for a in found.acceptance}
    assert {n: a["accepted"] for n, a in counts.items()} == dict.fromkeys(("muser", "strata", "mlxcel"), accepted)
    assert counts["strata"]["rounds"] == rounds + 1 and counts["strata"]["tokens"] == accepted + rounds + 1
    assert counts["mlxcel"]["rounds"] == rounds and any("bootstrap" in line for line in found.findings)


def test_a_shadow_runs_beside_the_target_s_own_text(files: Path) -> None:
    setup = Setup(files / "qwen3/target", PROMPT, 20, "model", files / "qwen3/drafter", "qwen3", verify_length=5)
    report, _ = compare(setup, members=0, shadowed=True)
    assert report.shadow is not None and report.shadow.rounds == 4 and len(report.shadow.hits) == 4
    with pytest.raises(UsageError, match="--shadow: drafter lookup has no model"):
        compare(Setup(files / "qwen3/target", PROMPT, 4, "lookup"), members=0, shadowed=True)


def test_the_command_line(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, lines(files, None, ("taps",), max_new=6))
    models = ["--target", str(files / "qwen3/target"), "--model", str(files / "qwen3/drafter"), "--family", "qwen3"]
    for args, status, told in (
        (models, 0, "drafts run again from the recorded features, 0 differ"),
        ([*models, "--require", "taps"], 0, "PARITY"),
        (["--require", "drafter"], 3, "required and not recorded: drafter"),
        (models[2:], 2, "name the target too"),
        (["--target", str(files / "laguna/target"), *models[2:]], 2, "the target is not this drafter's"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["replay", str(path), "--members", "2", *args])
        out = capsys.readouterr()
        assert ended.value.code == status and told in out.out + out.err


def test_a_trace_of_other_files_is_the_verdict(files: Path, tmp_path: Path) -> None:
    made = lines(files, None)
    mine = open_target(files / "qwen3/target").identity
    assert mine is not None
    made[0]["identity"] = {"target": {"elsewhere.safetensors": next(iter(mine.sha256.values()))}}
    assert run(files, written(tmp_path, made), None).verdict == "parity"
    made[0]["identity"] = {"target": {"elsewhere.safetensors": "0" * 64}}
    with pytest.raises(IdentityMismatch, match=r"identity.target: elsewhere.safetensors of SHA-256 0+ is not what was opened .*: another"):
        run(files, written(tmp_path, made), None)


def test_nothing_is_claimed_of_tokens_behind_a_change_of_placement(files: Path, tmp_path: Path) -> None:
    """Weights that move to another device round differently: near ties flip with no mistake anywhere. The rules hold all the same."""
    made = lines(files, None)
    made[0]["placement"] = {"expert_cache": 4283}
    made[1]["placement"] = {"expert_cache": 4283}
    for line in made[3:]:
        line["placement"] = {"expert_cache": 4100}
    # The pick of a rejected row: no rule of the round needs it.
    made[3]["picks"][-1] = (made[3]["picks"][-1] + 1) % 60
    report = run(files, written(tmp_path, made), None)
    assert report.moved.startswith("from round 2 on weights ran elsewhere (expert_cache 4283 against 4100)")
    assert report.verdict == "inconclusive" and report.compared == sum(len(line["window"]) for line in made[1:3])
    for line in made[1:]:
        line.pop("placement", None)
    report = run(files, written(tmp_path, made), None)
    assert report.verdict == "divergence" and not report.moved and report.picks[0].round == 2


def test_a_session_writes_what_it_is_known_by(files: Path, tmp_path: Path) -> None:
    target, drafter = files / "qwen3/target", files / "qwen3/drafter"
    out = tmp_path / "t.jsonl"
    options = ["--family", "qwen3", "--target", target, "--model", drafter, "--tokens", "6", "--members", "0", "--trace", out, "--quiet"]
    with pytest.raises(SystemExit):
        main(["greedy", *map(str, options)])
    said = json.loads(out.read_text().splitlines()[0])["identity"]
    assert set(said) == {"target", "drafter"} and said["target"] == dict(open_target(target).identity.sha256)
