"""Every operation's float64 formula against a loop written from its definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oracle.kit import EXACT
from oracle.ops import OPS
from oracle.ops.argmax import first_argmax
from oracle.readings import Exact
from oracle.tensor import Tensor
from oracle.weights import Weight
from tests.oracle.calls import HEADS, ROWS, stage

drawn = settings(max_examples=30, deadline=None)
sizes, seeds = st.integers(1, 5), st.integers(0, 2**32 - 1)


def close(found: np.ndarray, expected: object) -> bool:
    return bool(np.allclose(found, np.asarray(expected), rtol=1e-12, atol=1e-13))


def exact(op: str, *args: object, **params: object) -> Tensor:
    return Exact().apply(stage(op, *args, **params))


@drawn
@given(rows=sizes, k=st.integers(1, 40), heads=sizes, dim=sizes, biased=st.booleans(), seed=seeds)
def test_linear_is_a_sum_of_products_in_the_axes_of_the_weight(rows, k, heads, dim, biased, seed):
    rng = np.random.default_rng(seed)
    x, w, b = rng.standard_normal((rows, k)), rng.standard_normal((heads, dim, k)), rng.standard_normal((heads, dim))
    bias = Weight.of(b, ("head", "dim"), "f64") if biased else None
    y = exact("linear", Tensor(x, ROWS), Weight.of(w, ("head", "dim", "in"), "f64"), bias)
    loop = [
        [[math.fsum(x[r, i] * w[h, d, i] for i in range(k)) + (b[h, d] if biased else 0) for d in range(dim)] for h in range(heads)]
        for r in range(rows)
    ]
    assert y.axes == HEADS
    assert close(y.data, loop)


def test_linear_streams_a_weight_of_many_tiles():
    rng = np.random.default_rng(1)
    w = Weight.of(rng.standard_normal((700, 3000)), ("dim", "in"), "f32")
    assert len(list(w.spans())) >= 4
    x = rng.standard_normal((3, 3000))
    assert close(exact("linear", Tensor(x, ROWS), w).data, x @ w.array().T)


def test_linear_flattens_heads_and_refuses_another_width():
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((3, 4, 5)), rng.standard_normal((7, 20))
    weight = Weight.of(w, ("dim", "in"), "f64", "blk.0.attn_output")
    assert close(exact("linear", Tensor(x, HEADS), weight).data, x.reshape(3, 20) @ w.T)
    with pytest.raises(ValueError, match=r"blk\.0\.attn_output takes 20 inputs, its input has 16"):
        exact("linear", Tensor(x[:, :, :4], HEADS), weight)


@drawn
@given(shape=st.tuples(sizes, sizes, st.integers(1, 9)), eps=st.sampled_from([1e-5, 1.0]), offset=st.sampled_from([0.0, 1.0]), seed=seeds)
def test_rms_norm_divides_by_the_root_of_the_mean_square(shape, eps, offset, seed):
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal(shape), rng.standard_normal(shape[-1])
    y = exact("rms_norm", Tensor(x, HEADS), Weight.of(w, ("dim",), "f64"), eps=eps, offset=offset).data
    for r in range(shape[0]):
        for h in range(shape[1]):
            rms = math.sqrt(sum(v * v for v in x[r, h]) / shape[-1] + eps)
            assert close(y[r, h], [(w[i] + offset) * x[r, h, i] / rms for i in range(shape[-1])])


def test_rms_norm_without_a_weight_and_of_a_zero_row():
    x = np.array([[3.0, 4.0], [0.0, 0.0]])
    y = exact("rms_norm", Tensor(x, ROWS), None, eps=1e-6).data
    assert close(y, [[3 / math.sqrt(12.5 + 1e-6), 4 / math.sqrt(12.5 + 1e-6)], [0, 0]])


@drawn
@given(scale=st.sampled_from([2.0**-3, 2.0, 4.0]), seed=seeds)
def test_rms_norm_forgets_the_scale_of_its_row(scale, seed):
    x = np.random.default_rng(seed).standard_normal((3, 16))
    assert close(exact("rms_norm", Tensor(scale * x, ROWS), None, eps=0.0).data, exact("rms_norm", Tensor(x, ROWS), None, eps=0.0).data)


@drawn
@given(g=st.floats(-800, 800), u=st.floats(-10, 10))
@example(g=-746.0, u=1.0)
@example(g=0.0, u=-3.0)
def test_swiglu_is_the_gate_times_its_logistic_times_up(g, u):
    logistic = 1 / (1 + math.exp(-g)) if g > -700 else math.exp(g)
    assert close(exact("swiglu", Tensor(np.array([[g]]), ROWS), Tensor(np.array([[u]]), ROWS)).data, [[g * logistic * u]])


@drawn
@given(x=st.floats(-1e4, 1e4), scale=st.floats(0.01, 10), cap=st.one_of(st.none(), st.floats(0.5, 100)))
def test_softcap_multiplies_before_it_caps(x, scale, cap):
    y = exact("softcap", Tensor(np.array([[x]]), ROWS), scale=scale, cap=cap).data
    assert close(y, [[x * scale if cap is None else cap * math.tanh(x * scale / cap)]])


def test_add_adds_elements():
    a, b = np.array([[1.0, -2.0]]), np.array([[0.25, 2.0]])
    assert exact("add", Tensor(a, ROWS), Tensor(b, ROWS)).data.tolist() == [[1.25, 0.0]]


@drawn
@given(ids=st.lists(st.integers(0, 10), min_size=0, max_size=6), scale=st.sampled_from([1.0, 0.3]), seed=seeds)
def test_gather_takes_rows_in_order_and_scales_them(ids, scale, seed):
    table = np.random.default_rng(seed).standard_normal((11, 4))
    y = exact("gather", Weight.of(table, ("vocab", "in"), "f64"), np.array(ids, np.int64), scale=scale)
    assert y.axes == ROWS
    assert y.data.tolist() == [(table[i] * scale).tolist() for i in ids]


@pytest.mark.parametrize("ids", [[0, 11], [-1, 3], [2**40]])
def test_gather_refuses_ids_outside_its_table(ids):
    outside = next(i for i in ids if not 0 <= i < 11)
    with pytest.raises(ValueError, match=rf"gather: token id {outside} is outside token_embd of 11 rows"):
        exact("gather", Weight.of(np.zeros((11, 4)), ("vocab", "in"), "f32", "token_embd"), np.array(ids))


@drawn
@given(counts=st.lists(st.integers(0, 4), min_size=1, max_size=3), seed=seeds)
def test_cells_are_the_parts_in_order_bit_for_bit(counts, seed):
    rng = np.random.default_rng(seed)
    parts = [rng.standard_normal((n, 2, 3)) for n in counts]
    joined = exact("cells", *(Tensor(p, HEADS) for p in parts))
    assert joined.axes == ("cell", "head", "dim")
    assert joined.data.tolist() == [row.tolist() for p in parts for row in p]


def test_given_moves_every_bit():
    x = np.array([[0.1, -0.0, np.nan, np.inf, 5e-324]])
    assert exact("given", Tensor(x, ROWS)).data.tobytes() == x.tobytes()


logits = st.lists(st.one_of(st.sampled_from([1.0, 2.0, -np.inf, np.inf, np.nan]), st.floats(width=32)), min_size=1, max_size=8)


@settings(max_examples=200, deadline=None)
@example([2.0, 5.0, 5.0])
@example([np.nan, -np.inf, -np.inf])
@example([np.nan, np.nan])
@given(row=logits)
def test_argmax_takes_the_lowest_index_of_the_largest_number_and_never_a_nan(row):
    best = -1
    for i, value in enumerate(row):
        if not math.isnan(value) and (best < 0 or value > row[best]):
            best = i
    assert first_argmax(np.array(row)) == best
    y = exact("argmax", Tensor(np.array([row, row]), ("row", "vocab")))
    assert y.axes == ("row",)
    assert y.data.tolist() == [best, best]


@pytest.mark.parametrize("op", OPS)
def test_an_operation_names_itself(op):
    assert OPS[op].name == op
    assert repr(OPS[op]) == f"<operation {op}>"


def test_the_kit_of_the_oracle_is_double():
    assert EXACT.dtype == np.float64
