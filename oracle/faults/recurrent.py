"""Mistakes of the Qwen3.8-Flash-Next target: delta nets, short convolutions, hyper-connections, the indexer, hashed n-grams."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.faults.grammar import Options
from oracle.faults.kind import Kind, Plant, args, need, params
from oracle.floats import FORMATS
from oracle.kit import EXACT
from oracle.ops.delta_state import delta_state, widened
from oracle.readings import Stage, values
from oracle.tensor import Tensor
from oracle.weights import Weight

Values = NDArray[Any]


def _filled(stage: Stage, index: int, value: float) -> Stage:
    given = list(stage.args)
    given[index] = Tensor(np.full_like(given[index].data, value), given[index].axes)
    return args(stage, *given)


def _no_beta(_: Options) -> Plant:
    return Plant(lambda s: _filled(s, 4, 1.0))


def _lost(_: Options) -> Plant:
    def edit(stage: Stage) -> Stage:
        need(np.any(stage.args[0].data), "no state yet")
        return _filled(stage, 0, 0.0)

    return Plant(edit)


def _kept(o: Options) -> Plant:
    """The state written to memory in a narrow dtype: between the calls, or from every row to the next as well."""
    dtype, every = o.choice("dtype", "bf16", "f16"), o.choice("every", "step", "row")

    def edit(stage: Stage) -> Stage:
        start, *rest = stage.args
        need(np.any(start.data), "no state yet")
        return args(stage, Tensor(FORMATS[dtype].round(start.data).astype(start.data.dtype), start.axes), *rest)

    def after(stage: Stage, y: Values) -> Values:
        need(len(y) > 1, "a single row")
        start, *rest = values(stage.args)
        return np.asarray(delta_state.formula(EXACT, FORMATS[dtype].round(start), *rest, rows=dtype))

    return Plant(edit) if every == "step" else Plant(after=after)


def _late_decay(_: Options) -> Plant:
    """The state decays after the memory was read from it, not before."""

    def after(stage: Stage, y: Values) -> Values:
        start, k, v, decay, beta = (np.asarray(a.data, np.float64) for a in stage.args)
        state, keys, out = start, widened(k, start.shape[0]), np.empty(y.shape)
        for t in range(len(k)):
            memory = np.einsum("hkd,hk->hd", state, keys[t])
            d = (v[t] - memory) * beta[t][:, None]
            state = state * np.exp(decay[t])[:, None, None] + keys[t][:, :, None] * d[:, None, :]
            out[t] = state
        return out

    return Plant(after=after)


def _transposed(_: Options) -> Plant:
    def edit(stage: Stage) -> Stage:
        state, q = stage.args
        need(state.data.shape[-1] == state.data.shape[-2], "a state that is not square")
        return args(stage, Tensor(np.swapaxes(state.data, -1, -2), state.axes), q)

    return Plant(edit)


def _key_heads(_: Options) -> Plant:
    """Value head h reads key head h mod key heads, not h // group."""

    def edit(stage: Stage) -> Stage:
        state, q = stage.args
        heads, keys = state.data.shape[1], q.data.shape[1]
        need(1 < keys < heads, "no other map of heads")
        return args(stage, state, Tensor(q.data[:, np.arange(heads) % keys], q.axes))

    return Plant(edit)


def _history(_: Options) -> Plant:
    def edit(stage: Stage) -> Stage:
        need(np.any(stage.args[1].data), "no row before")
        return _filled(stage, 1, 0.0)

    return Plant(edit)


def _dilation(_: Options) -> Plant:
    def edit(stage: Stage) -> Stage:
        x, history, w = stage.args
        need(stage.params.get("dilation", 1) > 1, "no dilation")
        left = len(history.data) - (w.width - 1)
        return params(args(stage, x, Tensor(history.data[left:], history.axes), w), dilation=1)

    return Plant(edit)


def _sum(_: Options) -> Plant:
    return Plant(after=lambda stage, y: y * stage.params["streams"])


def _no_gate(_: Options) -> Plant:
    """The streams read without their gates: σ(g) taken as 1."""
    return Plant(lambda s: _filled(s, 1, 60.0))


def _write(_: Options) -> Plant:
    return Plant(lambda s: _filled(s, 2, 1.0))


def _pooling(_: Options) -> Plant:
    """The last cell of every block in place of their mean."""
    return Plant(after=lambda stage, y: np.asarray(stage.args[0].data[stage.params["ratio"] - 1 :: stage.params["ratio"]][: len(y)]))


def _budget(o: Options) -> Plant:
    blocks = o.integer("blocks")

    def edit(stage: Stage) -> Stage:
        ratio, budget = stage.params["ratio"], stage.params["budget"]
        need(budget + blocks * ratio >= ratio, "no smaller budget")
        return params(stage, budget=budget + blocks * ratio)

    return Plant(edit)


