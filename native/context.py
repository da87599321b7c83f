"""The operations of a library on NumPy arrays, under the names of the oracle's operations."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from native.calls import Calls, DumpCallback
from native.drafter import Drafter
from native.errors import NativeError
from native.tensors import Floats, Stored, ffi, view

ROPE_STYLES = {"neox": 1, "interleaved": 2}
GATES = {"sigmoid": 1, "softplus": 2}
ACTIVATIONS = {"silu": 0, "gelu-tanh": 1}
_ACTIVATION_ARRAYS = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}


class Context:
    """An open context: a library's operations with their own threads. Use it as a context manager, from one thread at a time.

    Activations are C-contiguous float32 arrays with as many axes as written; anything else is refused with ValueError, never copied
    silently. Results are fresh arrays. Weights are `Stored`. Whatever the library refuses is raised as `NativeError`.
    """

    def __init__(self, handle: Any, ops: Iterable[str], flags: frozenset[str], abi: tuple[int, int], options: dict[str, str]) -> None:
        self.ops = frozenset(ops)
        self.flags = flags
        self.abi = abi
        self._calls = Calls(handle, options)
        self._drafters: weakref.WeakSet[Drafter] = weakref.WeakSet()

    def has_entry(self, op: str) -> bool:
        """Whether the library has an entry point ``dlab_<op>`` of its own, apart from what it knows by name."""
        return hasattr(self._calls.handle, f"dlab_{op}")

    def _empty(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Memory for a result."""
        return np.empty(shape, dtype)

    def rms_norm(self, x: Floats, w: Stored | None, eps: float, offset: float = 0.0, groups: int = 1) -> Floats:
        """``x / sqrt(mean(x^2) + eps) * (w + offset)`` over each of ``groups`` equal parts of a row. x [R, n]; w [n] or [n/groups]."""
        _floats("x", x, 2)
        y = self._empty(x.shape, np.float32)
        self._calls.call("rms_norm", view(x), _optional(w), eps, offset, groups, view(y))
        return y

    def linear(self, x: Floats, w: Stored, bias: Stored | None = None) -> Floats:
        """``x w^T + bias``. x [M, K]; w [..., K], its output axes flattened to N; bias [N]. Returns [M, N]."""
        _floats("x", x, 2)
        y = self._empty((x.shape[0], w.raw.shape[0]), np.float32)
        self._calls.call("linear", view(x), w.matrix(), _optional(bias), view(y))
        return y

    def rope(
        self, x: Floats, pos: NDArray[np.int64], inv_freq: NDArray[np.float64], rot: int, style: str, mscale: float = 1.0
    ) -> Floats:
        """Rotate the first ``rot`` values of every head by ``pos[row] * inv_freq[pair]``. x [R, H, D]; pos int64 [R]; inv_freq [rot/2]."""
        _floats("x", x, 3)
        positions = _positions(pos, x.shape[0])
        frequencies = np.ascontiguousarray(inv_freq, np.float64)
        if frequencies.shape != (rot // 2,):
            raise ValueError(f"inv_freq has shape {frequencies.shape}, expected ({rot // 2},)")
        y = self._empty(x.shape, np.float32)
        kind = _choice("style", style, ROPE_STYLES)
        self._calls.call("rope", view(x), _pointer("int64_t*", positions), _pointer("double*", frequencies), rot, kind, mscale, view(y))
        return y

    def attention(
        self,
        q: Floats,
        k: NDArray[Any],
        v: NDArray[Any],
        visible: NDArray[np.bool_] | None,
        scale: float,
        sinks: Stored | None = None,
    ) -> Floats:
        """``softmax(scale q k^T over visible cells) v``. q [R, Hq, D]; k, v [C, Hk, D] float32, float16 or bf16 bits (uint16);
        visible bool [R, C] or None for all; sinks [Hq]. A row that sees nothing gives 0."""
        _floats("q", q, 3)
        cells = [_cells(name, a) for name, a in (("k", k), ("v", v))]
        mask = None
        if visible is not None:
            mask = np.ascontiguousarray(visible).view(np.uint8)
            if visible.dtype != np.bool_ or visible.shape != (q.shape[0], k.shape[0]):
                raise ValueError(f"visible is {visible.dtype} {visible.shape}, expected bool {(q.shape[0], k.shape[0])}")
        out = self._empty(q.shape, np.float32)
        pointer = ffi.NULL if mask is None else _pointer("uint8_t*", mask)
        self._calls.call("attention", view(q), *cells, pointer, scale, _optional(sinks), view(out))
        return out

    def gate(self, x: Floats, g: Floats, kind: str) -> Floats:
        """``x * sigmoid(g)`` or ``x * softplus(g)``. x [R, H, D]; g [R, H] or [R, H*D]."""
        _floats("x", x, 3)
        _floats("g", g, 2)
        y = self._empty(x.shape, np.float32)
        self._calls.call("gate", view(x), view(g), _choice("kind", kind, GATES), view(y))
        return y

    def swiglu(self, gate: Floats, up: Floats, act: str = "silu") -> Floats:
        """``act(gate) * up``, both [R, n]; act ``silu`` or ``gelu-tanh``."""
        _floats("gate", gate, 2)
        _floats("up", up, 2)
        y = self._empty(gate.shape, np.float32)
        self._calls.call("swiglu", view(gate), view(up), _choice("act", act, ACTIVATIONS), view(y))
        return y

    def add(self, a: Floats, b: Floats) -> Floats:
        """``a + b``, both [R, n]."""
        _floats("a", a, 2)
        _floats("b", b, 2)
        y = self._empty(a.shape, np.float32)
        self._calls.call("add", view(a), view(b), view(y))
        return y

    def gather(self, table: Stored, ids: NDArray[np.int32], scale: float = 1.0) -> Floats:
        """``scale * table[ids]``. table [V, n]; ids int32 [R]. Returns [R, n]."""
        rows = _ids("ids", ids)
        y = self._empty((len(rows), table.shape[-1]), np.float32)
        self._calls.call("gather", table.matrix(), _pointer("int32_t*", rows), len(rows), scale, view(y))
        return y

    def concat(self, parts: Sequence[Floats]) -> Floats:
        """Join arrays [R, w_i] along the last axis."""
        if not parts:
            raise ValueError("concat needs at least one array")
        for i, part in enumerate(parts):
            _floats(f"parts[{i}]", part, 2)
        y = self._empty((parts[0].shape[0], sum(p.shape[1] for p in parts)), np.float32)
        self._calls.call("concat", ffi.new("dlab_tensor[]", [view(p)[0] for p in parts]), len(parts), view(y))
        return y

    def top2(self, x: Floats) -> tuple[NDArray[np.int32], Floats]:
        """The two largest values of each row: ids int32 [R, 2] and values [R, 2]. Ties go to the lowest index; NaN is never chosen;
        where nothing can be chosen the id is -1 and the value NaN."""
        _floats("x", x, 2)
        ids, values = self._empty((x.shape[0], 2), np.int32), self._empty((x.shape[0], 2), np.float32)
        self._calls.call("top2", view(x), _pointer("int32_t*", ids), _pointer("float*", values))
        return ids, values

    def softmax(self, x: Floats, scale: float = 1.0) -> Floats:
        """``softmax(scale * x)`` over the rows of x [R, n]."""
        _floats("x", x, 2)
        y = self._empty(x.shape, np.float32)
        self._calls.call("softmax", view(x), scale, view(y))
        return y

    def softcap(self, x: Floats, scale: float = 1.0, cap: float = 0.0) -> Floats:
        """``cap * tanh(scale * x / cap)``, or ``scale * x`` when cap <= 0. x [R, n]."""
        _floats("x", x, 2)
        y = self._empty(x.shape, np.float32)
        self._calls.call("softcap", view(x), scale, cap, view(y))
        return y

    def dequant(self, w: Stored) -> Floats:
        """The f32 values of a weight, in its logical shape."""
        y = self._empty((w.raw.shape[0], w.shape[-1]), np.float32)
        self._calls.call("dequant", w.matrix(), view(y))
        return y.reshape(w.shape)

    def convert(self, x: NDArray[Any], dtype: str) -> NDArray[Any]:
        """``x`` (float32, float16 or bf16 bits as uint16; 1 to 4 axes) rounded to nearest even in ``dtype`` (``f32 f16 bf16``)."""
        kind = _choice("dtype", dtype, _ACTIVATION_ARRAYS)
        y = self._empty(x.shape, kind)
        self._calls.call("convert", _cells("x", x), view(y, dtype))
        return y

    def accept(self, drafts: NDArray[np.int32], argmax: NDArray[np.int32]) -> tuple[int, int]:
        """Greedy acceptance: how many leading ``drafts`` [n] equal ``argmax`` [n+1], and the bonus token after them."""
        proposed, chosen = _ids("drafts", drafts), _ids("argmax", argmax)
        if len(chosen) != len(proposed) + 1:
            raise ValueError(f"argmax has {len(chosen)} rows, expected one more than the {len(proposed)} drafts")
        accepted, bonus = ffi.new("int32_t*"), ffi.new("int32_t*")
        pointers = _pointer("int32_t*", proposed), len(proposed), _pointer("int32_t*", chosen)
        self._calls.call("accept", *pointers, accepted, bonus)
        return int(accepted[0]), int(bonus[0])

    def apply(self, op: str, operands: Sequence[NDArray[Any] | Stored], params: Sequence[float], y: NDArray[Any]) -> NDArray[Any]:
        """Run an operation that libraries know by name (`dlab.h`, operations by name) into ``y``, float32 or int32, and return it.

        ``operands``: C-contiguous arrays (float32, int32 or int64) and weights in the order the header lists them; ``params``: its
        numbers in that order. `NativeError` UNSUPPORTED for an operation that the library does not have.
        """
        if op not in self.ops:
            raise NativeError("UNSUPPORTED", f"the library has no operation {op} (dlab.h 1.1: dlab_operations lists what it has)")
        tensors = ffi.new("dlab_tensor[]", max(len(operands), 1))
        for i, operand in enumerate(operands):
            tensors[i] = (operand.operand() if isinstance(operand, Stored) else _numbers(f"operand {i}", operand))[0]
        numbers = ffi.new("double[]", [float(p) for p in params] or 1)
        self._calls.call("apply", op.encode(), tensors, len(operands), numbers, len(params), _numbers("y", y))
        return y

    def drafter(self, config: dict[str, object], weights: Mapping[str, Stored | NDArray[np.int64]]) -> Drafter:
        """The fused drafter of the library. ``config`` and ``weights``: keys and roles as `dlab.h` lists them at
        `dlab_drafter_create`; booleans and sequences are written as 0/1 and comma lists. ``target_ids`` is int64, the weights are
        `Stored`; they are borrowed, not copied."""
        if "fused" not in self.flags:
            raise NativeError("UNSUPPORTED", "the library declares no fused drafter")
        made = Drafter(self, self._calls, config, weights)
        self._drafters.add(made)
        return made

    def on_dump(self, callback: DumpCallback | None, patterns: str = "*") -> None:
        """Call ``callback(stage, row0, array, dtype)`` for every fused stage matching one of the comma separated globs; None stops it.

        ``array`` is a copy in the stored dtype (bf16 as uint16 bits). What the callback raises ends the running append or propose and
        is raised from it.
        """
        if "dumps" not in self.flags:
            raise NativeError("UNSUPPORTED", "the library declares no stage dumps")
        self._calls.set_dump(callback, patterns)

    def after_each_call(self, told: Callable[[str], None] | None) -> None:
        """Call ``told(what)`` whenever a call into the library has returned, before its status is looked at."""
        self._calls.after = told

    def close(self) -> None:
        """Close the drafters made from this context and the context itself; safe to repeat."""
        for drafter in list(self._drafters):
            drafter.close()
        self._calls.close()

    def __enter__(self) -> Context:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_drafters"):
            self.close()


def _floats(name: str, array: NDArray[Any], ndim: int) -> None:
    if array.dtype != np.float32 or array.ndim != ndim or not array.flags.c_contiguous:
        layout = "" if array.flags.c_contiguous else ", not C-contiguous"
        raise ValueError(f"{name} is {array.dtype} {array.shape}{layout}, expected C-contiguous float32 with {ndim} axes")


def _cells(name: str, array: NDArray[Any]) -> Any:
    names = {np.dtype(kind): dtype for dtype, kind in _ACTIVATION_ARRAYS.items()}
    if array.dtype not in names or not array.flags.c_contiguous:
        raise ValueError(f"{name} is {array.dtype} {array.shape}, expected C-contiguous float32, float16 or uint16 (bf16 bits)")
    return view(array, names[array.dtype])


def _numbers(name: str, array: NDArray[Any]) -> Any:
    names = {np.dtype(np.float32): "f32", np.dtype(np.int32): "i32", np.dtype(np.int64): "i64"}
    if array.dtype not in names or not array.flags.c_contiguous or not 1 <= array.ndim <= 4:
        layout = "" if array.flags.c_contiguous else ", not C-contiguous"
        raise ValueError(f"{name} is {array.dtype} {array.shape}{layout}, expected C-contiguous float32, int32 or int64 with 1 to 4 axes")
    return view(array, names[array.dtype])


def _positions(pos: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    if pos.dtype != np.int64 or pos.shape != (rows,):
        raise ValueError(f"pos is {pos.dtype} {pos.shape}, expected int64 ({rows},)")
    return np.ascontiguousarray(pos)


def _ids(name: str, ids: NDArray[np.int32]) -> NDArray[np.int32]:
    if ids.dtype != np.int32 or ids.ndim != 1:
        raise ValueError(f"{name} is {ids.dtype} {ids.shape}, expected int32 with one axis")
    return np.ascontiguousarray(ids)


def _choice(name: str, value: str, choices: dict[str, Any]) -> Any:
    if value not in choices:
        raise ValueError(f"{name}={value!r}: expected one of {', '.join(choices)}")
    return choices[value]


def _optional(w: Stored | None) -> Any:
    return ffi.NULL if w is None else w.vector()


def _pointer(kind: str, array: NDArray[Any]) -> Any:
    return ffi.cast(kind, array.ctypes.data)
