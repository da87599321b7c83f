"""Bugs that were met, planted as they were: the report names stage, rows, heads and the mistake, from the saved dump alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oracle import arithmetic as arithmetics
from oracle.artifacts import make_artifact
from oracle.faults import parse as parse_fault
from oracle.ops import OPS
from oracle.readings import Faulty, Noise, Rounded, Stage
from oracle.recipes import Visible
from oracle.tensor import Tensor
from parity import render
from parity.case import window
from parity.comparing import compare_dump
from parity.explain import explain
from parity.explain.base import Suspect
from parity.faults.artifacts import Editable
from parity.judge import Judge
from parity.making import drafter_case, target_case
from parity.recording import record

F32 = arithmetics.named("f32")


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """24 query heads and 2 kv heads, as the drafter the staging bug was met in; a block of 7 rows at position 120."""
    root = tmp_path_factory.mktemp("wide")
    sizes = {"hidden": 48, "intermediate": 32, "heads": 24, "kv_heads": 2, "head_dim": 8, "vocab": 67, "block_size": 7, "mask_token_id": 66}
    drafter, target = make_artifact("qwen3", "tiny", "f32", root, seed=9, **sizes)
    return drafter_case(drafter, target, family="qwen3", context=120, block=7, seed=3)


def several(dump_folder, case, arithmetic, *specs):
    """A candidate with several mistakes at once, judged in local mode."""
    from dumps import DumpWriter, open_dump

    A = arithmetics.named(arithmetic)
    reading = Rounded(A)
    for spec in specs:
        reading = Faulty(reading, parse_fault(spec))
    with DumpWriter(dump_folder, case.describe(), {"candidate": arithmetic}) as writer:
        record(case, reading, writer, A)
    return compare_dump(case, open_dump(dump_folder), A, mode="local")


@pytest.mark.parametrize("arithmetic", ["f32", "bf16"])
def test_staged_positions_read_by_the_first_heads(wide, tmp_path, arithmetic):
    """The pinned buffer of positions was overwritten while its copy was pending: row 0's heads 2 to 13 rotated at pos + h // 2."""
    report = several(tmp_path / "d", wide, arithmetic, "rope.position:stage=draft.L1.q_rope,row=0,heads=2-13,offset=h//2")
    assert len(report.divergences) == 1
    d = report.first_divergence
    assert (d.stage, d.layer, d.extent.rows, d.extent.heads) == ("draft.L1.q_rope", 1, [0], list(range(2, 14)))
    named = d.explanations[0]
    assert named["kind"] == "rope.position"
    effective = named["parameters"]["positions"][0]
    assert effective["row"] == 0 and effective["position"] == 120
    assert effective["effective"] == [120 + (h // 2 if 2 <= h <= 13 else 0) for h in range(24)]
    text = render.text(report)
    assert "DIVERGENCE first at draft.L1.q_rope, step 1, row 0, heads 2-13" in text
    flat = " ".join(text.split())
    for head, offset in ((2, 1), (4, 2), (6, 3), (8, 4), (10, 5), (12, 6)):
        assert f"heads {head}-{head + 1} at pos+{offset}" in flat and f"{120 + offset} (heads {head}-{head + 1})" in flat
    assert "contiguous 2-13" in flat


def test_four_mistakes_at_once_each_with_its_own_name(drafter, tmp_path):
    """Two of them in different rows of one stage."""
    report = several(
        tmp_path / "d",
        replace(drafter, steps=drafter.steps[:3]),
        "f32",
        "linear.scale:stage=draft.L1.q_raw,row=3,factor=1.01",
        "rope.position:stage=draft.L1.q_rope,row=0,heads=2-5,offset=h//2",
        "rope.theta:stage=draft.L1.q_rope,row=3,factor=2",
        "norm.offset:stage=draft.L2.xn",
    )
    found = [(d.stage, d.extent.rows, d.explanations[0]["kind"] if d.explanations else None) for d in report.divergences]
    assert found == [
        ("draft.L1.q_raw", [3], "linear.scale"),
        ("draft.L1.q_rope", [0], "rope.position"),
        ("draft.L1.q_rope", [3], "rope.theta"),
        ("draft.L2.xn", [0, 1, 2, 3, 4, 5], "norm.offset"),
    ]


def test_two_mistakes_in_different_heads_of_all_rows(drafter, tmp_path):
    report = several(
        tmp_path / "d",
        replace(drafter, steps=drafter.steps[:3]),
        "f32",
        "linear.scale:stage=draft.L1.q_raw,heads=1,factor=1.01",
        "linear.scale:stage=draft.L1.q_raw,heads=4,factor=0.5",
    )
    found = [(d.extent.heads, d.explanations[0]["parameters"]["factor"]) for d in report.divergences]
    assert sorted(found) == [([1], 1.01), ([4], 0.5)]


def window_stage(context: int, window: int, rule: str = "W_LE") -> Stage:
    """The first attention of a block of 16 after ``context`` rows."""
    rng = np.random.default_rng(context)
    q_pos, k_pos = np.arange(context, context + 16), np.arange(context + 16)
    q, k, v = (
        Tensor(rng.standard_normal((n, h, 16)).astype(np.float32).astype(float), ("row", "head", "dim"))
        for n, h in ((16, 2), (len(k_pos), 1), (len(k_pos), 1))
    )
    visible = Visible(rule, False, window, q_pos, k_pos, context)
    return Stage("draft.L0.attn", OPS["attention"], (q, k, v), {"visible": visible, "scale": 0.25})


def with_window(stage: Stage, window: int) -> np.ndarray:
    wrong = replace(stage, params=stage.params | {"visible": replace(stage.params["visible"], window=window)})
    single = replace(wrong, args=tuple(Tensor(a.data.astype(np.float32), a.axes) for a in wrong.args))
    return Rounded(F32).apply(single).data.astype(float)


@pytest.mark.parametrize(
    ("context", "used", "first"),
    [
        (1018, 1024, 7),
        (2040, 32768, 9),
        pytest.param(2100, 1024, 0, marks=pytest.mark.slow),
        pytest.param(2100, 32768, 0, marks=pytest.mark.slow),
        pytest.param(2100, 1500, 0, marks=pytest.mark.slow),
    ],
)
def test_the_window_that_was_used_in_place_of_2048(context, used, first):
    """A cache that keeps 1,024 (or 32,768) rows: named as the window, with the first row that shows it, whatever the number."""
    stage = window_stage(context, 2048)
    y, c = Noise(F32).apply(stage), with_window(stage, used)
    where = Judge(F32, 10_000).judge(stage, y, c).ratio > 1
    assert np.flatnonzero(where.any((1, 2)))[0] == first
    found = explain(Judge(F32, 10_000), Suspect(stage, y, c, where))
    assert found[0].kind == "attention.window"
    if used < 2048:
        assert found[0].text == f"window {used} in place of 2048"
    else:
        assert "or wider (such as 32768), or none at all, in place of 2048" in found[0].text
    assert found[0].details[0].startswith(f"row {first} is the first whose cells change")


def test_two_hundred_rows_cannot_certify_the_window(tmp_path):
    """The fixture that blessed the bug: every row sees everything under 1,024, 2,048 and 32,768 alike."""
    stage = window_stage(200, 2048)
    for used in (1024, 32768):
        assert np.array_equal(with_window(stage, used), with_window(stage, 2048))
    sizes = {"hidden": 32, "intermediate": 32, "heads": 2, "kv_heads": 1, "head_dim": 16, "vocab": 67, "mask_token_id": 66, "window": 2048}
    model, target = make_artifact("muse-glimmer", "tiny", "f32", tmp_path / "m", seed=2, **sizes)
    report = several(tmp_path / "d", drafter_case(model, target, context=200, block=4, seed=1), "f32")
    assert report.verdict == "parity"
    from dumps import open_dump

    case = drafter_case(model, target, context=200, block=4, seed=1)
    required = compare_dump(case, open_dump(tmp_path / "d"), F32, mode="local", required=("window-1", "window+1"))
    assert required.exit_status == 3
    assert "this case cannot certify window-1, window+1" in render.headline(required)


@pytest.fixture(scope="module")
def widest(tmp_path_factory):
    """A layer of hidden width 6,656 fed rows of mean square 2, far above eps as in a real model; token 63's is a hundredth of that."""
    sizes = {"hidden": 6656, "intermediate": 16, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "vocab": 64, "eps": 1e-6}
    (model,) = make_artifact("llama", "tiny", "f32", tmp_path_factory.mktemp("widest"), seed=6, **sizes)
    file = Editable(model)
    rows = file.tensors["model.embed_tokens.weight"].rows.view(np.float32)
    rows *= np.sqrt(2 / np.square(rows).mean(1, keepdims=True))
    rows[63] /= 10
    file.close()
    return replace(target_case(model, prefill=16, seed=2), steps=(window(np.arange(16), 0),))


def test_a_wrong_eps_at_hidden_6656_under_a_sequential_sum(widest, tmp_path):
    """Small in every row, the same in all: no element and no row is beyond its own tolerance, and yet it is found, and named."""
    report = several(tmp_path / "d", widest, "f32-sequential", "norm.eps:factor=10,stage=target.L0.xn")
    assert [s.stage for s in report.stages if s.verdict != "agree"] == ["target.L0.xn"]
    stage = next(s for s in report.stages if s.stage == "target.L0.xn")
    assert stage.ratio <= 1 < stage.common and not stage.row_verdict
    d = report.first_divergence
    assert (d.stage, d.extent.rows, d.what) == ("target.L0.xn", list(range(16)), "small in every row, the same in all")
    named = d.explanations[0]
    assert named["kind"] == "norm.eps" and named["parameters"] == {"eps": 1e-5, "declared": 1e-6}


def test_what_is_common_to_all_rows_is_not_charged_to_the_one_that_shows_it(tmp_path, widest):
    """One row of small norm shows the wrong eps by itself: the others share it, and only with them is it explained."""
    case = replace(widest, steps=(window(np.where(np.arange(16) == 5, 63, np.arange(16)), 0),))
    d = several(tmp_path / "d", case, "f32-sequential", "norm.eps:factor=10,stage=target.L0.xn").first_divergence
    assert d.extent.rows == list(range(16)) and d.what == "small in most rows, the same in all"
    assert d.explanations[0]["kind"] == "norm.eps"
    alone = several(tmp_path / "one", case, "f32-sequential", "norm.eps:factor=10,stage=target.L0.xn,row=5").first_divergence
    assert alone.extent.rows == [5] and alone.explanations[0]["kind"] == "norm.eps"