def _tail(_: Options) -> Plant:
    """The incomplete block at the end not attended to, but for the row itself."""

    def after(stage: Stage, y: Values) -> Values:
        pos, ratio, out = np.asarray(stage.args[1]), stage.params["ratio"], y.copy()
        for row, p in zip(out, pos, strict=True):
            row[(p + 1) // ratio * ratio : p] = 0
        return out

    return Plant(after=after)


def _root(_: Options) -> Plant:
    """The product itself, without its signed root."""

    def after(stage: Stage, y: Values) -> Values:
        key, query = (EXACT.cast(a.data).reshape(len(y), stage.params["streams"], -1) for a in stage.args)
        return np.asarray((key * query).sum(-1) / np.sqrt(key.shape[-1]))

    return Plant(after=after)


def _copies(_: Options) -> Plant:
    """The embedding in the first stream only."""

    def after(stage: Stage, y: Values) -> Values:
        out = y.copy()
        out[:, y.shape[1] // stage.params["copies"] :] = 0
        return out

    return Plant(after=after)


def _half(_: Options) -> Plant:
    """The other half of a fused projection."""

    def edit(stage: Stage) -> Stage:
        start, stop, width = stage.params["start"], stage.params["stop"], stage.args[0].data.shape[-1]
        need(width == 2 * (stop - start), "no other half")
        return params(stage, start=width - stop, stop=width - start)

    return Plant(edit)


def _decay(how: str) -> Plant:
    def edit(stage: Stage) -> Stage:
        if how == "missing":
            return _filled(stage, 3, 0.0)
        a, a_log, dt = stage.args
        return stage if how == "sign" else args(stage, a, a_log, Weight.of(np.zeros(dt.shape), dt.axes, "f32", dt.name))

    return Plant(edit, lambda stage, y: -y if how == "sign" else y)


def _turned(_: Options) -> Plant:
    """The newest tap taken for the oldest."""

    def edit(stage: Stage) -> Stage:
        if stage.op.name == "short_conv":
            x, history, w = stage.args
            return args(stage, x, history, Weight.of(w.array()[..., ::-1], w.axes, "f32", w.name))
        x, kernel, base = stage.args
        need(base.shape[1] > 1, "a single tap")
        turned = Weight.of(base.array()[:, ::-1], base.axes, "f32", base.name)
        return args(stage, x, Tensor(kernel.data[:, :, ::-1], kernel.axes), turned)

    return Plant(edit)


def _streams(_: Options) -> Plant:
    """The write strengths in the reverse order of the streams."""

    def edit(stage: Stage) -> Stage:
        x, y, inject = stage.args
        need(inject.data.shape[1] > 1, "a single stream")
        return args(stage, x, y, Tensor(inject.data[:, ::-1], inject.axes))

    return Plant(edit)


def _index(how: str) -> Plant:
    """Negative products of the heads not cut (relu), or the scale left out (scale)."""

    def edit(stage: Stage) -> Stage:
        return params(stage, scale=1.0) if how == "scale" else stage

    def after(stage: Stage, y: Values) -> Values:
        q, k = (np.asarray(a.data, np.float64) for a in stage.args[:2])
        return y if how == "scale" else np.where(y == 0, 0.0, np.einsum("rhd,bd->rb", q, k[:, 0]) * stage.params["scale"])

    return Plant(edit, after)


def _hash(o: Options) -> Plant:
    """The tokens before the first of the window read as end marks (history), or every row hashed as the row before it (row)."""
    how = o.choice("how", "history", "row")

    def edit(stage: Stage) -> Stage:
        table, ids, history, recipe = stage.args
        if how == "row":
            need(len(ids) > 1, "a single row")
            return args(stage, table, np.concatenate([history[-1:], ids[:-1]]), history, recipe)
        blank = np.full_like(history, recipe.end)
        need(not np.array_equal(blank, history), "no token before")
        return args(stage, table, ids, blank, recipe)

    return Plant(edit)


KINDS = (
    Kind("delta.beta", ("delta_state",), "*", {}, _no_beta, "every row written with full strength", ("K34",), knobs={"write strength": ""}),
    Kind("delta.lost", ("delta_state",), "*", {}, _lost, "the state before the window lost", ("K22",), knobs={"state carried": ""}),
    Kind(
        "delta.kept",
        ("delta_state",),
        "*",
        {"dtype": "bf16", "every": "step"},
        _kept,
        "the state kept in a narrow dtype from step to step, or from row to row",
        ("K26", "K22"),
        "dtype, every",
        ("dtype=bf16,every=step", "dtype=bf16,every=row", "dtype=f16,every=step"),
        knobs={"dtype of the state": "dtype=bf16,every=step"},
    ),
    Kind(
        "delta.order",
        ("delta_state",),
        "*",
        {},
        _late_decay,
        "the state decays after its memory is read, not before",
        ("K22",),
        knobs={"decay before the read": ""},
    ),
    Kind(
        "delta.transposed",
        ("delta_read",),
        "*",
        {},
        _transposed,
        "keys and values of the state exchanged",
        ("K14", "K35"),
        knobs={"axes of the state": ""},
    ),
    Kind(
        "delta.heads",
        ("delta_read",),
        "*",
        {},
        _key_heads,
        "value heads read another key head: h mod key heads",
        ("K13",),
        knobs={"map of key heads": ""},
    ),
    Kind(
        "short_conv.history",
        ("short_conv",),
        "*",
        {},
        _history,
        "the rows before the window lost",
        ("K22", "K4"),
        knobs={"history of the convolution": ""},
    ),
    Kind("short_conv.dilation", ("short_conv",), "*", {}, _dilation, "no dilation", ("K34",), knobs={"dilation": ""}),
    Kind(
        "hc.sum",
        ("hc_read",),
        "*",
        {},
        _sum,
        "streams added up, not averaged",
        ("K6",),
        knobs={"mean of the streams": ""},
        alike=("values.scale",),
    ),
    Kind("hc.gate", ("hc_read",), "*", {}, _no_gate, "streams read without their gates", ("K34",), knobs={"stream gates": ""}),
    Kind("hc.write", ("hc_write",), "*", {}, _write, "written to every stream with strength one", ("K34",), knobs={"stream writes": ""}),
    Kind("hc.streams", ("hc_write",), "*", {}, _streams, "the write strengths of the streams turned by one", ("K14", "K13")),
    Kind("streams.first", ("replicate",), "*", {}, _copies, "the embedding in the first stream only", ("K2",), knobs={"all streams": ""}),
    Kind(
        "part.half",
        ("part",),
        "*",
        {},
        _half,
        "query and gate of the fused projection exchanged",
        ("K14",),
        knobs={"query before gate": ""},
    ),
    Kind(
        "index.pool",
        ("block_mean",),
        "*",
        {},
        _pooling,
        "the last cell of a block in place of the mean",
        ("K4",),
        knobs={"pooled index": ""},
    ),
    Kind(
        "index.budget",
        ("select_cells",),
        "*",
        {"blocks": "-1"},
        _budget,
        "one block more or less selected",
        ("K10", "K34"),
        "blocks",
        ("blocks=-1", "blocks=1"),
        {"budget": "blocks=-1"},
    ),
    Kind(
        "index.tail",
        ("select_cells",),
        "*",
        {},
        _tail,
        "the incomplete block at the end not attended to",
        ("K10", "K4"),
        knobs={"tail": ""},
    ),
    Kind("ple.root", ("ple_gate",), "*", {}, _root, "the product without its signed root", ("K34",), knobs={"signed root": ""}),
    Kind("delta.decay", ("delta_state",), "*", {}, lambda o: _decay("missing"), "the state does not decay", ("K34",), knobs={"decay": ""}),
    Kind("decay.bias", ("decay",), "*", {}, lambda o: _decay("bias"), "the decay's bias left out", ("K34",), knobs={"decay bias": ""}),
    Kind("decay.sign", ("decay",), "*", {}, lambda o: _decay("sign"), "growth in place of decay", ("K26",), alike=("values.sign",)),
    Kind(
        "short_conv.order",
        ("short_conv",),
        "*",
        {},
        _turned,
        "the newest tap taken for the oldest",
        ("K15", "K14"),
        knobs={"order of the convolution": ""},
    ),
    Kind(
        "conv.taps", ("dynamic_conv",), "*", {}, _turned, "the newest tap taken for the oldest", ("K15",), knobs={"order of the taps": ""}
    ),
    Kind(
        "index.relu",
        ("index_scores",),
        "*",
        {},
        lambda o: _index("relu"),
        "negative products of the indexer's heads not cut",
        ("K34",),
        knobs={"indexer's relu": ""},
    ),
    Kind(
        "index.scale",
        ("index_scores",),
        "*",
        {},
        lambda o: _index("scale"),
        "the indexer's scale left out",
        ("K6",),
        alike=("values.scale",),
    ),
    Kind(
        "ngram.hash",
        ("ngram",),
        "*",
        {"how": "history"},
        _hash,
        "tokens before the window not hashed, or every row hashed as the one before",
        ("K4", "K3"),
        "how",
        ("how=history", "how=row"),
        {"n-gram history": "how=history"},
        ("values.rows",),
    ),
)
