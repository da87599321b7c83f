"""Mistakes that any stage can suffer: its values moved, scaled, stored too coarsely, left over from before, or not numbers at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.faults.grammar import Options
from oracle.faults.kind import Kind, Plant, need
from oracle.floats import FORMATS
from oracle.ops.select import largest
from oracle.readings import Stage
from oracle.tensor import Tensor

Values = NDArray[Any]
# A choice or a moved id is no measured value; its mistakes are those of `CHOICES`.
CHOICE = ("argmax", "choose", "select", "select_cells", "to_target")


def _real(change: Callable[[Stage, Values], Values]) -> Plant:
    """``change`` of a stage's values, where they are values and not choices."""

    def edit(stage: Stage) -> Stage:
        need(stage.op.name not in CHOICE, "a choice, no value,")
        return stage

    return Plant(edit, change)


def _zero(_: Options) -> Plant:
    return _real(lambda stage, y: np.zeros_like(y))


def _sign(_: Options) -> Plant:
    return _real(lambda stage, y: -y)


def _scale(o: Options) -> Plant:
    factor = o.number("factor")
    return _real(lambda stage, y: y * factor)


def _rows(o: Options) -> Plant:
    by = o.integer("by")

    def change(stage: Stage, y: Values) -> Values:
        need(len(y) > 1 and by % len(y), "no other row")
        return np.roll(y, by, 0)

    return _real(change)


def _heads(o: Options) -> Plant:
    by = o.integer("by")

    def change(stage: Stage, y: Values) -> Values:
        need(y.ndim == 3 and y.shape[1] > 1 and by % y.shape[1], "no other head")
        return np.roll(y, by, 1)

    return Plant(after=change)


def _swapped(o: Options) -> Plant:
    a, b = o.integer("a"), o.integer("b")

    def change(stage: Stage, y: Values) -> Values:
        need(len(y) > max(a, b) and a != b and min(a, b) >= 0, "no such pair of rows")
        out = y.copy()
        out[[a, b]] = y[[b, a]]
        return out

    return _real(change)


def _stride(o: Options) -> Plant:
    """Row r read where r rows of ``pad`` numbers more (or less) each would end."""
    pad = o.integer("pad")

    def change(stage: Stage, y: Values) -> Values:
        need(len(y) > 1, "a single row")
        flat, width = y.ravel(), y[0].size
        start = np.arange(len(y))[:, None] * (width + pad) + np.arange(width)[None]
        return np.asarray(flat[start % flat.size].reshape(y.shape))

    return _real(change)


def _stale(_: Options) -> Plant:
    """The values of the same stage of the step before (a graph replayed on old inputs): its first call is right."""
    before: dict[tuple[str, tuple[int, ...]], Values] = {}

    def change(stage: Stage, y: Values) -> Values:
        old = before.get((stage.path, y.shape))
        return y if old is None else old

    def see(stage: Stage, y: Tensor) -> None:
        before[stage.path, y.data.shape] = y.data

    plant = _real(change)
    return Plant(plant.edit, plant.after, see)


