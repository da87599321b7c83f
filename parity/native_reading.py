"""The `Native` reading: every operation of a forward carried out by a compiled library, one call each.

Weights go by pointer in their stored form; outputs are fresh; axes come from the operation's own declaration. Operations with an
entry point of their own have a binding here; all others go by name, operands and numbers in the order of the oracle's formula.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oracle.kit import Kit
from oracle.ngrams import NGrams, Shards
from oracle.readings import Stage, values
from oracle.tensor import Axes, Tensor
from oracle.weights import Weight
from parity.errors import UsageError

if TYPE_CHECKING:
    from native import Context, Stored

GIVEN = "given"
# Arguments of formulas that hold token, expert or candidate ids.
IDS = ("ids", "candidates", "previous", "selected")
# Moves without arithmetic: a library that has none of its own leaves them to the host.
MOVES = ("replicate", "join", "cells", "part", "to_target")


def stored(w: Weight) -> Stored:
    """A weight as the library takes it: its stored bytes, format and shape, flattened to [rows, in]."""
    from native import Stored

    return Stored(np.ascontiguousarray(w.raw), w.stored, (w.row_count, w.width) if len(w.shape) > 1 else w.shape)


def bias_vector(w: Weight) -> Stored:
    """A bias [head, dim] or [dim] as one row."""
    from native import Stored

    flat = np.ascontiguousarray(w.array().reshape(1, -1), "<f4")
    return Stored(flat.view(np.uint8), "f32", (flat.size,))


def _flat(x: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(x.reshape(len(x), -1), np.float32)


class Native:
    """A reading whose operations run in ``context`` of a native library: float32, and int32 for what is chosen."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.kit = Kit(np.float32)
        self._stored: dict[int, tuple[Weight, Stored]] = {}

    def lift(self, data: Any, axes: Axes) -> Tensor:
        array = np.asarray(data)
        return Tensor(array.astype(np.int32 if array.dtype.kind == "i" else np.float32), axes)

    def weight(self, w: Weight) -> Stored:
        """The same `Stored` for the same weight, so that a big one is described once."""
        if id(w) not in self._stored:
            self._stored[id(w)] = (w, stored(w))
        return self._stored[id(w)][1]

    def bias(self, w: Weight) -> Stored:
        """A bias, once."""
        if id(w) not in self._stored:
            self._stored[id(w)] = (w, bias_vector(w))
        return self._stored[id(w)][1]

    def apply(self, stage: Stage) -> Tensor:
        name, axes = stage.op.name, stage.op.axes(*stage.args, **stage.params)
        known = ENTRIES.get(name, name) in self.context.ops
        if name == GIVEN or (name in MOVES and not known):
            return Tensor(stage.op.formula(self.kit, *values(stage.args), **stage.params), axes)
        if not known:
            raise UsageError(
                f"{stage.path}: the library has no operation {ENTRIES.get(name, name)}: implement it (native/include/dlab.h), "
                "or compare what the library can do with --entry fused, or a dump with parity compare"
            )
        shape = stage.op.shape(*stage.args, **stage.params)
        if name in BINDINGS:
            return Tensor(BINDINGS[name](self, *values(stage.args), **stage.params).reshape(shape), axes)
        return Tensor(self._by_name(stage, shape), axes)

    def _by_name(self, stage: Stage, shape: tuple[int, ...]) -> NDArray[Any]:
        """`Context.apply` with the formula's arguments in their order, defaults included."""
        call = inspect.signature(stage.op.formula).bind(self.kit, *values(stage.args), **stage.params)
        call.apply_defaults()
        values_of = {name: _whole(value) if name in IDS else value for name, value in list(call.arguments.items())[1:]}
        parts = [part for value in values_of.values() for part in self._parts(stage, value)]
        numbers = [float(p) for p in parts if isinstance(p, int | float)]
        operands = [p for p in parts if not isinstance(p, int | float)]
        ids = stage.op.kind == "choice" or stage.op.name == "to_target"
        return self.context.apply(stage.op.name, operands, numbers, np.empty(shape, np.int32 if ids else np.float32))

    def _parts(self, stage: Stage, value: Any) -> Iterator[Any]:
        """One argument as operands (arrays, weights) and numbers; an absent one is left out."""
        if isinstance(value, int | float | np.number):
            yield float(value)
        elif isinstance(value, np.ndarray):
            kept = value.dtype in (np.int32, np.int64)
            yield np.ascontiguousarray(value) if kept else np.ascontiguousarray(value, np.float32)
        elif isinstance(value, Weight):
            yield self.weight(value)
        elif isinstance(value, tuple | Shards):
            for part in value if isinstance(value, tuple) else value.parts:
                yield from self._parts(stage, part)
        elif isinstance(value, NGrams):
            yield from (np.array(row, np.int64) for row in (value.multipliers, value.sizes, value.offsets))
            yield float(value.end)
        elif value is not None:
            raise UsageError(f"{stage.path}: the lab cannot hand a {type(value).__name__} to a library's {stage.op.name}")


