"""Healthy candidates never diverge: every family and role, every arithmetic that has a name, shapes and contexts at random."""

from __future__ import annotations

from pathlib import Path

import pytest

from oracle import arithmetic as arithmetics
from parity import candidates
from parity.calibrating import DRAWS, Tally, calibrate, healthy, markdown
from parity.candidates import Candidate

QUICK, AT_LENGTH = 10, 200
each = pytest.mark.parametrize("draw", DRAWS)


def order(draw: str) -> list[Candidate]:
    """All candidates, each draw beginning with others."""
    among = healthy()
    start = list(DRAWS).index(draw) * len(among) // len(DRAWS)
    return among[start:] + among[:start]


def runs(draw: str, count: int, root: Path) -> Tally:
    """``count`` runs at least, over as many cases as that takes."""
    tally, seed = Tally(), 0
    while tally.runs < count:
        calibrate(draw, [seed], root, tally, order(draw)[: count - tally.runs])
        seed += 1
    return tally


def check(tally: Tally) -> None:
    assert not tally.alarms, tally.alarms
    assert max(max(v) for v in tally.ratio.values()) <= 1.0


@each
def test_no_false_alarm(draw: str, tmp_path: Path) -> None:
    """With all draws a hundred runs."""
    assert len(DRAWS) * QUICK >= 100
    check(runs(draw, QUICK, tmp_path))


def test_the_quick_runs_meet_every_candidate_and_every_arithmetic() -> None:
    met = {c.name for draw in DRAWS for c in order(draw)[:QUICK]}
    assert met == {c.name for c in healthy()}
    devices = {arithmetic for library, arithmetic in candidates.LIBRARIES.items() if library != "cpu"}
    assert {c.spec for c in healthy()} == set(arithmetics.PRESETS) - devices


#: Runs that the rules once called divergences, and what of the rules it took.
ONCE_ALARMS = [
    ("laguna drafter", 17, "f32-pairwise"),  # a gate per head errs the same way in all rows that have it
    ("laguna drafter", 20, "f32-blocked"),  # and in a whole row
    ("qwen38-flash-next target", 11, "f16"),  # the spread of rows of one value, from four runs
    ("qwen38-flash-next target", 28, "bf16"),  # a row behind a relu, which no run moved
    ("dflash 2 drafter", 26, "transformers-bf16"),  # the spread of any row, from four runs
    ("qwen38-flash-next target", 77, "cpu"),  # a row of few sums has their tail
]


@pytest.mark.parametrize(("draw", "seed", "spec"), ONCE_ALARMS)
def test_what_was_a_false_alarm_is_none(draw: str, seed: int, spec: str, tmp_path: Path) -> None:
    tally = Tally()
    candidate = candidates.parse("cpu", "op") if spec == "cpu" else Candidate(spec, "numpy")
    calibrate(draw, [seed], tmp_path, tally, [candidate])
    assert tally.runs == tally.thinned == 1 and not tally.alarms


@pytest.mark.slow
@each
def test_no_false_alarm_at_length(draw: str, tmp_path: Path) -> None:
    """With all draws two thousand runs."""
    assert len(DRAWS) * AT_LENGTH >= 2000
    tally = runs(draw, AT_LENGTH, tmp_path)
    check(tally)
    assert {name for _, name in tally.counts} >= {c.name for c in healthy() if c.kind == "numpy"}


EXPECTED = {
    "muse-glimmer target": {"embed_norm", "post_attn_norm", "attn_gated", "logits"},
    "laguna target": {"router_scores", "expert_weights", "expert_down", "expert_out", "shared_out", "attn_gated"},
    "laguna drafter": {"tap_norm", "attn_gated"},
    "dspark drafter": {"markov_bias", "confidence", "markov_embed"},
    "dflash 2 drafter": {"attn_conv_in", "mlp_conv_out", "selector_scores", "candidates"},
    "qwen38-flash-next target": {"delta_state", "index_scores", "ple_conv", "router_scores", "hc_read"},
}


@pytest.mark.parametrize("draw", EXPECTED)
def test_the_draws_reach_the_parts_of_their_families(draw: str, tmp_path: Path) -> None:
    """The stages alone, without a run."""
    from parity.models import declared_stages

    found: set[str] = set()
    for seed in range(3):
        found |= {path.rpartition(".")[2] for (_, path), _, _ in declared_stages(DRAWS[draw](seed, tmp_path))}
    assert EXPECTED[draw] <= found


def test_the_table_names_every_alarm_and_stage() -> None:
    tally = Tally(alarms=["random 1, cpu: divergence at draft.L0.o (3 x)"])
    tally.counts["llama target", "cpu"] = 2
    tally.cases["llama target"].add("random 1")
    tally.ratio["cpu", "o"].append(0.5)
    tally.rms["cpu", "o"].append(0.9)
    tally.common["cpu", "o"].append(0.1)
    text = markdown(tally)
    assert "1 random small cases" in text and "2 runs" in text and "| llama target | 2 |" in text
    assert "1 false divergences" in text and "| `o` | 1 | 0.50 | 0.50 | 0.90 | 0.90 | 0.10 | - | - |" in text and "draft.L0.o" in text


def test_an_alarm_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate that rounds to bf16 and declares f32."""
    from parity import candidates

    monkeypatch.setattr(candidates, "declared", lambda candidate, text, case: arithmetics.named("f32"))
    tally = Tally()
    calibrate("llama target", [1], tmp_path, tally, [candidates.parse("bf16")])
    assert tally.runs == tally.thinned == 1 and len(tally.alarms) == 2
    assert all("divergence at target." in alarm for alarm in tally.alarms) and ", some stages: " in tally.alarms[1]


def test_the_second_report_is_of_a_part_of_the_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another part for every seed, and never all or nothing."""
    unseen: list[set[str]] = []
    monkeypatch.setattr(Tally, "add_thinned", lambda tally, name, case, report: unseen.append({u.split(".")[-1] for u in report.unseen}))
    calibrate("llama target", [1, 2], tmp_path, Tally(), [candidates.parse("f32")])
    assert len(unseen) == 2 and unseen[0] != unseen[1] and all(5 < len(names) < 20 for names in unseen)


def test_the_program_adds_its_cases_up_and_writes_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from parity import calibration

    one = Tally(alarms=["an alarm"])
    one.counts["llama target", "cpu"], one.cases["llama target"] = 2, {"random 1"}
    one.ratio["cpu", "o"].append(0.5)
    one.rms["cpu", "o"].append(0.9)
    one.common["cpu", "o"].append(0.1)
    both = Tally()
    both.merge(one)
    both.merge(one)
    assert both.runs == 4 and both.ratio["cpu", "o"] == [0.5, 0.5] and both.cases["llama target"] == {"random 1"} and len(both.alarms) == 2
    monkeypatch.setattr("parity.calibrating.runs.healthy", list)
    assert calibration.main(["--cases", "1", "--draw", "llama target", "--jobs", "1", "--out", str(tmp_path / "t.md")]) == 0
    assert "0 runs of healthy candidates" in (tmp_path / "t.md").read_text()
