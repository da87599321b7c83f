"""Mistakes of products with a weight: scale, bias, order and layout of the weight, another tensor, narrow inputs or accumulators."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle import policies
from oracle.faults.grammar import Options
from oracle.faults.kind import Kind, Plant, args, need
from oracle.floats import FORMATS
from oracle.readings import NotHereError, Stage
from oracle.tensor import Array, Tensor
from oracle.weights import Weight

OPS = ("linear",)
MAX_MOVED = 1 << 22


def _reweighed(stage: Stage, values: Array, stored: str = "f32") -> Stage:
    x, w, *rest = stage.args
    return args(stage, x, Weight.of(values.reshape(w.shape), w.axes, stored, w.name), *rest)


def _small(w: Weight) -> Array:
    """The weight as [rows, in]; huge ones are left alone, moving them would take gigabytes."""
    need(w.row_count * w.width <= MAX_MOVED, "a weight too large to rearrange")
    return w.tile(0, w.row_count)


def _scale(o: Options) -> Plant:
    factor = o.number("factor")
    return Plant(lambda s: _reweighed(s, _small(s.args[1]) * factor))


def _bias(_: Options) -> Plant:
    def edit(stage: Stage) -> Stage:
        need(len(stage.args) > 2 and stage.args[2] is not None, "no bias")
        return args(stage, *stage.args[:2])

    return Plant(edit)


def _transposed(_: Options) -> Plant:
    """The stored numbers read with rows and columns exchanged; of a square matrix, its transpose."""

    def edit(stage: Stage) -> Stage:
        w = stage.args[1]
        need(w.row_count > 1 and w.width > 1, "no matrix")
        return _reweighed(stage, _small(w).reshape(w.width, w.row_count).T)

    return Plant(edit)


def order_of(how: str, w: Weight) -> NDArray[np.intp]:
    """Which output feature takes the place of each: ``halves`` swapped, ``pairs`` of each head as neighbours or back, ``heads`` turned."""
    n, heads = w.row_count, w.shape[0] if w.axes[0] == "head" else 1
    index = np.arange(n)
    if how == "halves":
        need(n % 2 == 0, "an odd number of output features")
        return np.roll(index, n // 2)
    if how == "heads":
        need(heads > 1, "a single head")
        return np.roll(index.reshape(heads, -1), 1, 0).ravel()
    width = n // heads
    need(width % 2 == 0 and width > 2, "no pair of output features")
    return np.asarray(index.reshape(heads, 2, width // 2).swapaxes(1, 2).reshape(-1))


def _permuted(o: Options) -> Plant:
    how = o.choice("how", "halves", "pairs", "heads")

    def edit(stage: Stage) -> Stage:
        w = stage.args[1]
        return _reweighed(stage, _small(w)[order_of(how, w)])

    return Plant(edit)


def other_weight(o: Options) -> Plant:
    """Calls are seen in order: a weight of the same layer (of=k_raw) or of the layer before (of=layer) must have come first."""
    of = o["of"]
    seen: dict[str, Any] = {}

    def edit(stage: Stage) -> Stage:
        scope, _, name = stage.path.rpartition(".")
        at = _weight_at(stage)
        w, found = stage.args[at], seen.get(name if of == "layer" else f"{scope}.{of}")
        if of == "any" and found is None:
            siblings = [v for k, v in seen.items() if k.rpartition(".")[0] == scope]
            found = next((v for v in siblings if _alike(v, w)), None)
        if found is None or not _alike(found, w):
            raise NotHereError("there is no weight of the same shape before this one here")
        return args(stage, *stage.args[:at], found, *stage.args[at + 1 :])

    def see(stage: Stage, _: Tensor) -> None:
        if stage.op.name in ("linear", "expert_linear"):
            seen[stage.path] = seen[stage.path.rpartition(".")[2]] = stage.args[_weight_at(stage)]

    return Plant(edit, None, see)


def _weight_at(stage: Stage) -> int:
    return 1 if stage.op.name == "linear" else 2


def _alike(a: Any, b: Any) -> bool:
    """Another weight (or tuple of experts' weights) of the same shape."""
    if a is b or isinstance(a, tuple) != isinstance(b, tuple):
        return False
    first, second = (a[0], b[0]) if isinstance(a, tuple) else (a, b)
    return (first.row_count, first.width) == (second.row_count, second.width) and (not isinstance(a, tuple) or len(a) == len(b))


def _layout(o: Options) -> Plant:
    how = o.choice("how", "nibbles", "scales")
    # Bytes of a block that hold two quants each, and those of its two scales.
    nibbles = {"q4_0": (2, 18), "q4_1": (4, 20), "q5_0": (6, 22), "q4_k": (16, 144), "q5_k": (48, 176)}
    sizes = {"q4_0": 18, "q4_1": 20, "q5_0": 22, "q4_k": 144, "q5_k": 176}

    def edit(stage: Stage) -> Stage:
        x, w, *rest = stage.args
        need(w.stored in (nibbles if how == "nibbles" else ("q4_1", "q4_k", "q5_k")), f"no block format with {how}")
        blocks = w.raw.reshape(-1, sizes[w.stored]).copy()
        if how == "nibbles":
            start, stop = nibbles[w.stored]
            blocks[:, start:stop] = (blocks[:, start:stop] >> 4) | (blocks[:, start:stop] << 4)
        else:
            blocks[:, [0, 1, 2, 3]] = blocks[:, [2, 3, 0, 1]]
        return args(stage, x, Weight(blocks.reshape(w.raw.shape), w.axes, w.shape, w.stored, w.name), *rest)

    return Plant(edit)


def _cast(o: Options) -> Plant:
    dtype = o.choice("dtype", "bf16", "f16")

    def edit(stage: Stage) -> Stage:
        values = _small(stage.args[1])
        need(not FORMATS[dtype].holds(values).all(), f"a weight that {dtype} holds exactly")
        return _reweighed(stage, FORMATS[dtype].round(values))

    return Plant(edit)


def _activations(o: Options) -> Plant:
    policy = o.choice("to", "bf16", "f16", "q8_0", "q8_k")

    def edit(stage: Stage) -> Stage:
        x = stage.args[0]
        flat = np.asarray(x.data, np.float64).reshape(len(x.data), -1)
        need(flat.shape[1] % {"q8_0": 32, "q8_k": 256}.get(policy, 1) == 0, f"no whole number of {policy} blocks in a row")
        seen = policies.apply(policy, flat)
        need(not np.array_equal(seen, flat), f"an input that {policy} holds exactly")
        return args(stage, Tensor(seen.reshape(x.data.shape).astype(x.data.dtype), x.axes), *stage.args[1:])

    return Plant(edit)


def accumulated(x: Array, w: Array, dtype: str) -> Array:
    """x [row, in] times w [out, in], products and running sum rounded to ``dtype`` at every step, [row, out]."""
    F = FORMATS[dtype]
    total = np.zeros((len(x), len(w)))
    for i in range(x.shape[1]):
        total = F.round(total + F.round(x[:, i, None] * w[:, i]))
    return total


def _accumulator(o: Options) -> Plant:
    dtype = o.choice("dtype", "bf16", "f16")

    def after(stage: Stage, y: NDArray[Any]) -> NDArray[Any]:
        x, w, *bias = stage.args
        flat = np.asarray(x.data, np.float64).reshape(len(x.data), -1)
        out = accumulated(flat, _small(w), dtype).reshape(y.shape)
        return out if not bias or bias[0] is None else out + bias[0].array()

    return Plant(after=after)


KINDS = (
    Kind(
        "linear.scale",
        OPS,
        "*.q_raw",
        {"factor": "1.001"},
        _scale,
        "the weight times factor",
        ("K6", "K27"),
        "factor",
        ("factor=2", "factor=1.01", "factor=1.0001"),
    ),
    Kind("linear.bias", OPS, "*.q_raw", {}, _bias, "the bias left out", ("K14", "K34"), knobs={"bias": ""}),
    Kind("linear.transposed", OPS, "*.fc", {}, _transposed, "the stored weight read with rows and columns exchanged", ("K14", "K35")),
    Kind(
        "linear.permuted",
        OPS,
        "*.q_raw",
        {"how": "pairs"},
        _permuted,
        "output features out of order: halves swapped, pairs of a head as neighbours, heads turned by one",
        ("K14", "K27", "K13"),
        "how",
        ("how=pairs", "how=halves", "how=heads"),
        {"order of heads": "how=heads"},
        ("attention.gqa", "values.heads"),
    ),
    Kind(
        "linear.other",
        OPS,
        "*.v",
        {"of": "any"},
        other_weight,
        "another tensor of the same shape: a stage of the same layer (of=k_raw, mlp_gate) or the layer before (of=layer)",
        ("K14", "K34"),
        "of",
        ("of=k_raw", "of=mlp_gate", "of=layer"),
    ),
    Kind(
        "linear.layout",
        OPS,
        "*.mlp_gate",
        {"how": "nibbles"},
        _layout,
        "the wrong layout of a quantised block: nibbles, or scale and minimum, exchanged",
        ("K27",),
        "how",
        ("how=nibbles", "how=scales"),
    ),
    Kind(
        "linear.cast",
        OPS,
        "*.o",
        {"dtype": "bf16"},
        _cast,
        "the weight rounded to a narrower dtype",
        ("K26",),
        "dtype",
        ("dtype=bf16", "dtype=f16"),
    ),
    Kind(
        "linear.activations",
        OPS,
        "*.o",
        {"to": "q8_0"},
        _activations,
        "the input rounded first: bf16, f16, blocks of q8_0 or q8_k",
        ("K26",),
        "to",
        ("to=q8_0", "to=bf16", "to=f16", "to=q8_k"),
    ),
    Kind(
        "linear.accumulator",
        OPS,
        "*.o",
        {"dtype": "f16"},
        _accumulator,
        "products and sums in a narrow accumulator",
        ("K26",),
        "dtype",
        ("dtype=bf16", "dtype=f16"),
    ),
)
