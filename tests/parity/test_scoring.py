"""The score counts what it says: found, placed, named, missed above and below the information limit; and it can fail."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from oracle import arithmetic as arithmetics
from oracle.readings import Rounded
from parity import scoring, scoring_calls, scoring_runs
from parity.faults.planting import record_planted
from parity.local import Local
from parity.memory import MemoryDump
from parity.recording import record
from parity.scoring_calls import Outcome, calls_of, places, planted_calls
from parity.scoring_cases import CASES, score_case
from parity.scoring_rules import RULES, seen_by
from parity.scoring_table import markdown

F32 = arithmetics.named("f32")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("score")


def healthy(case, arithmetic=F32):
    dump = MemoryDump(case.describe(), {})
    record(case, Rounded(arithmetic), dump, arithmetic)
    return dump


@pytest.fixture(scope="module")
def planted(root: Path) -> list[Outcome]:
    case = score_case("laguna", 0, root)
    return list(planted_calls(case, healthy(case), Rounded(F32), F32, "f32", 0))


def test_everything_above_the_limit_is_found_at_its_own_stage_rows_and_heads(planted):
    above = [o for o in planted if o.above]
    assert len(above) > 80 and len({o.kind for o in above}) > 45
    assert not [o.spec for o in above if not (o.found and o.stage and o.place)]


def test_the_verdict_on_one_call_is_the_first_divergence_of_the_whole_run(planted, root):
    """What makes the one-pass score honest: a sample of its faults, run to the end, diverge first there, and nowhere else."""
    case = score_case("laguna", 0, root)
    sample = list(scoring_runs.sampled_calls(case, Rounded(F32), "f32", planted, 4, 1))
    assert len(sample) == 4 and all(alone for _, alone in sample), sample


def test_a_judge_that_sees_nothing_scores_nothing(root, monkeypatch):
    """The score can fail: every fault above the limit is a miss, and the document lists it."""
    monkeypatch.setattr(Local, "_diverged", lambda self, *_: None)
    monkeypatch.setattr(Local, "_invalid", lambda self, *_: None)
    case = score_case("llama target", 0, root)
    plans = scoring_calls.places
    monkeypatch.setattr(scoring_calls, "places", lambda calls, seed: [p for p in plans(calls, seed) if p.kind.startswith("rope.")])
    outcomes = list(planted_calls(case, healthy(case), Rounded(F32), F32, "f32", 0))
    missed = [o for o in outcomes if o.above and not o.found]
    assert len(missed) > 5
    text = markdown(outcomes, [], [], 1)
    assert f"`{missed[0].spec}`, {missed[0].factor:.3g} times" in text and "found 0.0 %" in text


def test_a_fault_too_small_to_tell_from_rounding_is_below_the_limit(root, monkeypatch):
    plans = scoring_calls.places
    monkeypatch.setattr(scoring_calls, "places", lambda calls, seed: [p for p in plans(calls, seed) if p.kind == "linear.scale"])
    case, A = score_case("llama target", 0, root), arithmetics.named("bf16")
    outcomes = {o.spec: o for o in planted_calls(case, healthy(case, A), Rounded(A), A, "bf16", 0)}
    assert any(not o.above and o.factor < 1.5 for o in outcomes.values() if "1.0001" in o.spec)
    assert all(o.found for o in outcomes.values() if "factor=2," in o.spec)


def test_places_are_seeded_and_many(root):
    calls = calls_of(score_case("laguna", 0, root))
    one, again, other = (places(calls, seed) for seed in (0, 0, 1))
    assert [p.specs for p in one] == [p.specs for p in again] != [p.specs for p in other]
    texts = " ".join(s for p in one for s in p.specs.values())
    assert "rows=" in texts and "heads=" in texts and "draft.L1." in texts


STEPS = ("tap.layer:delta=1", "tap.order:how=interleaved", "anchor.layout:how=shifted", "append.start:delta=1", "context.crop:delta=-1")
STEPS += ("tap.row:by=-1", "tap.residual", "chunk.boundary:row=first")
OTHERS = ("artifact.permuted:how=pairs", "artifact.config:key=theta,factor=0.1", "dump.rows", "dump.layout", "dump.missing")


def test_case_artifact_and_dump_faults_are_found_where_the_oracle_says(root, monkeypatch):
    monkeypatch.setattr(scoring_runs, "specs", lambda case, types: iter((*STEPS, *OTHERS)))
    case = score_case("qwen3", 0, root)
    outcomes = list(scoring_runs.planted_runs(case, Rounded(F32), "f32", root / "scratch", ("all",)))
    assert len(outcomes) == len(STEPS) + len(OTHERS)
    assert not [o for o in outcomes if not (o.above and o.found and o.stage and o.place and o.named == 1)]


def test_a_recurrent_state_that_is_not_taken_back_is_found(root, monkeypatch):
    texts = ("state.stale", "state.rollback:delta=1", "state.rollback:delta=-1")
    monkeypatch.setattr(scoring_runs, "specs", lambda case, types: iter(texts))
    case = score_case("qwen38-flash-next target", 0, root)
    outcomes = list(scoring_runs.planted_runs(case, Rounded(F32), "f32", root / "scratch", ("all",)))
    assert {o.spec for o in outcomes if o.above and o.found and o.stage and o.place} == set(texts)
    assert all(o.named == 1 and o.said.partition(":")[0] == o.kind for o in outcomes)


def test_a_smaller_window_of_a_ring_is_named_by_the_cells_it_has_lost(root, monkeypatch):
    monkeypatch.setattr(scoring_runs, "specs", lambda case, types: iter(("artifact.config:key=window,factor=0.5",)))
    case = score_case("muse-glimmer, ring with a sink", 0, root)
    (found,) = scoring_runs.planted_runs(case, Rounded(F32), "f32", root / "scratch", ("all",))
    assert found.stage and found.place and found.named == 1
    assert found.said.startswith("attention.window: the cache keeps 5 cells fewer than the window has, beside a sink of 2: cells 2-6 of 20")


def test_a_value_that_is_not_finite_is_one_divergence_however_far_it_spreads(root):
    """What is computed from it is its consequence, through caches and streams too."""
    for name, stage in (("qwen38-flash-next target", "target.L1.mlp_hc.inject_raw"), ("qwen3", "draft.L0.k_raw")):
        case, dump = score_case(name, 0, root), MemoryDump({}, {})
        record_planted(case, Rounded(F32), f"values.nan:value=nan,stage={stage}", dump, F32, root)
        report = scoring_runs.judged(case, dump, "f32")
        assert {d.stage for d in report.divergences} == {stage} and len(report.consequences) > 50
        assert all(d.what or d.ratio > 1 for d in report.consequences)


def test_a_value_that_is_not_finite_in_the_dump_only_hides_nothing_behind_it(root):
    case = score_case("qwen3", 0, root)
    dump = healthy(case)
    first, second = (dump.get(2, s).array().copy() for s in ("draft.L0.o", "draft.L1.mlp_down"))
    first[0, 0], second[1] = np.nan, 1.5 * second[1]
    dump.replace(2, "draft.L0.o", first, "f32")
    dump.replace(2, "draft.L1.mlp_down", second, "f32")
    report = scoring_runs.judged(case, dump, "f32")
    assert [d.stage for d in report.divergences if d.stage != "draft.L1.h_mlp"] == ["draft.L0.o", "draft.L1.mlp_down"]
    assert {d.stage for d in report.consequences} <= {"draft.L0.h_attn"}


def test_cosine_does_not_see_a_scale_of_one_per_mille(judged, drafter):
    report = judged(drafter, "f32", "linear.scale:stage=draft.L1.o,factor=1.001")
    seen = seen_by(report.stages, "f32")
    assert report.verdict == "divergence" and RULES[0] not in seen and RULES[1] not in seen and RULES[2] in seen


def test_the_table_counts(planted):
    text = markdown(planted, [("x", True)], ["a case, f32: divergence"], 3)
    above = sum(o.above for o in planted)
    assert f"| f32 | {above} | {len(planted) - above} | " in text
    assert "false alarms: 1" in text and "* false alarm: a case, f32: divergence" in text
    assert {name for name in CASES if f"| {name} |" in text} == {"laguna"}


def test_what_was_done_is_kept_and_gone_on_from(tmp_path, monkeypatch):
    made = scoring.Part([Outcome("laguna", "f32", "norm.eps", "norm.eps:factor=10", 9.0, named=1)], [("x", True)], [], 1)
    monkeypatch.setattr(scoring, "part", lambda name, candidate, seed: made)
    first = scoring.scored(("laguna",), ("f32",), 1, 1, tmp_path)
    monkeypatch.setattr(scoring, "part", lambda *_: pytest.fail("done before"))
    assert scoring.scored(("laguna",), ("f32",), 1, 1, tmp_path) == first and first[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_whole_score_has_no_miss_and_no_alarm(name):
    for candidate in ("f32", "cpu"):
        made = scoring.part(name, candidate, 1, ("call", "artifact"))
        assert not made.alarms
        assert not [o.spec for o in made.outcomes if o.above and not o.found]
        exact = np.mean([o.stage and o.place for o in made.outcomes if o.above])
        assert exact >= 0.99, [o.spec for o in made.outcomes if o.above and not (o.stage and o.place)]


@pytest.mark.parametrize(
    ("kind", "text"), [("storage", "dtype=bf16,how=cut"), ("values.words", "stored=bf16"), ("values.scale", "factor=1.01")]
)
def test_what_is_stored_in_bf16_after_the_mistake_is_found_and_named(root, monkeypatch, kind, text):
    """A mistake changes the value before it is stored: a stored one lies on the grid already, and a cut would be no mistake at all."""
    plans = scoring_calls.places
    monkeypatch.setattr(scoring_calls, "places", lambda calls, seed: [p for p in plans(calls, seed) if (p.kind, p.text) == (kind, text)])
    case, A = score_case("llama target", 0, root), arithmetics.named("bf16")
    (outcome,) = planted_calls(case, healthy(case, A), Rounded(A), A, "bf16", 0)
    assert outcome.above and outcome.found and outcome.stage and outcome.place and outcome.named == 1


def test_permuted_rows_beside_a_bias_are_named_in_bf16(root, monkeypatch):
    """Without the bias, what was stored has columns that storage made alike: they are paired as a whole."""
    monkeypatch.setattr(scoring_runs, "specs", lambda case, types: iter(("artifact.permuted:how=pairs",)))
    case, reading = score_case("qwen3", 0, root), Rounded(arithmetics.named("bf16"))
    (outcome,) = scoring_runs.planted_runs(case, reading, "bf16", root / "permuted", ("artifact",))
    assert outcome.found and outcome.named == 1, outcome.said
