"""Random calls of every operation that libraries know by name, as the oracle's forwards make them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from oracle import ngrams
from oracle.ops import OPS
from oracle.readings import Stage
from oracle.tensor import Axes, Tensor
from oracle.weights import Weight

Rng = np.random.Generator
HEADS: Axes = ("row", "head", "dim")
ROWS: Axes = ("row", "dim")
STORED = ("f32", "bf16", "f16")


def real(rng: Rng, axes: Axes, *shape: int, scale: float = 1.0) -> Tensor:
    """Normal values that float32 holds, here and there a large one and an exact 0."""
    x = scale * rng.standard_normal(shape) * np.where(rng.random(shape) < 0.05, 20.0, 1.0) * (rng.random(shape) > 0.03)
    return Tensor(x.astype(np.float32).astype(np.float64), axes)


def weight(rng: Rng, axes: Axes, *shape: int, scale: float = 1.0) -> Weight:
    return Weight.of(scale * rng.standard_normal(shape), axes, str(rng.choice(STORED)))


def stage(name: str, *args: Any, **params: Any) -> Stage:
    return Stage("x", OPS[name], args, params)


def many(rng: Rng, low: int = 1, high: int = 9) -> int:
    return int(rng.integers(low, high))


def wide(rng: Rng) -> int:
    """A width below, at and beyond vector lanes and chunks of 256."""
    return int(rng.choice([1, 3, 8, 17, 64, 256, 300]))


def ids(rng: Rng, limit: int, *shape: int) -> Any:
    return rng.integers(0, limit, shape).astype(np.float64)


def _replicate(rng: Rng) -> Stage:
    return stage("replicate", real(rng, ROWS, many(rng), wide(rng)), copies=many(rng, 1, 5))


def _join(rng: Rng) -> Stage:
    rows = many(rng)
    return stage("join", *(real(rng, ROWS, rows, wide(rng)) for _ in range(many(rng, 1, 4))))


def _cells(rng: Rng) -> Stage:
    heads, dim = many(rng, 1, 4), wide(rng)
    return stage("cells", *(real(rng, HEADS, many(rng), heads, dim) for _ in range(many(rng, 1, 3))))


def _part(rng: Rng) -> Stage:
    dim = wide(rng) + 1
    start = int(rng.integers(0, dim))
    return stage("part", real(rng, HEADS, many(rng), many(rng), dim), start=start, stop=int(rng.integers(start, dim)) + 1)


def _ngram(rng: Rng) -> Stage:
    size, per_size, vocab = many(rng, 2, 5), many(rng, 1, 4), many(rng, 7, 60)
    recipe = ngrams.make(vocab, size, per_size, many(rng, 11, 40), many(rng), many(rng, 0, 3), end=3)
    rows, width = ngrams.table_rows(recipe, 8), many(rng)
    parts = tuple(weight(rng, ("ngram", "in"), n, width) for n in (rows // 2, rows - rows // 2))
    table = ngrams.Shards(parts, "table") if rng.random() < 0.5 else weight(rng, ("ngram", "in"), rows, width)
    return stage("ngram", table, rng.integers(0, vocab, many(rng)), rng.integers(0, vocab, size - 1), recipe)


def _to_target(rng: Rng) -> Stage:
    chosen = np.where(rng.random(6) < 0.2, -1, ids(rng, 9, 6))
    return stage("to_target", Tensor(chosen, ("row",)), rng.permutation(50)[:9].astype(np.int64))


def _sigmoid(rng: Rng) -> Stage:
    return stage("sigmoid", real(rng, HEADS, many(rng), many(rng), wide(rng), scale=4))


def _silu(rng: Rng) -> Stage:
    return stage("silu", real(rng, ROWS, many(rng), wide(rng), scale=4), scale=float(rng.choice([1.0, 0.25, 1 / 3])))


def _squash(rng: Rng) -> Stage:
    return stage("squash", real(rng, ROWS, many(rng), wide(rng), scale=4), scale=float(rng.choice([1.0, 1 / 3])), gain=2.0)


def _decay(rng: Rng) -> Stage:
    heads = wide(rng)
    return stage("decay", real(rng, ("row", "head"), many(rng), heads), weight(rng, ("head",), heads), weight(rng, ("head",), heads))


def _l2_norm(rng: Rng) -> Stage:
    return stage("l2_norm", real(rng, HEADS, many(rng), many(rng), wide(rng)), eps=1e-6, scale=float(rng.choice([1.0, 0.088])))


def _hc_read(rng: Rng) -> Stage:
    streams, n, rows = many(rng, 1, 5), wide(rng), many(rng)
    return stage("hc_read", real(rng, ROWS, rows, streams * n), real(rng, ROWS, rows, streams * n, scale=3), streams=streams)


def _hc_write(rng: Rng) -> Stage:
    streams, n, rows = many(rng, 1, 5), wide(rng), many(rng)
    inject = real(rng, ("row", "stream"), rows, streams)
    return stage("hc_write", real(rng, ROWS, rows, streams * n), real(rng, ROWS, rows, n), inject)


def _ple_gate(rng: Rng) -> Stage:
    streams, n, rows = many(rng, 1, 5), wide(rng), many(rng)
    key, query = (real(rng, ROWS, rows, streams * n, scale=float(rng.choice([1.0, 1e-3]))) for _ in range(2))
    return stage("ple_gate", key, query, streams=streams)


def _stream_gate(rng: Rng) -> Stage:
    rows = many(rng)
    return stage("stream_gate", real(rng, ROWS, rows, wide(rng)), real(rng, ("row", "stream"), rows, many(rng, 1, 5), scale=3))


def _short_conv(rng: Rng) -> Stage:
    taps, dilation, rows = many(rng, 1, 6), many(rng, 1, 4), many(rng)
    channels = (many(rng, 1, 4), wide(rng)) if rng.random() < 0.5 else (wide(rng),)
    axes = HEADS if len(channels) == 2 else ROWS
    history = real(rng, axes, (taps - 1) * dilation, *channels)
    return stage(
        "short_conv", real(rng, axes, rows, *channels), history, weight(rng, (*axes[1:], "tap"), *channels, taps), dilation=dilation
    )


def _dynamic_conv(rng: Rng) -> Stage:
    taps, groups, rows = many(rng, 1, 5), many(rng, 1, 4), many(rng)
    n = groups * wide(rng)
    kernel = real(rng, ("row", "side", "tap", "group"), rows, 2, taps, groups)
    return stage("dynamic_conv", real(rng, ROWS, rows, n), kernel, weight(rng, ("side", "tap", "dim"), 2, taps, n), side=many(rng, 0, 2))


def _unit(rng: Rng, *shape: int) -> Tensor:
    x = rng.standard_normal(shape)
    return Tensor((x / np.sqrt((x**2).sum(-1, keepdims=True))).astype(np.float32).astype(np.float64), HEADS)


def _delta_sizes(rng: Rng) -> tuple[int, ...]:
    """Rows, key heads, value heads per key head, key width, value width."""
    return many(rng), many(rng, 1, 4), many(rng, 1, 4), int(rng.choice([4, 16, 64, 257])), int(rng.choice([1, 6, 16]))


def _delta_state(rng: Rng) -> Stage:
    rows, keys, share, depth, n = (
        many(rng),
        many(rng, 1, 4),
        many(rng, 1, 4),
        int(rng.choice([4, 16, 64, 257])),
        int(rng.choice([1, 6, 16])),
    )
    heads = keys * share
    beta = Tensor(rng.uniform(0, 1, (rows, heads)).astype(np.float32).astype(np.float64), ("row", "head"))
    decay = Tensor((-rng.exponential(0.4, (rows, heads))).astype(np.float32).astype(np.float64), ("row", "head"))
    start = real(rng, ("head", "key", "dim"), heads, depth, n)
    return stage("delta_state", start, _unit(rng, rows, keys, depth), real(rng, HEADS, rows, heads, n), decay, beta)


def _delta_read(rng: Rng) -> Stage:
    rows, keys, share, depth, n = (
        many(rng),
        many(rng, 1, 4),
        many(rng, 1, 4),
        int(rng.choice([4, 16, 64, 257])),
        int(rng.choice([1, 6, 16])),
    )
    return stage("delta_read", real(rng, ("row", "head", "key", "dim"), rows, keys * share, depth, n), _unit(rng, rows, keys, depth))


def _block_mean(rng: Rng) -> Stage:
    return stage("block_mean", real(rng, ("cell", "head", "dim"), many(rng, 1, 30), 1, wide(rng)), ratio=many(rng, 1, 6))


def _index_scores(rng: Rng) -> Stage:
    rows, blocks, dim, ratio = many(rng), many(rng, 1, 12), wide(rng), many(rng, 1, 5)
    pos = np.sort(rng.integers(0, ratio * (blocks + 1), rows))
    q, k = real(rng, HEADS, rows, many(rng, 1, 5), dim), real(rng, ("block", "head", "dim"), blocks, 1, dim)
    return stage("index_scores", q, k, pos, ratio=ratio, scale=dim**-0.5)


def _select_cells(rng: Rng) -> Stage:
    rows, blocks, ratio = many(rng), many(rng, 1, 12), many(rng, 1, 5)
    cells = blocks * ratio + int(rng.integers(0, ratio))
    scores = Tensor(np.maximum(rng.integers(-3, 4, (rows, blocks)), 0).astype(np.float64), ("row", "block"))
    pos = np.sort(rng.integers(0, cells, rows))
    return stage("select_cells", scores, pos, cells, ratio=ratio, budget=ratio * many(rng, 1, 6))


def _select(rng: Rng) -> Stage:
    rows, experts = many(rng), many(rng, 1, 60)
    ties = rng.random() < 0.5
    scores = Tensor(ids(rng, 4, rows, experts) if ties else real(rng, ROWS, rows, experts).data, ("row", "expert"))
    args = (weight(rng, ("expert",), experts),) if rng.random() < 0.5 else ()
    return stage("select", scores, *args, k=int(rng.integers(1, experts + 1)))


def _choose(rng: Rng) -> Stage:
    rows, count = many(rng), many(rng, 1, 9)
    scores = ids(rng, 3, rows, count)
    scores[rng.random((rows, count)) < 0.2] = np.nan
    return stage("choose", Tensor(scores, ("row", "candidate")), Tensor(ids(rng, 900, rows, count), ("row", "rank")))


def _selector_scores(rng: Rng) -> Stage:
    vocab, rank, rows, count = many(rng, 5, 60), wide(rng), many(rng, 1, 4), many(rng, 1, 6)
    logits, candidates = real(rng, ("row", "vocab"), rows, vocab), Tensor(ids(rng, vocab, rows, count), ("row", "rank"))
    codes = (weight(rng, ("vocab", "in"), vocab, rank) for _ in range(2))
    return stage("selector_scores", logits, candidates, real(rng, ROWS, rows, rank), Tensor(ids(rng, vocab, rows), ("row",)), *codes)


def _expert_weights(rng: Rng) -> Stage:
    rows, experts = many(rng), many(rng, 1, 40)
    scores = Tensor(rng.uniform(0.01, 1, (rows, experts)).astype(np.float32).astype(np.float64), ("row", "expert"))
    selected = Tensor(ids(rng, experts, rows, many(rng, 1, 9)), ("row", "rank"))
    return stage("expert_weights", scores, selected, normalise=bool(rng.integers(0, 2)), scale=float(rng.choice([1.0, 2.5])))


def _expert_linear(rng: Rng) -> Stage:
    rows, experts, ranks, width, outputs = many(rng), many(rng, 1, 9), many(rng, 1, 5), wide(rng), many(rng, 1, 30)
    shape, axes = ((rows, width), ROWS) if rng.random() < 0.5 else ((rows, ranks, width), ("row", "rank", "dim"))
    matrices = tuple(weight(rng, ("dim", "in"), outputs, width, scale=width**-0.5) for _ in range(experts))
    return stage("expert_linear", real(rng, axes, *shape), Tensor(ids(rng, experts, rows, ranks), ("row", "rank")), matrices)


def _expert_sum(rng: Rng) -> Stage:
    rows, ranks = many(rng), many(rng, 1, 12)
    weights = Tensor(rng.uniform(0, 1, (rows, ranks)).astype(np.float32).astype(np.float64), ("row", "rank"))
    return stage("expert_sum", real(rng, ("row", "rank", "dim"), rows, ranks, wide(rng)), weights)


def _markov_state(rng: Rng) -> Stage:
    rows, n = many(rng), wide(rng)
    return stage("markov_state", real(rng, ROWS, rows, n), real(rng, ("row", "part", "dim"), rows, 3, n, scale=2))


def _markov_output(rng: Rng) -> Stage:
    return stage("markov_output", real(rng, ("row", "part", "dim"), many(rng), 3, wide(rng)))


CALLS: dict[str, Callable[[Rng], Stage]] = {
    name[1:]: made for name, made in list(globals().items()) if name[1:] in OPS and name.startswith("_") and callable(made)
}