def _whole(ids: Any) -> Any:
    """Ids that a fault put there come as whole floats; nothing chosen is -1."""
    return np.nan_to_num(ids, nan=-1).astype(np.int64) if isinstance(ids, np.ndarray) and ids.dtype.kind == "f" else ids


def _rms_norm(n: Native, x: Any, w: Weight | None, *, eps: float, offset: float = 0.0, groups: int = 1) -> NDArray[Any]:
    rows = np.ascontiguousarray(x.reshape(-1, x.shape[-1]), np.float32)
    return n.context.rms_norm(rows, None if w is None else n.weight(w), eps, offset, groups)


def _linear(n: Native, x: Any, w: Weight, bias: Weight | None = None) -> NDArray[Any]:
    return n.context.linear(_flat(x), n.weight(w), None if bias is None else n.bias(bias))


def _rope(n: Native, x: Any, pos: Any, recipe: Any) -> NDArray[Any]:
    """Libraries take one position per row; positions per head (a fault, an explanation) go head by head."""
    pos = np.ascontiguousarray(pos, np.int64)
    args = (recipe.inv_freq(), recipe.dim, recipe.style, recipe.attention_factor)
    x = np.ascontiguousarray(x, np.float32)
    if pos.ndim == 1:
        return n.context.rope(x, pos, *args)
    heads = [n.context.rope(np.ascontiguousarray(x[:, h : h + 1]), np.ascontiguousarray(pos[:, h]), *args) for h in range(x.shape[1])]
    return np.concatenate(heads, 1)


def _attention(n: Native, q: Any, k: Any, v: Any, *, visible: Any, scale: float) -> NDArray[Any]:
    q, k, v = (np.ascontiguousarray(t, np.float32) for t in (q, k, v))
    return n.context.attention(q, k, v, visible.matrix(), scale)


def _sink_attention(n: Native, q: Any, k: Any, v: Any, sinks: Weight, *, visible: Any, scale: float) -> NDArray[Any]:
    q, k, v = (np.ascontiguousarray(t, np.float32) for t in (q, k, v))
    return n.context.attention(q, k, v, visible.matrix(), scale, n.bias(sinks))


def _gather(n: Native, table: Weight, ids: Any, *, scale: float = 1.0) -> NDArray[Any]:
    """Rows by id; NaN where a stage chose an id that has none (-1: every logit was NaN). The case's own ids are int64."""
    chosen = (ids >= 0) & (ids < table.row_count) if ids.dtype == np.int32 else np.ones(len(ids), bool)
    ids = np.ascontiguousarray(ids, np.int32)
    rows = n.context.gather(n.weight(table), np.where(chosen, ids, 0).astype(np.int32), scale)
    return np.where(chosen[:, None], rows, np.float32(np.nan))


def _gate(n: Native, x: Any, g: Any, *, kind: str) -> NDArray[Any]:
    return n.context.gate(np.ascontiguousarray(x if x.ndim == 3 else x[..., None], np.float32), _flat(g), kind)


BINDINGS: dict[str, Callable[..., NDArray[Any]]] = {
    "rms_norm": _rms_norm,
    "linear": _linear,
    "rope": _rope,
    "attention": _attention,
    "sink_attention": _sink_attention,
    "swiglu": lambda n, gate, up: n.context.swiglu(_flat(gate), _flat(up)),
    "add": lambda n, a, b: n.context.add(_flat(a), _flat(b)),
    "gate": _gate,
    "softcap": lambda n, x, *, scale, cap: n.context.softcap(_flat(x), scale, cap or 0.0),
    "gather": _gather,
    "argmax": lambda n, x: np.ascontiguousarray(n.context.top2(np.ascontiguousarray(x, np.float32))[0][:, 0]),
    "softmax": lambda n, x: n.context.softmax(_flat(x)),
}
# Where the library's entry point has another name than the operation.
ENTRIES = {"argmax": "top2", "sink_attention": "attention"}
