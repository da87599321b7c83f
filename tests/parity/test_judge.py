"""One stage's judgement: what is small in every row and the same in all, what a libm leaves, what no variance can judge."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oracle.arithmetic import Arithmetic, named
from oracle.ops import OPS
from oracle.readings import Noise, Rounded, Stage
from oracle.tensor import Tensor
from oracle.weights import Weight
from parity import limits
from parity.judge import Judge, Verdict

ROWS = ("row", "dim")


def judged(stage: Stage, candidate: np.ndarray, arithmetic: Arithmetic, count: int = 1_000_000) -> Verdict:
    return Judge(arithmetic, count).judge(stage, Noise(arithmetic).apply(stage), candidate.astype(np.float64))


def norm_stage(rows: int, width: int, eps: float, seed: int = 0) -> Stage:
    rng = np.random.default_rng(seed)
    x = Tensor(rng.standard_normal((rows, width)).astype(np.float32), ROWS)
    w = Weight.of(1 + 0.1 * rng.standard_normal(width), ("dim",), "f32")
    return Stage("draft.L0.xn", OPS["rms_norm"], (x, w), {"eps": eps})


def wide(stage: Stage) -> Stage:
    """The same call on float64 inputs, as the oracle has them."""
    return replace(stage, args=tuple(Tensor(a.data.astype(np.float64), a.axes) if isinstance(a, Tensor) else a for a in stage.args))


def test_a_wrong_eps_is_found_where_every_element_is_within_its_tolerance():
    """eps 1e-6 -> 1e-5 at hidden 6,656 in f32 with a sequential sum: small in every row, the same in all."""
    arithmetic = named("f32-sequential")
    stage = norm_stage(16, 6656, 1e-6)
    healthy = judged(wide(stage), Rounded(arithmetic).apply(stage).data, arithmetic)
    wrong = Rounded(arithmetic).apply(replace(stage, params={"eps": 1e-5})).data
    found = judged(wide(stage), wrong, arithmetic)
    assert healthy.common < 0.5 and healthy.row_ratio.max() <= 1
    assert found.ratio.max() <= 1.0 and found.common > 1


def test_the_bias_of_a_vectorised_exponential_is_no_divergence():
    rng = np.random.default_rng(1)
    gate, up = (Tensor(rng.standard_normal((80, 1536)).astype(np.float32), ROWS) for _ in range(2))
    stage = Stage("target.L0.mlp_act", OPS["swiglu"], (gate, up), {})
    verdict = judged(wide(stage), Rounded(Arithmetic()).apply(stage).data, Arithmetic())
    assert verdict.common < 1 and verdict.row_ratio.max() <= 1


def test_a_scale_common_to_all_rows_is_found_in_an_elementwise_stage():
    rng = np.random.default_rng(2)
    gate, up = (Tensor(rng.standard_normal((32, 512)).astype(np.float32), ROWS) for _ in range(2))
    stage = Stage("target.L0.mlp_act", OPS["swiglu"], (gate, up), {})
    scaled = Rounded(Arithmetic()).apply(stage).data * np.float32(1 + 2.5e-7)
    verdict = judged(wide(stage), scaled, Arithmetic())
    assert verdict.ratio.max() <= 1 and verdict.common > 1


def test_equal_rows_count_once_in_the_pooled_test():
    rng = np.random.default_rng(3)
    one = rng.standard_normal((1, 256)).astype(np.float32)
    w = Weight.of(np.ones(256), ("dim",), "f32")
    stage = Stage("draft.L0.xn", OPS["rms_norm"], (Tensor(np.repeat(one, 40, 0), ROWS), w), {"eps": 1e-6})
    assert judged(wide(stage), Rounded(Arithmetic()).apply(stage).data, Arithmetic()).common == 0.0


def gated(rng: np.random.Generator, rows: int, heads: int, gates: np.ndarray, kind: str) -> Stage:
    x = Tensor(rng.standard_normal((rows, heads, 32)).astype(np.float32), ("row", "head", "dim"))
    return Stage("draft.L0.attn_gated", OPS["gate"], (x, Tensor(gates.astype(np.float32), ("row", "head"))), {"kind": kind})


@pytest.mark.parametrize("kind", ["sigmoid", "softplus"])
@pytest.mark.parametrize("heads", [1, 3])
def test_a_gate_per_head_may_err_the_same_way_in_a_whole_row_and_in_all_rows_that_have_it(kind: str, heads: int):
    """Every mask row of a block has the same gate at the first layer, and one float32 exponential errs in all of them."""
    arithmetic = named("f32-pairwise")
    for seed in range(200):
        rng = np.random.default_rng(seed)
        stage = gated(rng, 8, heads, np.repeat(rng.standard_normal((1, heads)), 8, 0), kind)
        verdict = judged(wide(stage), Rounded(arithmetic).apply(stage).data, arithmetic)
        assert verdict.common <= 1 and verdict.row_ratio.max() <= 1, seed


def test_a_gate_per_head_that_is_wrong_by_ten_roundings_is_found():
    rng = np.random.default_rng(1)
    stage = gated(rng, 8, 2, rng.standard_normal((8, 2)), "sigmoid")
    wrong = Rounded(Arithmetic()).apply(stage).data * np.float32(1 + 10 * 2.0**-23)
    verdict = judged(wide(stage), wrong, Arithmetic())
    assert max(verdict.common, verdict.row_ratio.max()) > 1


def linear_stage(x: np.ndarray, w: np.ndarray) -> Stage:
    return Stage("draft.L0.o", OPS["linear"], (Tensor(x.astype(np.float32), ROWS), Weight.of(w, ("dim", "in"), "f32")), {})


def test_identical_addends_are_inconclusive_not_wrong():
    """Every step of a sum of equal products errs the same way: beyond any variance, within the bound of that."""
    stage = linear_stage(np.full((3, 4096), 0.1), np.full((2, 4096), 0.3))
    arithmetic = named("f32-sequential")
    verdict = judged(wide(stage), Rounded(arithmetic).apply(stage).data, arithmetic)
    assert verdict.inconclusive is not None and "identical products" in verdict.inconclusive


def test_data_ordered_sums_are_rejudged_with_their_exact_partial_sums():
    rng = np.random.default_rng(4)
    w = -np.sort(-rng.standard_normal((64, 1024)) / 32, axis=1)
    stage = linear_stage(np.abs(rng.standard_normal((32, 1024))), w)
    arithmetic = named("f32-sequential")
    verdict = judged(wide(stage), Rounded(arithmetic).apply(stage).data, arithmetic)
    assert verdict.rejudged > 0 and verdict.ratio.max() <= 1


@pytest.mark.parametrize("store", ["bf16", "f16"])
def test_a_stored_result_is_judged_almost_bit_for_bit(store):
    rng = np.random.default_rng(5)
    arithmetic = named(store)
    stage = linear_stage(rng.standard_normal((8, 64)), rng.standard_normal((32, 64)) / 8)
    good = Rounded(arithmetic).apply(stage).data
    assert judged(wide(stage), good, arithmetic).ratio.max() <= 1
    off = good.copy()
    off[3, 5] += arithmetic.stored("x").ulp(off[3, 5])
    verdict = judged(wide(stage), off, arithmetic)
    assert verdict.ratio.max() > 1 and verdict.worst == (3, 5)


def test_nan_never_passes():
    stage = linear_stage(np.ones((2, 4)), np.ones((3, 4)))
    y = Rounded(Arithmetic()).apply(stage).data.copy()
    y[1, 1] = np.nan
    verdict = judged(wide(stage), y, Arithmetic())
    assert not (verdict.row_ratio[1] <= 1)


def test_few_runs_say_little_of_the_spread_of_a_narrow_row():
    """Of rows of one value, four runs find a spread that the error exceeds twelve times in one of 3,600."""
    rng = np.random.default_rng(0)
    error, runs = rng.standard_normal((200_000, 1)), rng.standard_normal((200_000, 4))
    ratio = np.abs(error[:, 0]) / np.sqrt(np.square(runs).mean(1))
    assert 20 < (ratio > limits.ROLLED_DIVERGE).sum() < 200
    assert not (ratio > limits.rolled(1, 200_000, 4)).any()
    assert limits.rolled(1, 16, 4) > limits.rolled(1, 16, 8) > limits.rolled(4, 16, 8) == limits.rolled(576, 16, 8) == 12
    assert 12 < limits.rolled(576, 16, 4) < 20


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("kind", limits.SUMS)
def test_a_narrow_row_holds_what_one_of_its_sums_may_reach(kind: str, width: int, stored: bool):
    """The gate of a delta net is one value per row: products of Qwen3.8 reached 4.7 sigma of an error that has the tail of sums."""
    for rows in (1, 12, 300):
        assert limits.row(kind, stored, width, rows) * width**0.5 >= limits.exponential(rows * width)


def test_limits_grow_with_the_count_and_shrink_with_the_width():
    assert limits.gaussian(10**6) == pytest.approx(7.5, abs=0.1) and limits.exponential(10**6) == pytest.approx(16.7, abs=0.1)
    assert limits.row("linear", False, 8, 16) > limits.row("linear", False, 4096, 16) == 2.0
    assert limits.pooled("norm", False, 64, 16) < limits.pooled("norm", False, 64, 4)


def quantised_norm(seed: int, scale: float = 1.0) -> Verdict:
    """The pooled verdict of a weightless norm over five rows of 16 levels each, stored in bf16; ``scale``: a mistake common to all."""
    rng, arithmetic = np.random.default_rng(seed), named("bf16")
    levels = np.clip(np.round(rng.standard_normal((5, 32)) * 3), -8, 7) * rng.uniform(0.01, 0.3, (5, 1))
    stage = Stage("target.embed_norm", OPS["rms_norm"], (Tensor(levels.astype(np.float32), ROWS), None), {"eps": 1e-5})
    made = Rounded(arithmetic).apply(stage).data * np.float32(scale)
    return judged(wide(stage), arithmetic.to_storage(stage.path, made), arithmetic)


def test_equal_elements_of_a_quantised_row_err_alike():
    """Sixteen levels in a row are sixteen roundings, not as many as the row is wide."""
    assert max(quantised_norm(seed).common for seed in range(200)) < 1


def test_a_scale_common_to_quantised_rows_is_found():
    assert min(quantised_norm(seed, 1 + 2**-6).common for seed in range(20)) > 1
