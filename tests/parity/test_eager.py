"""What an engine of single operations writes between the steps of one (`oracle.eager`): followed to the bit, and its absence seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oracle import arithmetic as arithmetics
from oracle import eager
from oracle.arithmetic import DeclarationError
from oracle.artifacts import make_artifact
from oracle.floats import BF16
from oracle.kit import EXACT
from oracle.ops import OPS
from oracle.readings import Noise, Rounded, Stage
from oracle.recipes import Rope
from oracle.tensor import Tensor
from oracle.weights import Weight
from parity.candidates import NUMPY
from parity.case import Case
from parity.comparing import compare_dump
from parity.making import target_case
from parity.memory import MemoryDump
from parity.recording import record
from parity.report import Report

PROFILE = "transformers-bf16"
PROFILES = pytest.mark.parametrize("profile", [PROFILE, "mlx-bf16"])
#: Stages of a llama whose operation an eager engine does in several steps.
STEPS = {"xn", "xn_mlp", "q_rope", "k_rope", "attn", "mlp_act", "final_norm"}


@pytest.fixture(scope="module")
def one_layer(tmp_path_factory) -> Case:
    sizes = {"hidden": 24, "intermediate": 32, "heads": 3, "kv_heads": 1, "head_dim": 8, "vocab": 31, "layers": 1}
    return target_case(make_artifact("llama", "tiny", "bf16", tmp_path_factory.mktemp("eager"), seed=3, **sizes)[0], prefill=5, block=0)


@pytest.fixture(scope="module", params=["laguna", "qwen38-flash-next", "muse-glimmer"])
def sparse(request, tmp_path_factory) -> Case:
    made = make_artifact(request.param, "tiny", "bf16", tmp_path_factory.mktemp("eager"), seed=3, role="target")
    return target_case(made[0], prefill=7, block=2, seed=1)


def judge(case: Case, made: str, under: str, mode: str = "local", without: tuple[str, ...] = ()) -> Report:
    """A NumPy engine of the arithmetic ``made``, judged ``under`` another; ``without``: stages it does not record."""
    A, dump = arithmetics.named(made), MemoryDump(case.describe(), {})
    record(case, Rounded(A), dump, A)
    for step in dump.steps:
        for stage in dump.stages(step):
            if stage.rpartition(".")[2] in without:
                dump.forget(step, stage)
    return compare_dump(case, dump, arithmetics.named(under), mode=mode)


def diverging(report: Report) -> set[str]:
    return {s.stage.rpartition(".")[2] for s in report.stages if s.verdict == "diverge"}


@PROFILES
def test_a_healthy_engine_agrees_and_is_no_plain_bf16_one(profile, target, one_layer):
    assert judge(target, profile, profile).verdict == "parity"
    assert diverging(judge(one_layer, profile, "bf16")) == STEPS
    assert diverging(judge(one_layer, "bf16", profile)) == STEPS


def test_the_frameworks_differ_in_the_scale_of_attention_and_in_the_sigmoid(one_layer):
    assert diverging(judge(one_layer, "mlx-bf16", PROFILE)) == {"attn", "mlp_act"}
    assert diverging(judge(one_layer, PROFILE, "mlx-bf16")) == {"attn", "mlp_act"}


@PROFILES
def test_it_drifts_no_farther_than_its_rounding(profile, target):
    assert judge(target, profile, profile, mode="rolled").verdict == "parity"


@PROFILES
def test_every_family_s_operations_agree(profile, sparse):
    report = judge(sparse, profile, profile)
    assert report.verdict == "parity", report.first_divergence


@PROFILES
def test_a_stage_that_was_not_recorded_gives_its_roundings_on(profile, target):
    report = judge(target, profile, profile, without=("xn", "q_rope", "k_rope", "mlp_gate", "mlp_up"))
    assert report.verdict == "parity" and report.unseen


def held(values, store: str = "bf16") -> np.ndarray:
    """The normed values of an rms_norm with weight 1, so that the result is what was held."""
    x = Tensor(np.asarray(values, np.float64), ("row", "dim"))
    return OPS["rms_norm"].formula(eager.kit(store, EXACT), x.data, Weight.of(np.ones(x.data.shape[1]), ("dim",)), eps=0.0)


def test_held_values_are_rounded_and_f32_holds_nothing():
    x = [[1.0, 2.0, 3.0]]
    assert BF16.holds(held(x)).all() and not BF16.holds(held(x, "f32")).all()


def test_only_what_lies_at_a_midpoint_may_fall_to_the_other_side():
    """Rope of a pair: the cosine of angle 0 is 1, exactly; that of angle 1 lies between two values, near neither."""
    x = Tensor(np.ones((2, 1, 2)), ("row", "head", "dim"))
    A = replace(arithmetics.named(PROFILE), store=())
    stage = Stage("x", OPS["rope"], (x, np.array([0, 1]), Rope(1.0, 2)), {})
    y = Noise(A).apply(stage)
    assert np.sqrt(np.max(y.var)) < BF16.ulp(1.0) / 100
    moves = eager.moves(stage, y.data, "bf16", EXACT, every=True)
    assert len(moves) == 6 and all(np.abs(m).max() > 0 for m in moves)
    assert not np.any(eager.moves(stage, y.data, "bf16", EXACT)[0])


def test_a_midpoint_is_open():
    """silu(g) h at a g whose silu lies halfway between two bf16 values: a float32 engine may have either."""
    low, high, g = 0.9, 1.2, 0.0
    goal = BF16.round(0.7) + BF16.ulp(0.7) / 2
    for _ in range(200):
        g = (low + high) / 2
        low, high = (g, high) if g / (1 + np.exp(-g)) < goal else (low, g)
    gate, up = (Tensor(np.full((1, 1), v), ("row", "dim")) for v in (g, 1.0))
    stage = Stage("x", OPS["swiglu"], (gate, up), {})
    (move,) = eager.moves(stage, OPS["swiglu"].formula(eager.kit("bf16", EXACT), gate.data, up.data), "bf16", EXACT)
    assert np.abs(move) == BF16.ulp(0.7)


@pytest.mark.parametrize(
    "text",
    ["inner=*.xn:q8_0", "scores=f8", "scores=bf16-keys", "framework=jax", "delta=chunked:0", "delta=chunked:x", "delta=blocked"],
)
def test_a_declaration_that_cannot_be_is_refused(text):
    with pytest.raises(DeclarationError):
        arithmetics.named(f"bf16,{text}")


def test_mlx_rounds_scalars_and_forms_a_sigmoid_from_a_rounded_exponential():
    torch, mlx = (eager.kit("bf16", EXACT, framework) for framework in ("torch", "mlx"))
    assert torch.constant(3.87) == 3.87 and mlx.constant(3.87) == 3.875
    x = np.linspace(-3, 3, 61)
    small = 1 / (1 + BF16.round(np.exp(np.abs(x))))
    assert (mlx.sigmoid(x) == BF16.round(np.where(x < 0, small, 1 - small))).all() and (mlx.sigmoid(x) != torch.sigmoid(x)).any()
    w = Weight.of(np.array([2.0**-9]), ("dim",))
    assert torch.scale(w, 1.0) == 1 + 2.0**-9 and mlx.scale(w, 1.0) == 1


@PROFILES
def test_the_real_engine_has_the_name_of_its_profile(profile):
    assert profile not in NUMPY and profile in arithmetics.PRESETS
