"""`parity greedy` and `parity replay`: healthy rounds pass, every planted bug of the round loop is found and named by both."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle.artifacts import make_artifact
from oracle.models import open_target
from parity.cli import main
from parity.errors import UsageError
from parity.speculating.bugs import BUGS
from parity.speculating.checks import CHECKS
from parity.speculating.foreign import read
from parity.speculating.greedy import GreedyReport, compare
from parity.speculating.replay import check, replay
from parity.speculating.setup import Setup

SMALL = {"hidden": 32, "intermediate": 32, "heads": 4, "kv_heads": 2, "head_dim": 8, "vocab": 67}
PROMPT = tuple(int(i) for i in np.random.default_rng(3).integers(0, 60, 11))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pairs")
    make_artifact("qwen3", "tiny", "f32", root / "qwen3", seed=5, **SMALL, block_size=6, mask_token_id=66)
    sliding = {"layers": 3, "experts": 4, "experts_per_token": 2, "moe_intermediate": 16, "window": 6}
    make_artifact("laguna", "tiny", "f32", root / "laguna", seed=6, role="target", **SMALL, **sliding)
    return root


def setup(files: Path, family: str, drafter: str, **changes) -> Setup:
    path = files / "qwen3/drafter" if drafter == "model" else None
    base = {"max_new": 16, "drafter": drafter, "drafter_path": path, "verify_length": 5, "accepts": (0, 2, 1, None)}
    base |= {"family": "qwen3"} if drafter == "model" else {"schedule": "mlxcel"}
    return Setup(files / family / "target", **({"prompt": PROMPT} | base | changes))


def run(files: Path, family: str, drafter: str, tmp_path: Path, **changes) -> tuple[GreedyReport, Path]:
    report, trace = compare(setup(files, family, drafter, **changes), members=2)
    (tmp_path / "trace.jsonl").write_text(trace.lines())
    return report, tmp_path / "trace.jsonl"


@pytest.mark.parametrize(
    ("family", "drafter"), [("qwen3", "model"), ("qwen3", "oracle"), ("laguna", "oracle"), ("laguna", "lookup"), ("laguna", "random")]
)
def test_healthy_rounds_are_parity(files: Path, tmp_path: Path, family: str, drafter: str):
    report, path = run(files, family, drafter, tmp_path)
    assert report.verdict == "parity" and report.identical and not report.broken and report.explanation == ""
    assert report.rows.compared == 15 and report.rows.ratio < 1
    found = replay(path, open_target(files / family / "target"), members=2)
    assert found.verdict == "parity" and not found.violations and not found.picks and found.compared


@pytest.mark.parametrize("kind", ("dense", "saving-ring", "buffered-tight", "ring-tight"))
def test_every_sound_cache_gives_the_target_s_text(files: Path, tmp_path: Path, kind: str):
    assert run(files, "laguna", "oracle", tmp_path, cache=kind)[0].verdict == "parity"


WHERE = {
    name: ("qwen3", "model") if name in ("proposals.row", "context.proposals", "context.first") else ("laguna", "oracle") for name in BUGS
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found_and_named_by_greedy_and_by_replay(files: Path, tmp_path: Path, name: str):
    bug = BUGS[name]
    family, drafter = WHERE[name]
    # A bonus found by value needs a repeated token in the window.
    prompt = (7,) * 11 if name == "bonus.by-value" else PROMPT
    report, path = run(files, family, drafter, tmp_path, plant=name, prompt=prompt, max_new=24)
    assert report.verdict == "divergence"
    assert bug.check in report.explanation, report.explanation
    target = open_target(files / family / "target")
    found = replay(path, target, members=2) if name != "proposals.row" else check(_with_logits(files, name, prompt))
    assert found.verdict == "divergence" and bug.check in found.by_check, found.by_check
    assert found.violations[0].round <= 6 and found.explanation == bug.about


def _with_logits(files: Path, name: str, prompt: tuple[int, ...]):
    from parity.speculating.arms import arms
    from parity.speculating.foreign import of_trace

    return of_trace(arms(setup(files, *WHERE[name], plant=name, prompt=prompt)).trace)


def test_the_text_survives_a_bad_draft_and_not_a_bad_rollback(files: Path, tmp_path: Path):
    for name, same in (("window.zeros", True), ("window.slot", True), ("crop.off-by-one", False), ("rollback.none", False)):
        assert run(files, "laguna", "oracle", tmp_path, plant=name, max_new=24)[0].identical is same, name


def test_an_acceptance_floor_can_be_required(files: Path):
    ahead = setup(files, "laguna", "oracle", accepts=(None,))
    for floor, verdict in ((0.99, "parity"), (1.0, "parity")):
        assert compare(ahead, members=2, floor=floor)[0].verdict == verdict
    low = compare(setup(files, "laguna", "random"), members=0, floor=0.5)[0]
    assert low.verdict == "divergence" and "below the required 0.5" in low.broken[-1]


def test_gates_and_their_findings_are_reported(files: Path):
    three = compare(setup(files, "laguna", "random", schedule="muser", verify_length=3, gate="windowed", max_new=40), members=0)[0]
    assert any("the gate can never close" in line for line in three.findings) and three.identical
    seven = compare(setup(files, "laguna", "random", schedule="muser", verify_length=7, gate="latch", max_new=40), members=0)[0]
    assert any("the latch gate closed" in line for line in seven.findings) and seven.identical


@pytest.mark.parametrize("candidate", ("f32", "bf16"))
def test_a_candidate_s_own_arithmetic_is_judged_by_its_own_noise(files: Path, candidate: str):
    report = compare(setup(files, "laguna", "oracle", candidate=candidate, accepts=(None, 1)), members=3)[0]
    assert report.verdict == "parity", report.broken
    assert all(d.verdict == "tie" for d in report.differences)


def test_a_tie_is_told_from_a_divergence():
    from parity.speculating.noise import RowNoise

    noise = RowNoise(np.array([[1.0, 1.0 - 1e-6, 0.0]]), np.random.default_rng(0).normal(0, 1e-6, (4, 1, 3)).astype(np.float32), 1.0)
    assert noise.tie(0, 0, 1)[2] and not noise.tie(0, 0, 2)[2]


# Traces of other engines.


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def good(files: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    return lines(run(files, "laguna", "oracle", tmp_path_factory.mktemp("good"))[1])


def written(tmp_path: Path, made: list[dict]) -> Path:
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in made))
    return tmp_path / "t.jsonl"


MUTATIONS = {
    "anchor": lambda r: r | {"anchor": r["anchor"] + 1},
    "position": lambda r: r | {"position": r["position"] + 1},
    "accepted": lambda r: r | {"accepted": r["accepted"] + 1},
    "bonus": lambda r: r | {"bonus": (r["bonus"] + 1) % 67},
    "emitted": lambda r: r | {"emitted": [*r["emitted"][:-1], 66]},
    "context.rows": lambda r: r | {"context": [i + 1 for i in r["context"]]},
    "context.position": lambda r: r | {"context_start": r["context_start"] + 1},
    "crop": lambda r: r | {"target_rows": [n + 1 for n in r["target_rows"]]},
    "rollback": lambda r: r | {"target_rows": [r["target_rows"][0] + 2, *r["target_rows"][1:]]},
    "window.filled": lambda r: r | {"window": r["window"][:1] + [0] * (len(r["window"]) - 1), "proposals": [*r["proposals"][:-1], 5]},
    "picks": lambda r: r | {"target_logits": [{"ids": [p, 66], "logits": [0.0, 1.0]} for p in r["picks"]]},
    "proposals": lambda r: r | {"draft_logits": [{"ids": [p, 66], "logits": [0.0, 1.0]} for p in r["proposals"]]},
    "block": lambda r: r | {"block": [r["anchor"], 1]},
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_check_can_fail_and_is_named_with_its_round(good: list[dict], tmp_path: Path, name: str):
    made = [*good[:3], MUTATIONS[name](good[3]), *good[4:]]
    found = replay(written(tmp_path, made))
    assert name in {v.check for v in found.violations if v.round == 2}, found.violations
    assert found.exit_status == 1 and name in CHECKS


def test_what_was_not_recorded_is_inconclusive_when_required(good: list[dict], tmp_path: Path):
    bare = [{k: v for k, v in line.items() if k not in ("picks", "context", "target_rows")} for line in good]
    assert replay(written(tmp_path, bare)).exit_status == 0
    for name in ("context.rows", "crop", "accepted", "target"):
        found = replay(tmp_path / "t.jsonl", required=[name])
        assert found.exit_status == 3 and found.missing == [name]
    with pytest.raises(UsageError, match="--require nonsense: expected one of"):
        replay(tmp_path / "t.jsonl", required=["nonsense"])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "expected a header with schema"),
        ("{}\n", "expected a header with schema"),
        ("nonsense\n", "not JSON"),
        ('{"schema": "dflash-rounds/1"}\n', "a header and no round"),
        ('{"schema": "dflash-rounds/1"}\n[]\n', "expected a JSON object, found list"),
        ('{"schema": "dflash-rounds/1"}\n{"position": 1}\n', "anchor: missing"),
        ('{"schema": "dflash-rounds/1", "layout": "x"}\n', "layout: expected fill_in or predict_next"),
        ('{"schema": "dflash-rounds/1"}\n{"position": "1"}\n', "position: expected a whole number"),
        (
            '{"schema": "dflash-rounds/1"}\n{"position": 1, "anchor": 1, "accepted": 0, "bonus": 1, "proposals": [], "window": []}\n',
            "expected at least the anchor",
        ),
    ],
)
def test_a_file_that_is_no_trace_is_refused_by_line(tmp_path: Path, capsys, text: str, told: str):
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(SystemExit) as status:
        main(["replay", str(tmp_path / "t.jsonl")])
    assert status.value.code == 2 and told in capsys.readouterr().err


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_mangled_line_ends_in_a_traceback(good: list[dict], tmp_path_factory: pytest.TempPathFactory, data):
    junk = st.sampled_from((None, True, -1, 10**12, 1.5, "x", [], [1, "x"], {}, [[1.0]], float("nan")))
    at = data.draw(st.integers(0, len(good) - 1))
    key = data.draw(st.sampled_from(sorted(good[at])))
    path = written(tmp_path_factory.mktemp("mangled"), [*good[:at], good[at] | {key: data.draw(junk)}, *good[at + 1 :]])
    try:
        assert replay(path).verdict in ("parity", "divergence", "inconclusive")
    except UsageError as e:
        assert str(path) in str(e)


def test_recorded_logits_keep_their_ties(tmp_path: Path, good: list[dict]):
    """Another id with the same recorded logit is the engine's tie rule, not a wrong choice."""
    tied = good[3] | {"target_logits": [{"ids": [p, 66], "logits": [1.0, 1.0]} for p in good[3]["picks"]]}
    assert replay(written(tmp_path, [*good[:3], tied, *good[4:]])).verdict == "parity"
    assert read(tmp_path / "t.jsonl").rounds[2].target_logits[0].pick == good[3]["picks"][0]


