"""A planted mistake is named, with its parameters; what does not explain is not printed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oracle import policies
from oracle.arithmetic import named
from oracle.ops import OPS
from oracle.readings import Noise, Rounded, Stage
from oracle.tensor import Tensor
from oracle.weights import Weight
from parity import render
from parity.explain import explain
from parity.explain.base import Suspect
from parity.judge import Judge

F32 = named("f32")
ROW, HEADS = ("row", "dim"), ("row", "head", "dim")

FAULTS = {
    "rope.position:stage=draft.L1.q_rope,row=0,heads=2-5,offset=h//2": ("rope.position", "row 0: heads 2-3 at pos+1, heads 4-5 at pos+2"),
    "rope.position:stage=draft.L2.k_rope,offset=-1": ("rope.position", "at pos-1"),
    "rope.theta:stage=draft.L0.k_rope,factor=1.01": ("rope.theta", "theta 10100 in place of 10000"),
    "rope.theta:stage=draft.L0.q_rope,factor=50": ("rope.theta", "theta 500000 in place of 10000"),
    "rope.style:stage=draft.L2.q_rope": ("rope.style", "interleaved, not neox"),
    "norm.eps:stage=draft.L1.xn,factor=1000": ("norm.eps", "eps 0.001 in place of 1e-06"),
    "norm.offset:stage=draft.final_norm": ("norm.offset", "1 + w"),
    "linear.scale:stage=draft.L0.mlp_up,factor=1.001": ("linear.scale", "times 1.001"),
    "attention.scale:stage=draft.L1.attn,factor=1.3": ("attention.scale", "(1.3 times)"),
    "attention.scale:stage=draft.L1.attn,factor=2": ("attention.scale", "doubled"),
    "attention.causal:stage=draft.L0.attn": ("attention.causal", "bidirectional"),
    "attention.cell:stage=draft.L2.attn,cell=3": ("attention.cell", "cell 3 (position 3) not seen"),
}


@pytest.mark.parametrize("spec", FAULTS)
def test_a_fault_of_the_catalogue_is_named_first(judged, drafter, spec):
    report = judged(drafter, "f32", spec)
    kind, text = FAULTS[spec]
    for d in report.divergences:
        assert d.explanations and d.explanations[0]["kind"] == kind and text in d.explanations[0]["text"], d.explanations
    assert text in render.text(report)


@pytest.mark.parametrize(
    ("delta", "text"), [("-1", "window 8 in place of 9"), ("1", "window 10 in place of 9"), ("9", "window 18 in place of 9")]
)
def test_the_window_that_was_used_is_named(judged, muse, delta, text):
    report = judged(muse, "f32", f"attention.window:stage=draft.L0.attn,delta={delta}")
    assert any(text in e["text"] for e in report.first_divergence.explanations)


@pytest.mark.parametrize("spec", [s for s in FAULTS if "1.01" not in s and "1.001" not in s and "1.3" not in s])
def test_bf16_storage_still_names_a_discrete_mistake(judged, drafter, spec):
    report = judged(drafter, "bf16", spec)
    assert report.first_divergence.explanations[0]["kind"] == FAULTS[spec][0]


def stage_of(op: str, *args: object, path: str = "draft.L0.x", **params: object) -> Stage:
    return Stage(path, OPS[op], args, params)


def t(rng: np.random.Generator, *shape: int) -> Tensor:
    return Tensor(rng.standard_normal(shape).astype(np.float32).astype(np.float64), HEADS if len(shape) == 3 else ROW)


def suspect(stage: Stage, c: np.ndarray) -> Suspect:
    y = Noise(F32).apply(stage)
    verdict = Judge(F32, 10_000).judge(stage, y, c)
    where = verdict.ratio > 1
    assert where.any(), "the planted mistake must diverge"
    return Suspect(stage, y, c, where)


def f32_of(stage: Stage) -> np.ndarray:
    single = replace(stage, args=tuple(Tensor(a.data.astype(np.float32), a.axes) if isinstance(a, Tensor) else a for a in stage.args))
    return Rounded(F32).apply(single).data.astype(np.float64)


def texts(stage: Stage, c: np.ndarray) -> list[str]:
    return [f"{e.kind}: {e.text}" for e in explain(Judge(F32, 10_000), suspect(stage, c))]


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def test_a_transposed_weight(rng):
    w = rng.standard_normal((16, 16))
    right, wrong = (stage_of("linear", t(rng, 5, 16), Weight.of(a, ("dim", "in"), "f32")) for a in (w, w.T))
    assert texts(right, f32_of(replace(wrong, args=(right.args[0], wrong.args[1]))))[0] == "linear.transposed: the weight transposed"


def test_a_missing_bias(rng):
    x, w, b = (
        t(rng, 5, 16),
        Weight.of(rng.standard_normal((8, 16)), ("dim", "in"), "f32"),
        Weight.of(rng.standard_normal(8), ("dim",), "f32"),
    )
    assert texts(stage_of("linear", x, w, b), f32_of(stage_of("linear", x, w)))[0] == "linear.bias: the bias left out"


def test_swapped_halves_and_permuted_features(rng):
    stage = stage_of("linear", t(rng, 5, 16), Weight.of(rng.standard_normal((12, 16)), ("dim", "in"), "f32"))
    assert "the halves swapped" in texts(stage, np.roll(f32_of(stage), 6, 1))[0]
    order = np.array([0, 2, 1, *range(3, 12)])
    assert "first: 1 is 2, 2 is 1" in texts(stage, f32_of(stage)[:, order])[0]


@pytest.mark.parametrize("policy", ["bf16", "f16", "q8_0", "q8_k"])
def test_quantised_activations_are_not_called_a_bug(rng, policy):
    x, w = t(rng, 4, 256), Weight.of(rng.standard_normal((8, 256)), ("dim", "in"), "f32")
    seen = Tensor(policies.apply(policy, x.data), ROW)
    found = texts(stage_of("linear", x, w), f32_of(stage_of("linear", seen, w)))
    assert "quantised activations, not a bug" in found[0] and f"use={policy}" in found[0]


def test_swiglu_and_gate_mistakes(rng):
    gate, up = t(rng, 4, 32), t(rng, 4, 32)
    stage = stage_of("swiglu", gate, up)
    assert texts(stage, f32_of(stage_of("swiglu", up, gate)))[0] == "swiglu.swapped: gate and up swapped"
    assert "up branch left out" in texts(stage, gate.data / (1 + np.exp(-gate.data)))[0]
    x, g = t(rng, 4, 3, 8), Tensor(t(rng, 4, 3).data, ("row", "head"))
    gated = stage_of("gate", x, g, kind="softplus")
    assert "sigmoid in place of softplus" in texts(gated, f32_of(stage_of("gate", x, g, kind="sigmoid")))[0]
    assert texts(gated, x.data)[0] == "gate.missing: the gate left out"


def test_cap_and_multiplier(rng):
    x = Tensor(t(rng, 4, 32).data * 30, ROW)
    stage = stage_of("softcap", x, scale=0.2, cap=20.0)
    for wrong, text in (
        ({"scale": 1.0, "cap": 20.0}, "multiplier left out"),
        ({"scale": 0.2, "cap": None}, "no cap"),
        ({"scale": 0.2, "cap": 30.0}, "cap 30 in place of 20"),
    ):
        assert text in texts(stage, f32_of(stage_of("softcap", x, **wrong)))[0]
    assert "cap before the multiplier" in texts(stage, 0.2 * 20 * np.tanh(x.data / 20))[0]


def test_a_left_out_residual(rng):
    a, b = t(rng, 4, 32), t(rng, 4, 32)
    assert "residual left out" in texts(stage_of("add", a, b), b.data)[0]


def test_query_heads_mapped_to_the_wrong_kv_heads(rng):
    from oracle.recipes import Visible

    visible = Visible("none", False, None, np.arange(4), np.arange(4), 0)
    q, k, v = t(rng, 4, 6, 8), t(rng, 4, 2, 8), t(rng, 4, 2, 8)
    index = np.arange(6) % 2
    wrong = stage_of("attention", q, Tensor(k.data[:, index], HEADS), Tensor(v.data[:, index], HEADS), visible=visible, scale=8**-0.5)
    found = texts(stage_of("attention", q, k, v, visible=visible, scale=8**-0.5), f32_of(wrong))
    assert "h mod kv_heads" in found[0]


def test_zeros_signs_and_swapped_rows(rng):
    stage = stage_of("rms_norm", t(rng, 5, 32), Weight.of(1 + 0.1 * rng.standard_normal(32), ("dim",), "f32"), eps=1e-6)
    healthy = f32_of(stage)
    assert texts(stage, healthy * 0)[0] == "values.zero: zeros"
    assert texts(stage, -healthy)[0] == "values.sign: the sign flipped"
    assert "row 1 holds row 3" in texts(stage, healthy[[0, 3, 2, 1, 4]])[0]


def test_a_missing_norm_weight(rng):
    x, w = t(rng, 5, 32), Weight.of(1 + 0.3 * rng.standard_normal(32), ("dim",), "f32")
    stage = stage_of("rms_norm", x, w, eps=1e-6)
    assert texts(stage, f32_of(stage_of("rms_norm", x, None, eps=1e-6)))[0] == "norm.weight: the weight left out"


@pytest.mark.parametrize(("arithmetic", "how"), [("bf16", "rounded"), pytest.param("bf16,truncate=1", "cut", marks=pytest.mark.slow)])
def test_coarser_storage_than_declared(judged, drafter, arithmetic, how):
    found = [e["text"] for d in judged(drafter, arithmetic, under="f32").divergences for e in d.explanations[:1]]
    assert found[0].startswith(f"stored in bf16 ({how})")


def test_what_does_not_explain_is_not_printed(rng):
    stage = stage_of("linear", t(rng, 5, 16), Weight.of(rng.standard_normal((12, 16)), ("dim", "in"), "f32"))
    noisy = f32_of(stage) + 1e-3 * rng.standard_normal((5, 12))
    assert texts(stage, noisy) == []


def test_an_explanation_covers_only_where_the_mistake_is(rng):
    """Half of the rows scaled, one row random: the scale alone is no explanation."""
    stage = stage_of("linear", t(rng, 6, 16), Weight.of(rng.standard_normal((12, 16)), ("dim", "in"), "f32"))
    c = f32_of(stage)
    c[:3] *= 1.01
    assert "times 1.01" in texts(stage, c)[0]
    c[4] = rng.standard_normal(12)
    assert texts(stage, c) == []


def test_one_cell_too_many(rng):
    from oracle.recipes import Visible
    from parity.explain.attention import with_cell

    visible = Visible("W_LT", True, 4, np.arange(8, 12), np.arange(12), 8)
    q, k, v = t(rng, 4, 4, 8), t(rng, 12, 2, 8), t(rng, 12, 2, 8)
    stage = stage_of("attention", q, k, v, visible=visible, scale=8**-0.5)
    wrong = stage_of("attention", q, k, v, visible=with_cell(visible, np.arange(12) == 2), scale=8**-0.5)
    assert texts(stage, f32_of(wrong))[0] == "attention.extra: cell 2 (position 2) seen, though it is not visible"
