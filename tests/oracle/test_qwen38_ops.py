"""The operations of Qwen3.8-Flash-Next against their textbook forms, and their noise rules against really rounded runs."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest

from oracle import ngrams
from oracle.kit import EXACT
from oracle.ops import OPS
from oracle.readings import Noise, Stage
from oracle.tensor import Array, Tensor
from oracle.weights import Weight
from tests.oracle.calls import HEADS, ORDERS, ROWS, data, declared, f32, measure, stage

RNG = np.random.default_rng(0)


def textbook_delta(k: Array, v: Array, g: Array, beta: Array, q: Array) -> Array:
    """Section 1.6 step 7 for one head, with matrices."""
    state, out = np.zeros((k.shape[1], v.shape[1])), []
    for t in range(len(k)):
        state = np.exp(g[t]) * state
        state = (np.eye(len(state)) - beta[t] * np.outer(k[t], k[t])) @ state + beta[t] * np.outer(k[t], v[t])
        out.append(state.T @ q[t])
    return np.array(out)


def delta_inputs(rng: np.random.Generator, rows: int = 12, dim: int = 16):
    k, q = (f32(x / np.sqrt((x**2).sum(-1, keepdims=True))) for x in rng.standard_normal((2, rows, 2, dim)))
    v, beta = f32(rng.standard_normal((rows, 4, 6))), f32(rng.uniform(0, 1, (rows, 4)))
    return f32(rng.standard_normal((4, dim, 6))), k, v, f32(-rng.exponential(0.4, (rows, 4))), beta, q


def test_the_delta_rule_is_its_matrix_form_with_value_heads_sharing_key_heads():
    start, k, v, g, beta, q = delta_inputs(np.random.default_rng(1))
    states = OPS["delta_state"].formula(EXACT, 0 * start, k, v, g, beta)
    got = OPS["delta_read"].formula(EXACT, states, q)
    for h in range(4):
        assert got[:, h] == pytest.approx(textbook_delta(k[:, h // 2], v[:, h], g[:, h], beta[:, h], q[:, h // 2]), abs=1e-13)


def test_the_state_after_every_row_continues_as_if_never_interrupted():
    start, k, v, g, beta, _ = delta_inputs(np.random.default_rng(2))
    whole = OPS["delta_state"].formula(EXACT, start, k, v, g, beta)
    second = OPS["delta_state"].formula(EXACT, whole[4], k[5:], v[5:], g[5:], beta[5:])
    assert np.array_equal(second, whole[5:])


@pytest.mark.parametrize("dilation", [1, 3])
def test_a_short_convolution_reads_its_own_past(dilation: int):
    rng, w = np.random.default_rng(3), Weight.of(np.random.default_rng(4).standard_normal((5, 4)), ("dim", "in"))
    rows = rng.standard_normal((3 * dilation + 7, 5))
    got = OPS["short_conv"].formula(EXACT, rows[3 * dilation :], rows[: 3 * dilation], w, dilation=dilation)
    taps = w.array()
    for t in range(7):
        at = 3 * dilation + t
        assert got[t] == pytest.approx(sum(taps[:, k] * rows[at - dilation * (3 - k)] for k in range(4)))
    with pytest.raises(ValueError, match=f"need {3 * dilation} earlier rows"):
        OPS["short_conv"].formula(EXACT, rows, rows[:2], w, dilation=dilation)


def test_small_formulas():
    x, g = RNG.standard_normal((2, 3, 8))
    sigmoid = 1 / (1 + np.exp(-g))
    assert OPS["hc_read"].formula(EXACT, x, g, streams=2) == pytest.approx((x * sigmoid).reshape(3, 2, 4).mean(1))
    inject = RNG.standard_normal((3, 2))
    wrote = OPS["hc_write"].formula(EXACT, x, g[:, :4], inject).reshape(3, 2, 4)
    assert wrote == pytest.approx(x.reshape(3, 2, 4) + inject[..., None] * g[:, None, :4])
    assert OPS["silu"].formula(EXACT, g, scale=0.25) == pytest.approx(g / 4 / (1 + np.exp(-g / 4)))
    assert OPS["squash"].formula(EXACT, g, scale=0.25, gain=2.0) == pytest.approx(2 / (1 + np.exp(-g / 4)))
    assert OPS["l2_norm"].formula(EXACT, x, eps=0.5, scale=3.0) == pytest.approx(3 * x / np.sqrt((x**2).sum(-1, keepdims=True) + 0.5))
    a_log, bias = (Weight.of(v, ("head",)) for v in f32(RNG.standard_normal((2, 8))))
    wanted = -np.exp(a_log.array()) * np.log1p(np.exp(x + bias.array()))
    assert OPS["decay"].formula(EXACT, x, a_log, bias) == pytest.approx(wanted)
    assert OPS["part"].formula(EXACT, x, start=2, stop=5).tolist() == x[:, 2:5].tolist()
    assert OPS["replicate"].formula(EXACT, x, copies=2).tolist() == np.concatenate([x, x], 1).tolist()
    assert OPS["stream_gate"].formula(EXACT, x, g[:, :2])[:, 8:] == pytest.approx(x * sigmoid[:, 1:2])
    cells = RNG.standard_normal((11, 1, 3))
    assert OPS["block_mean"].formula(EXACT, cells, ratio=4) == pytest.approx(np.stack([cells[:4].mean(0), cells[4:8].mean(0)]))


def test_the_ngram_gate_keeps_the_sign_floors_the_size_and_is_nothing_at_nothing():
    key, query = np.eye(2, 4)[[0, 0, 0]], np.array([[4.0, 0, 0, 0], [-1e-9, 0, 0, 0], [0, 1, 0, 0]])
    got = OPS["ple_gate"].formula(EXACT, key, query, streams=1)[:, 0]
    assert got == pytest.approx([np.sqrt(2), -1e-3, 0])


def test_ties_between_blocks_go_to_the_lowest_and_the_tail_is_always_seen():
    scores, pos = np.array([[0.0, 2.0, 0.0, 0.0, 9.0]]), np.array([17])
    chosen = OPS["select_cells"].formula(EXACT, scores, pos, 20, ratio=4, budget=8)[0]
    assert np.flatnonzero(chosen).tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 16, 17]


def test_a_budget_that_covers_everything_is_dense_causal_attention():
    pos = np.arange(11)
    q, k = RNG.standard_normal((11, 2, 4)), RNG.standard_normal((2, 1, 4))
    scores = OPS["index_scores"].formula(EXACT, q, k, pos, ratio=4, scale=0.5)
    assert (scores[:3] == 0).all() and (scores[3:7, 1] == 0).all()
    wanted = 0.5 * np.maximum(np.einsum("rhd,bd->rhb", q, k[:, 0]), 0).sum(1)
    assert scores[8] == pytest.approx(wanted[8])
    chosen = OPS["select_cells"].formula(EXACT, scores, pos, 11, ratio=4, budget=8)
    assert np.array_equal(chosen > 0, np.arange(11)[None] <= pos[:, None])


def test_the_released_hash_constants():
    made = ngrams.make(248320, 3, 8, 20_000_000, 1234, 0, 248044)
    assert made.multipliers == (23703573157769, 20109073645365, 8052911324071)
    assert made.sizes[:5] == (20000003, 20000023, 20000033, 20000047, 20000059) and made.sizes[-1] == 20000171
    assert sum(made.sizes) == 320001446 and ngrams.table_rows(made, 128) == 320001536


def test_ngrams_stop_at_an_end_mark_but_not_at_their_own():
    h = ngrams.make(97, 3, 2, 50, 1234, 0, 5)
    m, tokens = h.multipliers, [7, 5, 9, 11]
    rows = h.rows(tokens, [5, 5])
    for i, (one, two) in enumerate([(5, 5), (7, 5), (5, 5), (9, 5)]):
        bigram = tokens[i] * m[0] ^ one * m[1]
        wanted = [bigram % h.sizes[j] + h.offsets[j] for j in (0, 1)]
        wanted += [(bigram ^ two * m[2]) % h.sizes[j] + h.offsets[j] for j in (2, 3)]
        assert rows[i].tolist() == wanted
    assert np.array_equal(h.rows(tokens[2:], tokens[:2]), rows[2:])
    with pytest.raises(ValueError, match="need 2 earlier ids"):
        h.rows(tokens, [5])


def test_a_table_in_shards_reads_as_one_and_touches_only_the_rows_it_needs():
    values = f32(RNG.standard_normal((300, 4)))
    parts = tuple(Weight.of(values[a:b], ("vocab", "in")) for a, b in ((0, 100), (100, 101), (101, 300)))
    shards = ngrams.Shards(parts, "table")
    assert (shards.row_count, shards.width) == (300, 4)
    assert np.array_equal(shards.tile(98, 103), values[98:103])
    h = ngrams.make(97, 3, 2, 50, 1234, 0, 5)
    got = OPS["ngram"].formula(EXACT, shards, [1, 2], [5, 5], h)
    assert np.array_equal(got, values[h.rows([1, 2], [5, 5])].reshape(2, -1))
    with pytest.raises(ValueError, match="outside table of 101 rows"):
        OPS["ngram"].formula(EXACT, ngrams.Shards(parts[:2], "table"), [1, 2], [5, 5], h)


def _delta(rng: np.random.Generator) -> Stage:
    start, k, v, g, beta, _ = delta_inputs(rng, 40, 32)
    scalars = [Tensor(x, ("row", "head")) for x in (g, beta)]
    return stage("delta_state", Tensor(start, ("head", "key", "dim")), Tensor(k, HEADS), Tensor(v, HEADS), *scalars)


def _read(rng: np.random.Generator) -> Stage:
    *_, q = delta_inputs(rng, 40, 32)
    return stage("delta_read", Tensor(f32(rng.standard_normal((40, 4, 32, 6))), ("row", "head", "key", "dim")), Tensor(q, HEADS))


def _rows(name: str, count: int, *rest: object, factor: float = 1.0, **params: object) -> Callable[[np.random.Generator], Stage]:
    def make(rng: np.random.Generator) -> Stage:
        tensors = [Tensor(f32(factor * rng.standard_normal((32, 64))), ROWS) for _ in range(count)]
        return stage(name, *tensors, *rest, **params)

    return make


def _conv(rng: np.random.Generator) -> Stage:
    x, history = (Tensor(f32(rng.standard_normal((n, 64))), ROWS) for n in (32, 9))
    return stage("short_conv", x, history, Weight.of(rng.standard_normal((64, 4)), ("dim", "in")), dilation=3)


def _scores(rng: np.random.Generator) -> Stage:
    q, k = Tensor(f32(rng.standard_normal((64, 4, 32))), HEADS), Tensor(f32(rng.standard_normal((30, 1, 32))), ("block", "head", "dim"))
    return stage("index_scores", q, k, np.arange(64, 128), ratio=4, scale=32**-0.5)


def _gated(streams: int) -> Callable[[np.random.Generator], Stage]:
    def make(rng: np.random.Generator) -> Stage:
        x, g = (Tensor(f32(rng.standard_normal((64, n))), ROWS) for n in (64, streams))
        return stage("stream_gate", x, g)

    return make


def _write(rng: np.random.Generator) -> Stage:
    x, y, i = (Tensor(f32(rng.standard_normal((32, n))), ROWS) for n in (256, 64, 4))
    return stage("hc_write", x, y, i)


VECTORS = [Weight.of(v, ("head",)) for v in np.random.default_rng(8).standard_normal((2, 64))]
CALLS: dict[str, Callable[[np.random.Generator], Stage]] = {
    "delta_state": _delta,
    "delta_read": _read,
    "short_conv": _conv,
    "index_scores": _scores,
    "stream_gate 4": _gated(4),
    "stream_gate 1": _gated(1),
    "hc_write": _write,
    "hc_read": _rows("hc_read", 2, factor=2.0, streams=4),
    "ple_gate": _rows("ple_gate", 2, streams=2),
    "silu": _rows("silu", 1, factor=4.0, scale=0.25),
    "silu by three": _rows("silu", 1, factor=4.0, scale=1 / 3),
    "squash": _rows("squash", 1, factor=4.0, scale=0.25, gain=2.0),
    "l2_norm": _rows("l2_norm", 1, eps=1e-6, scale=0.3),
    "decay": _rows("decay", 1, *VECTORS, factor=3.0),
    "block_mean": lambda rng: stage("block_mean", Tensor(data("gaussian", (64, 1, 48), rng), ("cell", "head", "dim")), ratio=4),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", CALLS)
def test_really_rounded_errors_are_as_large_as_predicted(name: str, order: str):
    """rms z near the 0.3 to 1.1 of the rules; nothing beyond 9 sigma or the any-order bound."""
    A = declared(order)
    runs = [measure(A, CALLS[name](np.random.default_rng(seed))) for seed in range(3)]
    rms = float(np.sqrt(np.mean([r.rms**2 for r in runs])))
    assert 0.2 < rms < 1.25
    for r in runs:
        assert r.z.max() < 9
        assert r.reach(A, r.worst(40)).max() <= 1


@pytest.mark.parametrize("name", CALLS)
def test_noise_of_the_inputs_arrives_as_large_as_predicted(name: str):
    """Inputs are jogged by their own noise, many times; the results scatter as the rule says."""
    rng, made = np.random.default_rng(5), CALLS[name](np.random.default_rng(6))
    scale = 1e-5
    noisy = tuple(Tensor(a.data, a.axes, np.full(a.data.shape, scale**2)) if isinstance(a, Tensor) else a for a in made.args)
    A = declared("f64")
    predicted = np.asarray(made.op.noise(A, Noise(A).apply(made).data, *noisy, **made.params).inherited)
    exact = made.op.formula(EXACT, *(a.data if isinstance(a, Tensor) else a for a in made.args), **made.params)
    total = np.zeros(exact.shape)
    for _ in range(30):
        jogged = [a.data + scale * rng.standard_normal(a.data.shape) if isinstance(a, Tensor) else a for a in made.args]
        total += np.square(made.op.formula(EXACT, *jogged, **made.params) - exact)
    there = predicted > 0
    assert 0.6 < np.sqrt((total[there] / 30 / predicted[there]).mean()) < 1.4
    assert not total[~there].any()


def long_delta(decay: Array, seed: int = 1) -> Stage:
    """A recurrence of 24 heads under ``decay [row, head]``."""
    rng = np.random.default_rng(seed)
    rows, heads = decay.shape
    k = rng.standard_normal((rows, heads, 16))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    scalars = (Tensor(f32(decay), ("row", "head")), Tensor(f32(rng.uniform(0.1, 0.9, decay.shape)), ("row", "head")))
    start = Tensor(np.zeros((heads, 16, 4)), ("head", "key", "dim"))
    return stage("delta_state", start, Tensor(f32(k), HEADS), Tensor(f32(rng.standard_normal((rows, heads, 4))), HEADS), *scalars)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_equal_decays_err_alike_and_that_is_predicted(share: float):
    """The error of one exponential, in all rows that share it, adds up (`specs/noise-rules.md` 5.11): 2.7 sigma of independent ones."""
    rng, shape = np.random.default_rng(5), (256, 24)
    decay = np.where(rng.random(shape) < share, -rng.uniform(1e-3, 0.05, (1, 24)), -rng.uniform(1e-3, 0.05, shape))
    m = measure(declared("sequential"), long_delta(decay))
    late = np.sqrt(np.square(m.z.reshape(256, -1)[-64:]).mean())
    assert 0.85 <= late <= 1.1 and m.z.max() <= 8


def test_only_decays_that_occur_again_are_taken_together():
    decay = np.array([[-0.1, -0.2, 0.0], [-0.1, -0.3, 0.0], [-0.4, -0.5, 0.0], [-0.1, -0.6, 0.0]])
    assert sys.modules["oracle.ops.delta_state"].repeated(decay).T.tolist() == [[True, True, False, True], [False] * 4, [False] * 4]
