"""Hashed n-grams and their gate, an indexer's block means and scores, a selector's scores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from oracle.ngrams import NGrams
from oracle.ops.hc_read import by_stream
from oracle.ops.index_scores import complete
from oracle.ops.ple_gate import FLOOR
from oracle.ops.selector_scores import _codes, _picked
from parity.explain.base import Hypothesis, Suspect, become, with_arg, with_params


def ngram(s: Suspect) -> Iterator[Hypothesis]:
    table, ids, history, recipe = s.stage.args
    assert isinstance(recipe, NGrams)
    past = np.asarray(history, np.int64)
    for kind, text, edited in (
        ("ngram.hash", "the multipliers in reverse order", with_arg(s.stage, 3, replace(recipe, multipliers=recipe.multipliers[::-1]))),
        ("ngram.end", "end marks not minded: n-grams reach over them", with_arg(s.stage, 3, replace(recipe, end=-1))),
        ("ngram.offsets", "every head in the first head's rows: the offsets left out", with_arg(s.stage, 3, _without_offsets(recipe))),
        ("ngram.hash", "the tokens before the window taken as end marks", with_arg(s.stage, 2, np.full(len(past), recipe.end))),
        ("ngram.hash", "the tokens before the window taken as token 0", with_arg(s.stage, 2, np.zeros(len(past), np.int64))),
        ("ngram.hash", "the tokens before the window in reverse order", with_arg(s.stage, 2, past[::-1].copy())),
    ):
        yield Hypothesis(kind, text, edited)
    late = np.concatenate([past[-1:], np.asarray(ids, np.int64)[:-1]]) if len(past) else np.asarray(ids, np.int64)
    yield Hypothesis("ngram.hash", "the n-gram of the token before", with_arg(with_arg(s.stage, 1, late), 2, np.roll(past, 1)))
    width = table.width
    heads = s.y.data.reshape(len(s.c), -1, width)
    yield Hypothesis("ngram.order", "the heads in reverse order", s.stage, become(heads[:, ::-1]))
    yield Hypothesis("ngram.order", "the lengths of n-grams in reverse order", s.stage, become(np.roll(heads, recipe.per_size, 1)))


def _without_offsets(recipe: NGrams) -> NGrams:
    return replace(recipe, offsets=(0,) * len(recipe.offsets))


def ple_gate(s: Suspect) -> Iterator[Hypothesis]:
    key, query, streams = s.stage.args[0].data, s.stage.args[1].data, s.stage.params["streams"]
    k, q = by_stream(key, streams), by_stream(query, streams)
    dot = (k * q).sum(-1)
    d = dot / np.sqrt(k.shape[-1])
    for text, value in (
        ("the root left out", d),
        ("the sign left out", np.sqrt(np.maximum(np.abs(d), FLOOR))),
        ("not divided by the root of the width", np.sign(dot) * np.sqrt(np.maximum(np.abs(dot), FLOOR))),
        ("divided by the width, not its root", np.sign(d) * np.sqrt(np.maximum(np.abs(dot) / k.shape[-1], FLOOR))),
        ("the floor left out", np.sign(d) * np.sqrt(np.abs(d))),
        ("negative products dropped", np.sqrt(np.maximum(d, FLOOR))),
        ("the streams in reverse order", (np.sign(d) * np.sqrt(np.maximum(np.abs(d), FLOOR)))[:, ::-1]),
    ):
        yield Hypothesis("ple.root", text, s.stage, become(value))


def block_mean(s: Suspect) -> Iterator[Hypothesis]:
    cells, ratio = s.stage.args[0].data, s.stage.params["ratio"]
    count = len(cells) // ratio
    blocks = cells[: count * ratio].reshape(count, ratio, *cells.shape[1:])
    for text, value in (
        ("the sum of the cells, not their mean", blocks.sum(1)),
        ("the largest of the cells", blocks.max(1)),
        ("the first cell of each block", blocks[:, 0]),
        ("the last cell of each block", blocks[:, -1]),
        ("every ratio-th cell together, not neighbours", cells[: count * ratio].reshape(ratio, count, *cells.shape[1:]).mean(0)),
    ):
        yield Hypothesis("index.pool", text, s.stage, become(value))
    if len(cells) >= count * ratio + 1:
        late = cells[1 : count * ratio + 1].reshape(count, ratio, *cells.shape[1:]).mean(1)
        yield Hypothesis("index.pool", "blocks that start one cell late", s.stage, become(late))


def index_scores(s: Suspect) -> Iterator[Hypothesis]:
    q, k, pos = s.stage.args[0].data, s.stage.args[1].data, s.stage.args[2]
    ratio, scale = s.stage.params["ratio"], s.stage.params["scale"]
    products = q @ k[:, 0].T
    seen = complete(pos, len(k), ratio)
    relu = np.maximum(products, 0)
    for text, value in (
        ("relu left out", products.sum(1) * scale),
        ("relu after the sum over heads", np.maximum(products.sum(1), 0) * scale),
        ("the mean over heads, not their sum", relu.mean(1) * scale),
        ("the largest head, not their sum", relu.max(1) * scale),
        ("the scale left out", relu.sum(1)),
        ("the scale applied twice", relu.sum(1) * scale**2),
        ("the first head alone", relu[:, 0] * scale),
    ):
        yield Hypothesis(
            f"index.{'relu' if 'relu' in text else 'scale' if 'scale' in text else 'heads'}",
            text,
            s.stage,
            become(np.where(seen, value, 0.0)),
        )
    yield Hypothesis("index.complete", "incomplete blocks scored too", s.stage, become(relu.sum(1) * scale))
    early = with_params(s.stage, ratio=ratio)
    for shift in (-1, 1, -ratio, ratio):
        moved = np.maximum(np.asarray(pos, np.int64) + shift, 0)
        yield Hypothesis("index.complete", f"blocks counted as complete for position {shift:+d}", with_arg(early, 2, moved))


def selector_scores(s: Suspect) -> Iterator[Hypothesis]:
    logits, candidates, hidden, previous, predecessor, successor = s.stage.args
    before, after = _codes(candidates.data, previous.data, predecessor, successor)
    picked = _picked(logits.data, candidates.data)
    pair = (before * hidden.data[:, None] * after).sum(-1)
    for text, value in (
        ("the pair's term left out: the logits alone", picked),
        ("the logits left out: the pair's term alone", pair),
        ("the hidden row left out of the pair's term", picked + (before * after).sum(-1)),
        ("the token before left out of the pair's term", picked + (hidden.data[:, None] * after).sum(-1)),
        ("the pair's term subtracted", picked - pair),
    ):
        yield Hypothesis("selector.pair", text, s.stage, become(value))
    swapped = with_arg(with_arg(s.stage, 4, successor), 5, predecessor)
    yield Hypothesis("selector.books", "the codebooks of predecessor and successor swapped", swapped)
