"""attention: who sees whom under every window rule, and the softmax over what is seen."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oracle.readings import Exact, Noise, Rounded
from oracle.recipes import WINDOW_RULES, Visible
from oracle.tensor import Tensor
from oracle.weights import Weight
from tests.oracle.calls import HEADS, ORDERS, declared, f32, read, sink_attention_call, stage

drawn = settings(max_examples=60, deadline=None)
seeds = st.integers(0, 2**32 - 1)


def sees(rule: str, causal: bool, w: int, q: int, k: int, anchor: int, context: bool) -> bool:
    """`specs/dflash-generic.md` section 5, one query and one key at a time."""
    if causal and k > q:
        return False
    delta = q - k
    return {
        "none": True,
        "SINK_RING": True,
        "W_LT": delta < w and (causal or -delta < w),
        "W_LT_left": delta < w,
        "W_LE": abs(delta) <= w,
        "W_LT_ctx": not context or delta < w,
        "W_ANCHOR": not context or k >= anchor - w,
        "W_RING": not context or k >= anchor - (w - 1),
    }[rule]


@settings(max_examples=150, deadline=None)
@given(
    rule=st.sampled_from(WINDOW_RULES), causal=st.booleans(), w=st.integers(1, 12), block=st.integers(1, 6),
    context=st.lists(st.integers(0, 29), unique=True, max_size=16), gap=st.integers(0, 3),
)  # fmt: skip
def test_every_rule_decides_each_pair_as_written(rule, causal, w, block, context, gap):
    kept = sorted(context)
    anchor = (kept[-1] + 1 if kept else 0) + gap
    q_pos = np.arange(anchor, anchor + block)
    k_pos = np.r_[np.array(kept, np.int64), q_pos]
    found = Visible(rule, causal, w, q_pos, k_pos, len(kept)).matrix()
    expected = [[sees(rule, causal, w, int(q), int(k), anchor, j < len(kept)) for j, k in enumerate(k_pos)] for q in q_pos]
    assert found.tolist() == expected


def span(first: int, last: int) -> list[int]:
    return list(range(first, last + 1))


@pytest.mark.parametrize(
    ("rule", "causal", "expected"),
    [
        ("W_ANCHOR", True, [span(7, 12), span(7, 13), span(7, 14), span(7, 15)]),
        ("W_ANCHOR", False, [span(7, 15)] * 4),
        ("W_LT", True, [span(8, 12), span(9, 13), span(10, 14), span(11, 15)]),
        ("W_LT", False, [span(8, 15), span(9, 15), span(10, 15), span(11, 15)]),
        ("W_LE", False, [span(7, 15), span(8, 15), span(9, 15), span(10, 15)]),
        ("W_LT_left", False, [span(8, 15), span(9, 15), span(10, 15), span(11, 15)]),
        ("W_LT_ctx", True, [span(8, 12), span(9, 13), span(10, 14), span(11, 15)]),
        ("W_RING", False, [span(8, 15)] * 4),
        ("none", True, [span(0, 12), span(0, 13), span(0, 14), span(0, 15)]),
        ("SINK_RING", False, [span(0, 15)] * 4),
    ],
)
def test_the_worked_sets_of_the_specification(rule, causal, expected):
    """W = 5, anchor P = 12, block of 4 (section 5, "Worked sets"; the rules it does not list, by its table)."""
    visible = Visible(rule, causal, 5, np.arange(12, 16), np.arange(16), 12).matrix()
    assert [np.flatnonzero(row).tolist() for row in visible] == expected


@pytest.mark.parametrize("rule", [r for r in WINDOW_RULES if r not in ("none", "SINK_RING")])
def test_a_window_without_a_width_is_refused(rule):
    with pytest.raises(ValueError, match=f"window rule {rule} needs a window width"):
        Visible(rule, True, None, np.arange(2), np.arange(2), 0).matrix()


def exact(q: np.ndarray, k: np.ndarray, v: np.ndarray, visible: Visible, scale: float) -> np.ndarray:
    return Exact().apply(stage("attention", *(Tensor(t, HEADS) for t in (q, k, v)), visible=visible, scale=scale)).data


@drawn
@given(
    rows=st.integers(1, 4), past=st.integers(0, 5), kv=st.integers(1, 3), group=st.integers(1, 3), dim=st.integers(1, 5),
    rule=st.sampled_from(["none", "W_LT", "W_LE"]), causal=st.booleans(), seed=seeds,
)  # fmt: skip
def test_attention_is_the_softmax_over_the_visible_cells(rows, past, kv, group, dim, rule, causal, seed):
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((rows, kv * group, dim))
    k, v = rng.standard_normal((2, past + rows, kv, dim))
    visible = Visible(rule, causal, 2, np.arange(past, past + rows), np.arange(past + rows), past)
    found, seen = exact(q, k, v, visible, 0.7), visible.matrix()
    for r in range(rows):
        for h in range(kv * group):
            mine = h // group
            weights = [math.exp(0.7 * math.fsum(q[r, h] * k[c, mine])) if seen[r, c] else 0.0 for c in range(past + rows)]
            expected = [math.fsum(e * v[c, mine, d] for c, e in enumerate(weights)) / math.fsum(weights) for d in range(dim)]
            assert found[r, h] == pytest.approx(expected, rel=1e-11, abs=1e-12)


def test_scores_of_any_size_do_not_overflow():
    q = np.array([[[1000.0]], [[-1000.0]]])
    k, v = np.array([[[1.0]], [[2.0]]]), np.array([[[3.0]], [[5.0]]])
    found = exact(q, k, v, Visible("none", False, None, np.arange(2), np.arange(2), 0), 1.0)
    assert found.ravel().tolist() == [5.0, 3.0]


def test_heads_that_do_not_divide_are_refused():
    q, k = np.zeros((1, 3, 2)), np.zeros((1, 2, 2))
    with pytest.raises(ValueError, match="3 query heads are not a multiple of 2 kv heads"):
        exact(q, k, k, Visible("none", False, None, np.arange(1), np.arange(1), 0), 1.0)


@pytest.mark.parametrize("reading", [Exact(), Rounded(declared("sequential")), Noise(declared("sequential"))])
def test_a_row_that_sees_nothing_is_zero_without_error(reading):
    """5.7.7: output exactly 0, variance 0; the other rows are untouched by it."""
    rng = np.random.default_rng(1)
    q, k, v = (Tensor(rng.standard_normal((n, 2, 4)), HEADS) for n in (3, 2, 2))
    visible = Visible("W_LT", True, 2, np.array([4, 9, 5]), np.array([3, 4]), 2)
    assert visible.matrix().tolist() == [[True, True], [False, False], [False, True]]
    y = read(reading, stage("attention", q, k, v, visible=visible, scale=0.5))
    assert not y.data[1].any()
    assert y.data[[0, 2]].all()
    assert not np.broadcast_to(y.var, y.data.shape)[1].any()


def test_a_row_that_sees_one_cell_is_that_cell():
    rng = np.random.default_rng(2)
    q, k, v = rng.standard_normal((3, 1, 1, 4))
    assert exact(q, k, v, Visible("none", True, None, np.arange(1), np.arange(1), 0), 0.5).tolist() == v.tolist()


@drawn
@given(seed=seeds)
def test_the_order_of_the_cells_does_not_matter(seed):
    rng = np.random.default_rng(seed)
    q, (k, v) = rng.standard_normal((2, 2, 4)), rng.standard_normal((2, 6, 1, 4))
    order = rng.permutation(6)
    found = [exact(q, k[o], v[o], Visible("W_LT", True, 4, np.array([6, 7]), np.arange(6)[o], 6), 0.5) for o in (np.arange(6), order)]
    assert np.abs(found[0] - found[1]).max() < 1e-12


@drawn
@given(seed=seeds, order=st.sampled_from(ORDERS), sinks=st.booleans(), narrow=st.sampled_from(["f32", "bf16", "f16"]))
@example(seed=136, order="sequential", sinks=False, narrow="f32")
def test_probabilities_below_the_range_of_float32_are_noise_where_they_are_all_there_is(seed, order, sinks, narrow):
    """Cells that take all of the softmax and whose values are exact zeros leave a row that float32 rounds coarsely, or to nothing."""
    rng = np.random.default_rng(seed)
    cells, dim = int(rng.integers(2, 30)), int(rng.integers(1, 9))
    q, k, v = (f32(rng.standard_normal(s) * np.where(rng.random(s) < 0.1, 30, 1)) for s in ((3, 2, dim), (cells, 1, dim), (cells, 1, dim)))
    v[(rng.random(v.shape) < 0.5)] = 0
    visible = Visible("none", False, None, np.arange(3), np.arange(cells), 0)
    more = (Weight.of(f32([0.0, 40.0]), ("head",)),) if sinks else ()
    made = stage("sink_attention" if sinks else "attention", *(Tensor(t, HEADS) for t in (q, k, v)), *more, visible=visible, scale=1.0)
    A = declared(order, probabilities=narrow)
    rule, rounded = read(Noise(A), made), read(Rounded(A), made).data
    error, sigma = np.abs(rounded - rule.data), np.sqrt(np.broadcast_to(rule.var, rounded.shape))
    assert (error <= 8 * sigma).all()
    where = tuple(i.ravel() for i in np.indices(rounded.shape))
    bound = made.op.bound(A, rule.data, where, *made.args, **made.params | {"probabilities": narrow})
    assert (error.ravel() <= bound).all()


def test_a_probability_within_the_range_of_float32_is_no_noise():
    """What is left of a row is as small as 1e-30, but no smaller than float32 holds: a cell lost there is seen."""
    k = f32([[[0.0]], [[-69.0]]])
    made = stage(
        "attention", *(Tensor(t, HEADS) for t in (f32([[[1.0]]]), k, f32([[[0.0]], [[1.0]]]))),
        visible=Visible("none", False, None, np.arange(1), np.arange(2), 0), scale=1.0,
    )  # fmt: skip
    y = read(Noise(declared("sequential")), made)
    assert y.data.item() == pytest.approx(math.exp(-69))
    assert np.sqrt(np.asarray(y.var)).item() < 1e-4 * y.data.item()


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_probabilities_beside_a_sink_are_rounded_as_declared(dtype):
    """The candidate and the oracle round them alike, and one that does not is outside the noise."""
    made = sink_attention_call("gaussian", np.random.default_rng(5))
    A, plain = declared("pairwise", probabilities=dtype), declared("pairwise")
    rule = read(Noise(A), made)
    sigma = np.sqrt(np.broadcast_to(rule.var, rule.data.shape))
    assert (np.abs(read(Rounded(A), made).data - rule.data) <= 8 * sigma).all()
    assert (np.abs(read(Rounded(plain), made).data - rule.data) > 8 * sigma).mean() > 0.5