def test_the_command_line(files: Path, tmp_path: Path, capsys):
    base = ["greedy", "--target", str(files / "laguna/target"), "--engine", "mlxcel", "--verify", "5", "--tokens", "10", "--members", "2"]
    trace, told = tmp_path / "rounds.jsonl", tmp_path / "report.json"
    with pytest.raises(SystemExit) as status:
        main([*base, "--trace", str(trace), "--json", str(told)])
    assert status.value.code == 0 and capsys.readouterr().out.startswith("PARITY: all 10 tokens are the target's own")
    body = json.loads(told.read_text())
    assert body["schema"] == "dflash-parity-greedy/1" and body["verdict"] == "parity" and body["geometry"]["drafts"] == 4
    with pytest.raises(SystemExit) as status:
        main(["replay", str(trace), "--json", "-"])
    assert status.value.code == 0 and json.loads(capsys.readouterr().out)["verdict"] == "parity"
    with pytest.raises(SystemExit) as status:
        main([*base, "--plant", "window.zeros", "--quiet"])
    assert status.value.code == 1 and capsys.readouterr().out.count("\n") == 1


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--verify", "1"], "verify length 1: mlxcel takes"),
        (["--engine", "other"], "--engine other: expected one of"),
        (["--plant", "nothing"], "--plant nothing: expected one of"),
        (["--cache", "paged"], "--cache: cache 'paged'"),
        (["--accepts", "a"], "--accepts a: expected"),
        (["--drafter", "model"], "name the drafter"),
        (["--candidate", "module:function"], "record its rounds and use parity replay"),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(files: Path, capsys, more: list[str], told: str):
    base = ["greedy", "--target", str(files / "laguna/target"), "--engine", "mlxcel", "--tokens", "2", "--members", "0"]
    with pytest.raises(SystemExit) as status:
        main([*base, *more])
    err = capsys.readouterr().err
    assert status.value.code == 2 and told in err and err.count("\n") == 1
