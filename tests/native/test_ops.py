"""Every operation against float64, over drawn shapes, within the worst-case bounds of a correct f32 kernel."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

from native import DTYPES, Context, Library, NativeError, Stored
from tests.native import reference
from tests.native.reference import TINY, U, within
from tests.native.stored_blocks import WEIGHT_TYPES, decoded, encoded_vector, random_weight, to_bf16

FLOATS = ("f32", "f16", "bf16")
seeds = st.integers(0, 2**32 - 1)
widths = st.sampled_from([2, 7, 32, 64, 70, 128, 256, 300])  # below, at and above one and more vector tiles
offsets = st.sampled_from([0.0, 1.0])
drawn = settings(max_examples=25, deadline=None)


def normal(seed: int, *shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def wide(x: NDArray[np.float32]) -> NDArray[np.float64]:
    return x.astype(np.float64)


@drawn
@given(seeds, st.sampled_from(WEIGHT_TYPES), st.integers(1, 40), st.integers(1, 30), st.integers(1, 700), st.booleans())
def test_linear(ctx: Context, seed: int, dtype: str, m: int, n: int, k: int, biased: bool) -> None:
    block = DTYPES[dtype].block
    k = -(-k // block) * block
    w, x = random_weight(dtype, n, k, seed), normal(seed, m, k)
    bias = normal(seed + 1, n)
    got = ctx.linear(x, w, Stored.of(bias) if biased else None)
    values = wide(decoded(w))
    want = wide(x) @ values.T + (wide(bias) if biased else 0.0)
    size = np.abs(wide(x)) @ np.abs(values).T + (np.abs(wide(bias)) if biased else 0.0)
    within(got, want, (min(k, 256) + k / 256 + 2) * U * size)


@drawn
@given(seeds, st.integers(0, 5), st.integers(1, 300), st.integers(1, 4), st.sampled_from(["none", "row", "group"]), offsets)
def test_rms_norm(ctx: Context, seed: int, rows: int, width: int, groups: int, weighted: str, offset: float) -> None:
    x = normal(seed, rows, width * groups) * np.float32(10.0 ** (seed % 5 - 2))
    dtype = FLOATS[seed % 3]
    stored = encoded_vector(normal(seed + 1, width * (groups if weighted == "row" else 1)), dtype)
    got = ctx.rms_norm(x, None if weighted == "none" else stored, 1e-5, offset, groups)
    w = None if weighted == "none" else wide(ctx.dequant(stored))
    want = reference.rms_norm(wide(x), w, 1e-5, offset, groups)
    within(got, want, 6 * U * np.abs(want) + TINY)


@drawn
@given(seeds, st.integers(0, 4), st.integers(1, 3), st.integers(1, 20), st.integers(0, 7), st.sampled_from(["neox", "interleaved"]))
def test_rope(ctx: Context, seed: int, rows: int, heads: int, pairs: int, rest: int, style: str) -> None:
    rng = np.random.default_rng(seed)
    x = normal(seed, rows, heads, 2 * pairs + rest)
    pos = rng.integers(-(2**31), 2**31, rows)
    inv_freq = 5e5 ** (-np.arange(pairs) / pairs)
    got = ctx.rope(x, pos, inv_freq, 2 * pairs, style, 1.25)
    want = reference.rope(wide(x), pos, inv_freq, 2 * pairs, style, 1.25)
    # 4 u of the pair's length, and what float64 itself loses in an angle of up to 2^31.
    length = np.sqrt(2.0) * np.abs(wide(x)).max(-1, keepdims=True, initial=0.0) * 1.25
    within(got, want, length * (4 * U + 2.0**-20))
    np.testing.assert_array_equal(got[..., 2 * pairs :], x[..., 2 * pairs :])


def test_rope_keeps_its_accuracy_at_large_positions(ctx: Context) -> None:
    x, pos = normal(3, 4, 2, 128), np.array([0, 127, 8191, 131071])
    inv_freq = 5e5 ** (-np.arange(64) / 64)
    want = reference.rope(wide(x), pos, inv_freq, 128, "neox", 1.0)
    length = np.hypot(wide(x)[..., :64], wide(x)[..., 64:])
    within(ctx.rope(x, pos, inv_freq, 128, "neox"), want, 4 * U * np.concatenate([length, length], -1))


@drawn
@given(seeds, st.integers(1, 20), st.integers(1, 3), st.integers(1, 4), st.integers(1, 300), widths, st.booleans())
def test_attention(ctx: Context, seed: int, rows: int, kv_heads: int, share: int, cells: int, dim: int, with_sinks: bool) -> None:
    rng = np.random.default_rng(seed)
    q, k, v = normal(seed, rows, kv_heads * share, dim), normal(seed + 1, cells, kv_heads, dim), normal(seed + 2, cells, kv_heads, dim)
    visible = rng.random((rows, cells)) < rng.choice([0.05, 0.6, 1.0])
    sinks = normal(seed + 3, kv_heads * share) if with_sinks else None
    stored = FLOATS[seed % 3]
    keys, values = (ctx.convert(a, stored) for a in (k, v))
    got = ctx.attention(q, keys, values, visible, dim**-0.5, Stored.of(sinks) if sinks is not None else None)
    k, v = ctx.convert(keys, "f32"), ctx.convert(values, "f32")
    want, score = reference.attention(wide(q), wide(k), wide(v), visible, dim**-0.5, wide(sinks) if sinks is not None else None)
    bound = (2 * (dim + 8) * U * score + (min(cells, 256) + 16) * U) * np.abs(v).max()
    within(got, want, bound[..., None])
    assert (got[~visible.any(1)] == 0.0).all()


@pytest.mark.parametrize("dim", [16, 64, 100])
def test_unseen_cells_never_matter(ctx: Context, dim: int) -> None:
    q, k, v = normal(0, 3, 2, dim), normal(1, 40, 1, dim), normal(2, 40, 1, dim)
    visible = np.ones((3, 40), bool)
    visible[:, 10:20] = False
    clean = ctx.attention(q, k, v, visible, 0.25)
    k[10:20], v[10:20] = np.nan, np.inf
    np.testing.assert_array_equal(ctx.attention(q, k, v, visible, 0.25), clean)


def test_attention_scores_beyond_the_range_of_exp(ctx: Context) -> None:
    q, k, v = np.full((1, 1, 4), 40, np.float32), np.stack([np.full((1, 4), s, np.float32) for s in (-40, 40, 40)]), normal(0, 3, 1, 4)
    within(ctx.attention(q, k, v, None, 1.0), wide((v[1] + v[2]) / 2)[None], 1e-6)


@drawn
@given(seeds, st.integers(0, 4), st.integers(1, 3), st.integers(1, 9), st.sampled_from(["sigmoid", "softplus"]), st.booleans())
def test_gate(ctx: Context, seed: int, rows: int, heads: int, dim: int, kind: str, per_head: bool) -> None:
    x = normal(seed, rows, heads, dim)
    g = np.float32(40) * normal(seed + 1, rows, heads if per_head else heads * dim)
    function = reference.sigmoid if kind == "sigmoid" else lambda z: np.logaddexp(0.0, z)
    want = wide(x) * function(wide(g)).reshape(rows, heads, 1 if per_head else dim)
    within(ctx.gate(x, g, kind), want, 8 * U * np.abs(want) + TINY)


@drawn
@given(seeds, st.integers(0, 4), st.integers(1, 50), st.sampled_from(["silu", "gelu-tanh"]))
def test_swiglu(ctx: Context, seed: int, rows: int, width: int, act: str) -> None:
    gate, up = np.float32(20) * normal(seed, rows, width), normal(seed + 1, rows, width)
    x = wide(gate)
    want = (x * reference.sigmoid(x) if act == "silu" else reference.gelu_tanh(x)) * wide(up)
    # The exponent of gelu is a rounded polynomial: its relative error grows with the exponent.
    steepness = 0.0 if act == "silu" else 5 * 2 * np.sqrt(2 / np.pi) * (np.abs(x) + 0.044715 * np.abs(x) ** 3)
    within(ctx.swiglu(gate, up, act), want, (10 + steepness) * U * np.abs(want) + TINY)


@drawn
@given(seeds, st.integers(0, 5), st.integers(1, 60), st.floats(0.1, 4.0))
def test_softmax(ctx: Context, seed: int, rows: int, width: int, scale: float) -> None:
    x = np.float32(3) * normal(seed, rows, width)
    s = np.float64(np.float32(scale)) * wide(x)
    e = np.exp(s - s.max(-1, keepdims=True))
    want = e / e.sum(-1, keepdims=True)
    spread = np.abs(s).max(initial=0.0)
    within(ctx.softmax(x, scale), want, (8 + 4 * spread) * U * want + TINY)


@drawn
@given(seeds, st.integers(0, 5), st.integers(1, 60), st.sampled_from([0.0, 15.0, 20.0]), st.floats(0.01, 10.0))
def test_softcap(ctx: Context, seed: int, rows: int, width: int, cap: float, scale: float) -> None:
    x = np.float32(30) * normal(seed, rows, width)
    s = np.float64(np.float32(scale)) * wide(x)
    want = cap * np.tanh(s / cap) if cap else s
    within(ctx.softcap(x, scale, cap), want, 8 * U * np.abs(want) + TINY)


@drawn
@given(seeds, st.sampled_from(WEIGHT_TYPES), st.integers(0, 9), st.sampled_from([1.0, 78.38]))
def test_gather_is_the_decoded_row_times_the_scale(ctx: Context, seed: int, dtype: str, rows: int, scale: float) -> None:
    table = random_weight(dtype, 11, 256, seed)
    ids = np.random.default_rng(seed).integers(0, 11, rows).astype(np.int32)
    np.testing.assert_array_equal(ctx.gather(table, ids, scale), decoded(table)[ids] * np.float32(scale))


def test_add_and_concat_are_exact(ctx: Context) -> None:
    a, b, c = normal(0, 5, 7), normal(1, 5, 7), normal(2, 5, 3)
    np.testing.assert_array_equal(ctx.add(a, b), a + b)
    np.testing.assert_array_equal(ctx.concat([a, c, b]), np.concatenate([a, c, b], 1))


specials = st.sampled_from([np.nan, np.inf, -np.inf, -1.0, -0.0, 0.0, 1.0, 2.0])


@settings(max_examples=200, deadline=None)
@given(st.lists(specials, min_size=1, max_size=12))
def test_top2_takes_the_lowest_index_and_never_nan(ctx: Context, row: list[float]) -> None:
    ids, values = ctx.top2(np.array([row], np.float32))
    order = sorted((i for i, x in enumerate(row) if x == x), key=lambda i: (-row[i], i))
    want = [*order, -1, -1][:2]
    assert ids.tolist() == [want]
    for index, value in zip(want, values[0], strict=True):
        assert np.isnan(value) if index < 0 else value == np.float32(row[index])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=6), st.lists(st.integers(-1, 2), min_size=7, max_size=7))
def test_accept_counts_the_leading_agreement(ctx: Context, drafts: list[int], chosen: list[int]) -> None:
    chosen = chosen[: len(drafts) + 1]
    count = next((i for i, d in enumerate(drafts) if d != chosen[i]), len(drafts))
    assert ctx.accept(np.array(drafts, np.int32), np.array(chosen, np.int32)) == (count, chosen[count])


def test_operations_without_rows_give_nothing(ctx: Context) -> None:
    assert ctx.linear(np.empty((0, 8), np.float32), Stored.of(normal(0, 3, 8))).shape == (0, 3)
    assert ctx.attention(np.empty((0, 2, 4), np.float32), normal(0, 5, 1, 4), normal(1, 5, 1, 4), None, 1.0).shape == (0, 2, 4)
    assert (ctx.attention(normal(0, 2, 2, 4), np.empty((0, 1, 4), np.float32), np.empty((0, 1, 4), np.float32), None, 1.0) == 0).all()
    assert ctx.top2(np.empty((0, 5), np.float32))[0].shape == (0, 2)


def test_a_closed_context_says_so(cpu: Library) -> None:
    context = cpu.context(1)
    context.close()
    context.close()
    with pytest.raises(NativeError, match="the context is closed"):
        context.softmax(normal(0, 1, 1))


def test_bf16_cells_are_read_as_bf16(ctx: Context) -> None:
    q, k, v = normal(0, 2, 1, 8), normal(1, 6, 1, 8), normal(2, 6, 1, 8)
    k16, v16 = to_bf16(k), to_bf16(v)
    k32, v32 = ((a.astype(np.uint32) << 16).view(np.float32) for a in (k16, v16))
    np.testing.assert_array_equal(ctx.attention(q, k16, v16, None, 1.0), ctx.attention(q, k32, v32, None, 1.0))
