"""The fused drafter of a library: context rows in, proposals out (`dlab.h`, fused drafter)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from native.calls import Calls
from native.errors import NativeError
from native.tensors import Floats, Stored, ffi, view

BORROW = 1
OPTIONAL = ("drafter_drafts", "drafter_verify")
"""Entry points of a fused drafter that a library may lack: of ABI 1.1 and 1.2."""


@dataclass(frozen=True, eq=False)
class Proposal:
    """What one block gave. ``ids`` int32 [rows]: argmax per row, lowest index on ties, -1 when all NaN. ``top2`` [rows, 2]: the two
    largest logits. ``logits`` [rows, vocab], or None when not asked for."""

    ids: NDArray[np.int32]
    top2: Floats
    logits: Floats | None


class Drafter:
    """Made by `Context.drafter`; keeps its context alive, and is closed with it at the latest.

    ``entries``: those of `OPTIONAL` that the library has.
    """

    def __init__(self, owner: object, calls: Calls, config: dict[str, object], weights: Mapping[str, Stored | NDArray[np.int64]]) -> None:
        self._owner = owner
        self.entries = frozenset(name for name in OPTIONAL if hasattr(calls.handle, f"dlab_{name}"))
        self._calls = calls
        self._weights = dict(weights)  # borrowed by the library: they must outlive it
        names = [ffi.new("char[]", name.encode()) for name in weights]
        table = ffi.new("dlab_named_tensor[]", len(weights))
        for entry, name, (role, weight) in zip(table, names, weights.items(), strict=True):
            entry.name, entry.tensor = name, _described(role, weight)[0]
        out = ffi.new("dlab_drafter**")
        self._pointer: Any = None
        calls.call("drafter_create", config_text(config).encode(), table, len(weights), BORROW, out)
        self._pointer = out[0]
        described = self.describe()
        self.vocab = int(described.get("draft_vocab", described["vocab"]))
        self._block, self._confident = int(described["block_size"]), described.get("confidence", "none") != "none"
        self._cell = int(described["kv_heads"]), int(described["head_dim"])

    def append(self, taps: Floats, start: int) -> None:
        """Commit context rows ``start ..`` from taps float32 [T, taps * target hidden]. ``start``: the current length, or lower to
        overwrite rows that are still held."""
        if taps.dtype != np.float32 or taps.ndim != 2 or not taps.flags.c_contiguous:
            raise ValueError(f"taps are {taps.dtype} {taps.shape}, expected C-contiguous float32 with 2 axes")
        self._call("append", view(taps), start)

    def propose(self, block_ids: NDArray[np.int32], position: int, logits: bool = True) -> Proposal:
        """Run the block ``block_ids`` int32 [rows], its first row at ``position``, over the committed context."""
        ids = np.ascontiguousarray(block_ids)
        if ids.dtype != np.int32 or ids.ndim != 1:
            raise ValueError(f"block_ids are {ids.dtype} {ids.shape}, expected int32 with one axis")
        rows = len(ids)
        chosen, top2 = np.empty(rows, np.int32), np.empty((rows, 2), np.float32)
        values = np.empty((rows, self.vocab), np.float32) if logits else None
        pointers = [ffi.cast("int32_t*", ids.ctypes.data), rows, position, ffi.cast("int32_t*", chosen.ctypes.data)]
        self._call("propose", *pointers, ffi.cast("float*", top2.ctypes.data), ffi.NULL if values is None else view(values))
        return Proposal(chosen, top2, values)

    def drafts(self) -> tuple[NDArray[np.int32], Floats]:
        """What the last block proposes, ids in the target's vocabulary, int32 [drafted row], and how likely the target is to accept each
        [drafted row] (empty without a confidence head). `NativeError` UNSUPPORTED for a library of ABI 1.0."""
        n = ffi.new("int32_t*", self._block)
        ids, confidence = np.empty(self._block, np.int32), np.full(self._block, np.nan, np.float32)
        self._call("drafts", ffi.cast("int32_t*", ids.ctypes.data), ffi.cast("float*", confidence.ctypes.data), n)
        count = int(n[0])
        return ids[:count], confidence[: count if self._confident else 0]

    def verify(self, drafts: NDArray[np.int32], logits: Floats, taps: Floats, position: int) -> tuple[NDArray[np.int32], int, int]:
        """The end of a greedy round: (picks int32 [n + 1], accepted, bonus), and the committed rows become context.

        ``drafts`` int32 [n] behind the anchor at ``position``; ``logits`` float32 [n + 1, vocab] of the target and ``taps`` float32
        [n + 1, taps * target hidden] of the window's rows. `NativeError` UNSUPPORTED for a library without it (ABI 1.2).
        """
        ids = np.ascontiguousarray(drafts)
        if ids.dtype != np.int32 or ids.ndim != 1:
            raise ValueError(f"drafts are {ids.dtype} {ids.shape}, expected int32 with one axis")
        for name, x in (("logits", logits), ("taps", taps)):
            if x.dtype != np.float32 or x.ndim != 2 or not x.flags.c_contiguous:
                raise ValueError(f"{name} are {x.dtype} {x.shape}, expected C-contiguous float32 with 2 axes")
        picks = np.empty(len(ids) + 1, np.int32)
        accepted, bonus = ffi.new("int32_t*"), ffi.new("int32_t*")
        pointers = ffi.cast("int32_t*", ids.ctypes.data), len(ids), view(logits), view(taps), position
        self._call("verify", *pointers, ffi.cast("int32_t*", picks.ctypes.data), accepted, bonus)
        return picks, int(accepted[0]), int(bonus[0])

    def truncate(self, length: int) -> None:
        """Forget rows ``length`` and later."""
        self._call("truncate", length)

    def context(self, layer: int) -> tuple[Floats, Floats, NDArray[np.int64]]:
        """The cells a layer holds: keys and values [n, kv heads, head dim] and positions int64 [n]."""
        n = ffi.new("int64_t*")
        self._call("context", layer, ffi.NULL, ffi.NULL, ffi.NULL, n)
        count = int(n[0])
        k, v = np.empty((count, *self._cell), np.float32), np.empty((count, *self._cell), np.float32)
        positions = np.empty(count, np.int64)
        self._call("context", layer, view(k), view(v), ffi.cast("int64_t*", positions.ctypes.data), n)
        return k, v, positions

    def describe(self) -> dict[str, str]:
        """The configuration in force, as the library states it."""
        need = ffi.new("size_t*")
        self._call("describe", ffi.NULL, 0, need)
        text = ffi.new("char[]", int(need[0]))
        self._call("describe", text, need[0], need)
        pairs = (line.partition("=") for line in ffi.string(text).decode().splitlines())
        return {key: value for key, _, value in pairs}

    def close(self) -> None:
        """Free it; safe to repeat."""
        if self._pointer is not None and self._calls.pointer is not None:
            self._calls.handle.dlab_drafter_destroy(self._pointer)
        self._pointer = None

    def _call(self, name: str, *arguments: Any) -> None:
        if self._pointer is None:
            raise NativeError("STATE", "the drafter is closed")
        self._calls.check(self._calls.function(f"drafter_{name}")(self._pointer, *arguments), f"drafter_{name}")

    def __enter__(self) -> Drafter:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_pointer"):
            self.close()


def _described(role: str, weight: Stored | NDArray[np.int64]) -> Any:
    if not isinstance(weight, Stored):
        return view(weight, "i64")
    return weight.vector() if role.endswith(("norm", "_bias")) else weight.matrix()


def config_text(config: dict[str, object]) -> str:
    """``key=value`` lines: numbers in full, booleans as 0/1, sequences comma separated."""

    def write(value: object) -> str:
        if isinstance(value, str):
            return value
        if isinstance(value, bool | np.bool_):
            return str(int(value))
        if isinstance(value, Sequence | np.ndarray):
            return ",".join(write(v) for v in value)
        return repr(float(value)) if isinstance(value, float | np.floating) else str(value)

    return "".join(f"{key}={write(value)}\n" for key, value in config.items())