def _torn(o: Options) -> Plant:
    """Tiles that another thread had not yet written: they hold what the row before left there."""
    tile, seed = o.integer("tile"), o.integer("seed")

    def change(stage: Stage, y: Values) -> Values:
        need(len(y) > 1 and tile > 0, "a single row")
        flat = y.reshape(len(y), -1).copy()
        late = np.random.default_rng(seed).random((len(y), -(-flat.shape[1] // tile))) < 0.25
        late[-1, -1] = True
        mask = np.repeat(late, tile, 1)[:, : flat.shape[1]]
        return np.where(mask, np.roll(flat, 1, 0), flat).reshape(y.shape)

    return _real(change)


def _nan(o: Options) -> Plant:
    value = {"nan": np.nan, "inf": np.inf}[o.choice("value", "nan", "inf")]
    return _real(lambda stage, y: np.full_like(y, value))


def _storage(o: Options) -> Plant:
    store, how = FORMATS[o.choice("dtype", "bf16", "f16")], o.choice("how", "rounded", "cut")
    return _real(lambda stage, y: store.round(y) if how == "rounded" else store.truncate(y))


def words(y: Values, was: str, read: str) -> Values:
    """The values stored as 16-bit ``was`` and read back as 16-bit ``read``."""
    if was == "bf16":
        stored = (np.ascontiguousarray(FORMATS["bf16"].round(y), np.float32).view(np.uint32) >> 16).astype(np.uint16)
    else:
        stored = FORMATS["f16"].round(y).astype(np.float16).view(np.uint16)
    if read == "bf16":
        return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return stored.view(np.float16).astype(np.float64)


def _words(o: Options) -> Plant:
    was = o.choice("stored", "bf16", "f16")
    return _real(lambda stage, y: words(y, was, "f16" if was == "bf16" else "bf16"))


def _next(_: Options) -> Plant:
    """The second largest."""

    def after(stage: Stage, y: Values) -> Values:
        scores = np.asarray(stage.args[0].data, np.float64)
        need(scores.shape[-1] > 1, "a single choice")
        second = largest(scores, 2)[:, 1]
        return second if stage.op.name == "argmax" else np.take_along_axis(stage.args[1].data, second[:, None], 1)[:, 0]

    return Plant(after=after)


KINDS = (
    Kind("values.zero", (), "*.o", {}, _zero, "zeros: a buffer never written", ("K29", "K31")),
    Kind("values.sign", (), "*.o", {}, _sign, "the sign flipped", ("K26",)),
    Kind(
        "values.scale",
        (),
        "*.mlp_down",
        {"factor": "1.01"},
        _scale,
        "the result times factor",
        ("K6",),
        "factor",
        ("factor=0.5", "factor=1.01"),
        alike=(
            "linear.scale",
            "gather.scale",
            "softcap.multiplier",
            "norm.scale",
            "rope.attention_factor",
            "experts.scale",
            "silu.scale",
            "squash.gain",
            "hc.sum",
            "index.scale",
            "values.sign",
            "experts.renormalise",
        ),
    ),
    Kind(
        "values.rows", (), "*.h_attn", {"by": "1"}, _rows, "every row holds another: row r that of r - by", ("K3",), "by", ("by=1", "by=-1")
    ),
    Kind(
        "values.heads",
        ("rope", "rms_norm", "gate", "attention", "sink_attention"),
        "*.q_rope",
        {"by": "1"},
        _heads,
        "every head holds another: head h that of h - by",
        ("K13",),
        "by",
        alike=("attention.gqa", "gate.order", "linear.permuted"),
    ),
    Kind("values.swapped", (), "*.xn_mlp", {"a": "0", "b": "1"}, _swapped, "two rows exchanged", ("K3",), "a, b", alike=("values.rows",)),
    Kind("values.stride", (), "*.q_raw", {"pad": "1"}, _stride, "rows read at a wrong stride, pad numbers too far each", ("K35",), "pad"),
    Kind("values.stage", (), "*.attn", {}, _stale, "the same stage of the step before: stale inputs of a captured graph", ("K29",)),
    Kind(
        "values.torn",
        (),
        "*.mlp_act",
        {"tile": "8", "seed": "0"},
        _torn,
        "tiles read before they were written: a race",
        ("K30",),
        "tile",
    ),
    Kind("values.nan", (), "*.attn", {"value": "nan"}, _nan, "not a number, or infinite", ("K31",), "value", ("value=nan", "value=inf")),
    Kind(
        "values.words",
        (),
        "*.v",
        {"stored": "f16"},
        _words,
        "16-bit words of one float format read as the other",
        ("K26",),
        "stored",
        ("stored=f16", "stored=bf16"),
    ),
    Kind(
        "storage",
        (),
        "*.h_mlp",
        {"dtype": "bf16", "how": "rounded"},
        _storage,
        "stored in a narrower dtype, rounded or cut",
        ("K26",),
        "dtype",
        ("dtype=bf16,how=cut", "dtype=bf16,how=rounded", "dtype=f16,how=rounded"),
    ),
    Kind(
        "choice.next",
        ("argmax", "choose"),
        "*.pick",
        {},
        _next,
        "the runner-up in place of the chosen",
        ("K25", "K23"),
    ),
)
