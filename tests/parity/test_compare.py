"""The verdicts: healthy candidates agree, planted mistakes are found where they are, gaps and rubbish are said as such."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from dumps import DumpWriter, open_dump
from oracle import arithmetic as arithmetics
from oracle.faults import parse as parse_fault
from oracle.readings import Faulty, Rounded
from parity.case import append, propose
from parity.comparing import compare_dump
from parity.errors import UsageError
from parity.render import headline

ARITHMETICS = ("f32", "f32-sequential", "f32-pairwise", "f32-blocked", "bf16", "f16")
F32 = arithmetics.named("f32")


def rewrite(dump_path, out, change, *, case=None, provenance=None):
    """Copy a dump record by record through ``change(step, stage, array) -> array or None``."""
    dump = open_dump(dump_path)
    with DumpWriter(out, case or dump.case, provenance or dump.provenance) as writer:
        for step in dump.steps:
            for stage in dump.stages(step):
                record = dump.get(step, stage)
                array = change(step, stage, np.array(record.array()))
                if array is not None:
                    writer.put(step, stage, array, dtype=record.dtype, axes=record.axes)
    return open_dump(out)


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("which", ["drafter", "muse", "target"])
def test_healthy_candidates_agree_in_both_modes(judged, request, which, arithmetic):
    report = judged(request.getfixturevalue(which), arithmetic, mode="both")
    assert report.verdict == "parity", report.divergences[:2]
    assert not report.unseen and not report.extra and not report.consequences
    assert all(m.verdict == "agree" or m.gap < 1e-2 for m in report.margins)


FAULTS = {
    "rope.position:stage=draft.L1.q_rope,row=0,heads=2-3,offset=h//2": ("draft.L1.q_rope", [0], [2, 3]),
    "rope.theta:stage=draft.L0.k_rope,factor=1.01": ("draft.L0.k_rope", None, None),
    "rope.style:stage=draft.L2.q_rope": ("draft.L2.q_rope", None, None),
    "norm.eps:stage=draft.L1.xn,factor=1000": ("draft.L1.xn", None, None),
    "norm.offset:stage=draft.final_norm": ("draft.final_norm", None, None),
    "linear.scale:stage=draft.L0.mlp_up,factor=1.001": ("draft.L0.mlp_up", None, None),
    "linear.scale:stage=draft.L1.q_raw,factor=1.01,rows=1-2,heads=4": ("draft.L1.q_raw", [1, 2], [4]),
    "attention.scale:stage=draft.L1.attn": ("draft.L1.attn", None, None),
    "attention.causal:stage=draft.L0.attn": ("draft.L0.attn", None, None),
    "attention.cell:stage=draft.L2.attn,cell=1,rows=3": ("draft.L2.attn", [3], None),
}


@pytest.mark.parametrize("spec", FAULTS)
def test_a_planted_fault_is_found_at_its_stage_and_nowhere_else(judged, drafter, spec):
    report = judged(drafter, "f32", spec)
    stage, rows, heads = FAULTS[spec]
    assert {d.stage for d in report.divergences} == {stage}
    assert report.exit_status == 1
    if rows is not None:
        assert all(d.extent.rows == rows for d in report.divergences)
    if heads is not None:
        assert all(d.extent.heads == heads for d in report.divergences)


def test_the_window_edge_shows_in_the_rows_that_see_it(judged, muse):
    report = judged(muse, "f32", "attention.window:stage=draft.L0.attn,delta=-1")
    assert {d.stage for d in report.divergences} == {"draft.L0.attn"}


def test_bf16_local_sees_a_fault_that_cosine_does_not(judged, drafter):
    report = judged(drafter, "bf16", "linear.scale:stage=draft.L0.mlp_up,factor=1.004,rows=2")
    assert report.first_divergence.stage == "draft.L0.mlp_up" and report.first_divergence.extent.rows == [2]
    stage = next(s for s in report.stages if s.stage == "draft.L0.mlp_up" and s.verdict == "diverge")
    assert stage.info["cosine"] > 0.9999


def test_rolled_mode_alone_finds_what_was_not_recorded(dumped, drafter, tmp_path):
    path = dumped(drafter, "f32", "attention.scale:stage=draft.L0.attn,factor=1.05")
    hidden = rewrite(
        path, tmp_path / "sparse", lambda step, stage, a: a if stage.endswith(("final_norm", "logits", "pick", "taps", "embed")) else None
    )
    report = compare_dump(drafter, hidden, F32, mode="rolled")
    assert report.verdict == "divergence" and report.first_divergence.mode == "rolled"
    assert report.first_divergence.stage == "draft.final_norm"


def test_unrecorded_stages_flow_on_with_their_noise(dumped, drafter, tmp_path):
    path = dumped(drafter, "f32")
    sparse = rewrite(
        path,
        tmp_path / "sparse",
        lambda step, stage, a: a if stage.endswith(("h_attn", "h_mlp", "ctx", "k_rope", ".v", "logits")) else None,
    )
    report = compare_dump(drafter, sparse, F32, mode="local")
    assert report.verdict == "parity" and len(report.unseen) > 20
    path = dumped(drafter, "f32", "norm.offset:stage=draft.L1.xn", name="bad")
    sparse = rewrite(
        path, tmp_path / "worse", lambda step, stage, a: a if stage.endswith(("h_attn", "h_mlp", "ctx", "k_rope", ".v")) else None
    )
    report = compare_dump(drafter, sparse, F32, mode="local")
    assert report.first_divergence.stage in ("draft.L1.v", "draft.L1.k_rope")


def test_a_required_stage_that_is_missing_is_inconclusive(dumped, drafter, tmp_path):
    sparse = rewrite(dumped(drafter), tmp_path / "sparse", lambda step, stage, a: None if stage == "draft.L1.attn" else a)
    assert compare_dump(drafter, sparse, F32, mode="local").verdict == "parity"
    report = compare_dump(drafter, sparse, F32, mode="local", required=("draft.*.attn",))
    assert report.exit_status == 3 and report.missing == ["2:draft.L1.attn", "4:draft.L1.attn"]


def test_nothing_recorded_is_inconclusive(dumped, drafter, tmp_path):
    empty = rewrite(dumped(drafter), tmp_path / "none", lambda step, stage, a: None)
    report = compare_dump(drafter, empty, F32, mode="both")
    assert report.exit_status == 3 and "no stage" in report.notes[0]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_non_finite_values_get_a_coordinate_and_go_no_further(dumped, drafter, tmp_path, value):
    def spoil(step, stage, a):
        if (step, stage) == (2, "draft.L0.q_rope"):
            a[1, 2, 3] = value
        return a

    report = compare_dump(drafter, rewrite(dumped(drafter), tmp_path / "nan", spoil), F32, mode="local")
    assert [(d.stage, d.element) for d in report.divergences] == [("draft.L0.q_rope", (1, 2, 3))]
    assert next(s for s in report.stages if s.stage == "draft.L0.q_rope").verdict == "invalid"


def test_a_stage_of_the_wrong_shape_is_invalid(dumped, drafter, tmp_path):
    report = compare_dump(
        drafter,
        rewrite(dumped(drafter), tmp_path / "short", lambda step, stage, a: a[:-1] if stage == "draft.L1.o" else a),
        F32,
        mode="local",
    )
    assert {d.stage for d in report.divergences} == {"draft.L1.o"} and "shape" in report.divergences[0].what


def test_swapped_rows_of_a_structural_stage_are_seen_to_the_bit(dumped, drafter, tmp_path):
    def swap(step, stage, a):
        return a[::-1].copy() if (step, stage) == (2, "draft.L1.k_cells") else a

    report = compare_dump(drafter, rewrite(dumped(drafter), tmp_path / "swap", swap), F32, mode="local")
    assert report.first_divergence.stage == "draft.L1.k_cells" and report.first_divergence.oracle != report.first_divergence.candidate


def test_a_choice_its_own_logits_do_not_make_is_a_flip(dumped, drafter, tmp_path):
    def other(step, stage, a):
        return (a + 1) % 67 if stage == "draft.pick" and step == 2 else a

    report = compare_dump(drafter, rewrite(dumped(drafter), tmp_path / "flip", other), F32, mode="local")
    assert report.first_divergence.stage == "draft.pick" and "its own logits are largest" in report.first_divergence.what


def test_another_tie_rule_is_named_not_failed(dumped, drafter, tmp_path):
    state = {}

    def tie(step, stage, a):
        if stage == "draft.logits":
            top = a[0].argmax()
            a[0, 60] = a[0, top]
            state[step] = 60
        if stage == "draft.pick" and step in state:
            a[0] = max(60, a[0])
        return a

    report = compare_dump(drafter, rewrite(dumped(drafter), tmp_path / "tie", tie), F32, mode="local")
    assert any("takes the highest index" in m.rule for m in report.margins)
    assert all(d.stage == "draft.logits" for d in report.divergences)


def test_undeclared_bf16_storage_is_inferred_and_said(judged, drafter):
    report = judged(drafter, "bf16", under="f32")
    assert report.verdict == "divergence"
    assert any("representable in bf16" in note and "--arithmetic bf16" in note for note in report.notes)


def test_truncated_stores_are_not_taken_for_rounding(dumped, drafter):
    path = dumped(drafter, "bf16,truncate=1")
    assert compare_dump(drafter, open_dump(path), arithmetics.named("bf16"), mode="local").verdict == "divergence"
    assert compare_dump(drafter, open_dump(path), arithmetics.named("bf16,truncate=1"), mode="local").verdict == "parity"


def test_activation_rounding_is_followed_when_declared_and_found_when_not(dumped, drafter):
    path = dumped(drafter, "f32,use=*.q_raw:bf16+*.mlp_down:bf16")
    assert (
        compare_dump(drafter, open_dump(path), arithmetics.named("f32,use=*.q_raw:bf16+*.mlp_down:bf16"), mode="both").verdict == "parity"
    )
    report = compare_dump(drafter, open_dump(path), F32, mode="local")
    assert {d.stage.rpartition(".")[2] for d in report.divergences} == {"q_raw", "mlp_down"}


def test_all_independent_divergences_are_reported_in_causal_order(dumped, drafter):
    first = Faulty(Rounded(F32), parse_fault("linear.scale:stage=draft.L2.v,factor=1.001"))
    path = dumped(drafter, fault="linear.scale:stage=draft.L0.o,factor=1.001", reading=first)
    report = compare_dump(drafter, open_dump(path), F32, mode="both")
    assert [(d.step, d.stage) for d in report.divergences] == [(2, "draft.L0.o"), (2, "draft.L2.v"), (4, "draft.L0.o"), (4, "draft.L2.v")]
    assert all(d.mode == "local" for d in report.divergences) and all(c.mode == "rolled" for c in report.consequences)


def test_that_a_dump_is_of_another_case_is_the_verdict(dumped, drafter, tmp_path):
    dump = open_dump(dumped(drafter))
    other = replace(drafter, steps=(append(drafter.steps[0].array, 0), propose([1, 66], 7)))
    report = compare_dump(other, dump, F32)
    assert (report.verdict, report.exit_status, report.stages) == ("identity-mismatch", 1, [])
    assert "not the same run" in headline(report) and report.to_json()["findings"][0]["kind"] == "identity-mismatch"
    changed = rewrite(
        dump.path, tmp_path / "identity", lambda s, n, a: a, case=dump.case | {"identity": dict.fromkeys(dump.case["identity"], "0" * 64)}
    )
    assert "another artifact" in headline(compare_dump(drafter, changed, F32))


def test_an_incomplete_dump_is_refused(dumped, drafter, tmp_path):
    path = dumped(drafter)
    lines = (path / "manifest.jsonl").read_text().splitlines(keepends=True)
    torn = tmp_path / "torn"
    shutil.copytree(path, torn)
    (torn / "manifest.jsonl").write_text("".join(lines[:-1]))
    with pytest.raises(UsageError, match="incomplete"):
        compare_dump(drafter, open_dump(torn), F32)


def test_extra_stages_are_listed_and_harmless(dumped, drafter):
    path = dumped(drafter)
    dump = open_dump(path)
    assert "draft.pick" in dump.stages(2)
    with DumpWriter(path.parent / "more", dump.case, dump.provenance) as writer:
        for step in dump.steps:
            for stage in dump.stages(step):
                writer.put(step, stage, np.array(dump.get(step, stage).array()), dtype=dump.get(step, stage).dtype)
        writer.put(2, "draft.L0.scores", np.zeros((3, 4), np.float32))
    report = compare_dump(drafter, open_dump(path.parent / "more"), F32, mode="local")
    assert report.verdict == "parity" and report.extra == ["2:draft.L0.scores"]
