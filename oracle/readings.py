"""Readings: what a forward means. The forward names a stage and an operation; the reading turns them into a Tensor.

`Exact` is the oracle. `Noise` carries the predicted rounding error, `Sampled` draws it, `Rounded` really commits it,
`Faulty` edits one call of any of them, `Shapes` knows axes and shapes only (DESIGN section 3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from oracle import eager, policies
from oracle.arithmetic import Arithmetic, DeclarationError
from oracle.block_dot import BlockDot, narrowed, seen
from oracle.floats import F32
from oracle.kit import EXACT, Kit
from oracle.ops.base import Operation, Variance, is_zero
from oracle.ops.open_choices import UNKNOWN
from oracle.tensor import Array, Axes, Coarse, Tensor, coarsely

Params = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Stage:
    """One call of a forward: the stage's full path, the operation, its arguments and parameters, and the case's step."""

    path: str
    op: Operation
    args: tuple[Any, ...]
    params: Params
    step: int = 0

    @property
    def key(self) -> tuple[int, str]:
        """What a dump keys a stage by: (step, path)."""
        return self.step, self.path


class FaultError(ValueError):
    """A fault that does not exist, or a value it cannot take."""


class NotHereError(FaultError):
    """The call is of the right operation, but has nothing that this mistake could be made on."""


class Reading(Protocol):
    """What a forward is read as."""

    def lift(self, data: Any, axes: Axes) -> Tensor:
        """A value that comes from outside the forward (features, a recorded stage), without error."""
        ...

    def apply(self, stage: Stage) -> Tensor:
        """The stage's value."""
        ...


def values(args: tuple[Any, ...]) -> list[Any]:
    """Arguments as a formula takes them: tensors as arrays, the rest untouched."""
    return [a.data if isinstance(a, Tensor) else a for a in args]


class Exact:
    """Float64: the oracle."""

    kit: Kit = EXACT

    def lift(self, data: Any, axes: Axes) -> Tensor:
        return Tensor(np.asarray(data, self.kit.dtype), axes)

    def apply(self, stage: Stage) -> Tensor:
        return Tensor(stage.op.formula(self.kit, *values(stage.args), **stage.params), stage.op.axes(*stage.args, **stage.params))


def consumed(A: Arithmetic, stage: Stage) -> Stage:
    """The stage with its inputs rounded as the arithmetic says its consumer does; a consumed stage stays as it is."""
    if stage.op.kind == "attention" and A.probabilities != "f32":
        stage = replace(stage, params=stage.params | {"probabilities": A.probabilities})
    if stage.op.name == "attention" and A.scores != "f32":
        stage = replace(stage, params=stage.params | {"scores": A.scores})
    if stage.op.name == "delta_state" and A.state != "f32":
        between, rows = A.kept()
        more = {} if rows is None else {"rows": rows}
        stage = replace(stage, args=(narrowed(between, stage.args[0]), *stage.args[1:]), params=stage.params | more)
    policy = A.used(stage.path)
    # A choice is made on scores as they are stored.
    if policy == "f32" or stage.op.kind == "choice" or not stage.args or not isinstance(stage.args[0], Tensor):
        return stage
    x, *rest = stage.args
    product = stage.op.name == "linear"
    policy = policies.resolved(policy, rest[0].stored) if product else policy
    if policy == "f32" or policy in policies.BY_WEIGHT or (product and isinstance(rest[0], BlockDot)):
        return stage
    # A product reads a row whole, heads and all.
    if (width := math.prod(x.data.shape[1:]) if product else x.data.shape[-1]) % policies.block(policy):
        raise DeclarationError(
            f"arithmetic use: {stage.path} reads rows of {width} values, and {policy!r} needs a multiple of {policies.block(policy)}; "
            f"name the stages that it holds for, as in use=*.q_raw:{policy}"
        )
    if product:
        return replace(stage, args=(*seen(policy, x, rest[0]), *rest[1:]))
    if stage.op.name == "cells":
        return replace(stage, args=tuple(narrowed(policy, part) for part in stage.args))
    return replace(stage, args=(narrowed(policy, x), *rest))


@dataclass
class Noise:
    """Float64 values with the predicted error of a declared arithmetic (`specs/noise-rules.md`)."""

    arithmetic: Arithmetic

    def lift(self, data: Any, axes: Axes) -> Tensor:
        return Tensor(np.asarray(data, np.float64), axes)

    def judged(self, stage: Stage) -> tuple[Stage, Tensor, Variance]:
        """The consumed stage, its value with errors, and the variance split the value came from."""
        stage = consumed(self.arithmetic, stage)
        held = self.arithmetic.holds(stage.path)
        y = stage.op.formula(eager.kit(held, EXACT, self.arithmetic.framework), *values(stage.args), **stage.params)
        v = stage.op.noise(self.arithmetic, y, *stage.args, **stage.params)
        if held != "f32":
            v = v._replace(own=np.asarray(v.own) + eager.variance(stage, y, held, EXACT, self.arithmetic.framework))
        acc = v.own if stage.op.kind in ("linear", "attention") else 0.0
        var: Array | float = 0.0 if is_zero(v.inherited) and is_zero(v.own) else np.minimum(np.asarray(v.inherited) + v.own, UNKNOWN)
        made = Tensor(y, stage.op.axes(*stage.args, **stage.params), var, acc, _half(self.arithmetic, stage, y, v), self._coarse(stage))
        return stage, made, v

    def _coarse(self, stage: Stage) -> Coarse | None:
        """Where values that were rounded to a coarse grid are only moved, what they were before."""
        found = [a.coarse for a in stage.args if isinstance(a, Tensor) and a.coarse is not None]
        if stage.op.kind != "structural" or not found:
            return None
        args = tuple(a.coarse.before if isinstance(a, Tensor) and a.coarse is not None else a for a in stage.args)
        y = stage.op.formula(EXACT, *values(args), **stage.params)
        v = stage.op.noise(self.arithmetic, y, *args, **stage.params)
        marks = [coarsely(a) if isinstance(a, Tensor) else a for a in stage.args]
        where = np.asarray(stage.op.formula(EXACT, *marks, **stage.params) > 0.5)
        return Coarse(found[0].policy, Tensor(y, stage.op.axes(*args, **stage.params), np.asarray(v.inherited)), where)

    def apply(self, stage: Stage) -> Tensor:
        return self.judged(stage)[1]


def _half(A: Arithmetic, stage: Stage, y: Array, v: Variance) -> Array | float:
    """Half-width of the storage rounding; f32 storage is part of each operation's own rule, a moved value is only moved."""
    store = A.stored(stage.path)
    if store.p >= F32.p or stage.op.kind == "choice":
        return 0.0
    half = store.ulp(y) * (1.0 if A.truncate else 0.5)
    if stage.op.kind == "structural" and is_zero(v.own):
        # What has an error was stored before; what is exact is rounded here, unless the store holds it.
        half = np.where(store.holds(y), 0.0, half) if is_zero(v.inherited) else np.zeros(1)
        return half if half.any() else 0.0
    return half


@dataclass(frozen=True)
class OwnNoise:
    """Standard deviations of one stage's own error: independent, common to a row, and the half-width of its store."""

    independent: NDArray[np.float32] | float
    common: NDArray[np.float32] | float
    half: NDArray[np.float32] | float

    def mean_square(self, shape: tuple[int, ...]) -> Array:
        """Expected mean square of each row's own error, float64 [row]."""
        total = np.square(self.independent) + np.square(self.common) + np.square(self.half) / 3
        rows = np.broadcast_to(np.asarray(total, np.float64), shape).reshape(shape[0] if shape else 1, -1)
        return rows.mean(-1) if rows.size else np.zeros(len(rows))


def _own_noise(v: Variance, half: Array | float) -> OwnNoise:
    """The drawing recipe of a stage from its variance split."""

    def single(x: Any) -> Any:
        return float(x) if np.ndim(x) == 0 else np.asarray(x, np.float32)

    independent = np.sqrt(np.maximum(np.asarray(v.own) - np.asarray(v.common), 0))
    return OwnNoise(single(independent), single(np.sqrt(v.common)), single(half))


class Survey(Noise):
    """The oracle's own values, with every operation's own error kept in ``own`` for `Sampled` (float32 to halve the memory)."""

    def __init__(self, arithmetic: Arithmetic) -> None:
        super().__init__(arithmetic)
        self.own: dict[tuple[int, str], OwnNoise] = {}

    def apply(self, stage: Stage) -> Tensor:
        _, y, v = self.judged(stage)
        self.own[stage.key] = _own_noise(v, y.half)
        return Tensor(y.data, y.axes)


class Sampled:
    """Float64 with every operation's own error drawn from its own rule: the spread of healthy runs, *with* correlations.

    ``own`` maps (step, path) to `OwnNoise` (from `Survey`, computed once and shared by all seeds); a stage it lacks has none.
    ``arithmetic``: whose policies round what a stage consumes, so that a drawn error flips what it would flip.
    """

    def __init__(self, own: Mapping[tuple[int, str], OwnNoise], seed: int, arithmetic: Arithmetic | None = None) -> None:
        self.own, self.arithmetic = own, arithmetic
        self.rng = np.random.default_rng(seed)

    def lift(self, data: Any, axes: Axes) -> Tensor:
        return Tensor(np.asarray(data, np.float64), axes)

    def apply(self, stage: Stage) -> Tensor:
        stage = stage if self.arithmetic is None else consumed(self.arithmetic, stage)
        A = self.arithmetic
        kit = EXACT if A is None else eager.kit(A.holds(stage.path), EXACT, A.framework)
        y = stage.op.formula(kit, *values(stage.args), **stage.params)
        own = None if stage.op.kind == "choice" else self.own.get(stage.key)
        if own is not None:
            y = y + np.asarray(own.independent) * self.rng.standard_normal(y.shape)
            if not is_zero(own.common):
                shared = self.rng.standard_normal((*y.shape[:-1], 1))
                y = y + np.asarray(own.common) * shared
            if not is_zero(own.half):
                y = y + np.asarray(own.half) * self.rng.uniform(-1, 1, y.shape)
        return Tensor(y, stage.op.axes(*stage.args, **stage.params))


class Rounded:
    """Really computed in float32 with the declared storage and summation order: a candidate made of NumPy."""

    def __init__(self, arithmetic: Arithmetic) -> None:
        self.arithmetic = arithmetic
        self.kit = Kit(np.float32, arithmetic.order, arithmetic.norm_sum)
        self.attention = Kit(np.float32, arithmetic.order_in("attention"), arithmetic.norm_sum)

    def lift(self, data: Any, axes: Axes) -> Tensor:
        return Tensor(np.asarray(data, np.float32), axes)

    def apply(self, stage: Stage) -> Tensor:
        made = self.computed(stage)
        return Tensor(self.store(stage, made.data), made.axes)

    def computed(self, stage: Stage) -> Tensor:
        """The stage's value before it is stored."""
        stage = consumed(self.arithmetic, stage)
        A, inner = self.arithmetic, self.attention if stage.op.kind == "attention" else self.kit
        kit = eager.kit(A.holds(stage.path), inner, A.framework)
        y = stage.op.formula(kit, *values(stage.args), **stage.params)
        return Tensor(y, stage.op.axes(*stage.args, **stage.params))

    def store(self, stage: Stage, y: NDArray[Any]) -> NDArray[Any]:
        """Values as the stage stores them."""
        if self.arithmetic.stored(stage.path).p < F32.p and stage.op.kind != "choice":
            y = self.arithmetic.to_storage(stage.path, y)
        return np.asarray(y, np.float32)


class Shapes:
    """Axes and shapes only: what stages a forward has, without a value computed or a weight touched."""

    def lift(self, data: Any, axes: Axes) -> Tensor:
        return Tensor(np.broadcast_to(np.float64(0), np.shape(data)), axes)

    def apply(self, stage: Stage) -> Tensor:
        shape = stage.op.shape(*stage.args, **stage.params)
        return Tensor(np.broadcast_to(np.float64(0), shape), stage.op.axes(*stage.args, **stage.params))


Edit = Callable[[Stage], Stage]
After = Callable[[Stage, NDArray[Any]], NDArray[Any]]
See = Callable[[Stage, Tensor], None]


@dataclass(frozen=True)
class Fault:
    """A planted mistake: at stages matching ``stage``, ``edit`` changes the call, for ``rows`` and ``heads`` only (None = all).

    ``after``: what becomes of the edited call's values before they are stored, given the healthy call and those values.
    ``see``: shown every call and its healthy value, for mistakes that take something from an earlier one.
    ``ops``: operations it can act on (none named: any).
    """

    kind: str
    stage: str
    edit: Edit
    rows: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    after: After | None = None
    see: See | None = None
    ops: tuple[str, ...] = ()

    def acts_on(self, stage: Stage) -> bool:
        return (not self.ops or stage.op.name in self.ops) and fnmatchcase(stage.path, self.stage)

    def planted(self, inner: Reading, stage: Stage, good: Tensor) -> Tensor:
        """The stage's value with the mistake made in ``inner``; ``good`` is its healthy value there.

        Raises what the edit raises: a FaultError where the call has nothing that the mistake could be made on.
        """
        edited = self.edit(stage)
        if self.after is not None and isinstance(inner, Rounded):
            made = inner.computed(edited)
            changed = np.asarray(self.after(stage, made.data)).astype(made.data.dtype)
            return _merge(good, Tensor(inner.store(stage, changed), made.axes), self._where(good))
        bad = good if edited is stage else inner.apply(edited)
        if self.after is not None:
            bad = replace(bad, data=np.asarray(self.after(stage, bad.data)).astype(bad.data.dtype), coarse=None)
        return _merge(good, bad, self._where(good))

    def _where(self, good: Tensor) -> NDArray[np.bool_]:
        where = np.ones(good.data.shape, bool)
        for axis, chosen in (("row", self.rows), ("head", self.heads)):
            if chosen is None:
                continue
            if axis not in good.axes:
                raise FaultError(f"fault {self.kind}: the stage has no axis {axis!r}, its axes are {good.axes}")
            at = good.axes.index(axis)
            mask = np.zeros(good.data.shape[at], bool)
            mask[[i for i in chosen if i < len(mask)]] = True
            where &= mask.reshape([-1 if i == at else 1 for i in range(good.data.ndim)])
        return where


class Faulty:
    """Any reading with one call edited; healthy and faulty results are merged by axes. ``hits``: calls that were edited.

    A call that has nothing for the mistake to be made on stays as it is.
    """

    def __init__(self, inner: Reading, fault: Fault) -> None:
        self.inner, self.fault = inner, fault
        self.hits = 0

    def lift(self, data: Any, axes: Axes) -> Tensor:
        return self.inner.lift(data, axes)

    def apply(self, stage: Stage) -> Tensor:
        good = self.inner.apply(stage)
        made = good
        if self.fault.acts_on(stage):
            try:
                made = self.fault.planted(self.inner, stage, good)
                self.hits += 1
            except NotHereError:
                pass
        if self.fault.see is not None:
            self.fault.see(stage, good)
        return made


def _merge(good: Tensor, bad: Tensor, where: NDArray[np.bool_]) -> Tensor:
    if bad.data.shape != good.data.shape:
        if not where.all():
            raise FaultError(f"a mistake that changes the shape ({good.data.shape} to {bad.data.shape}) is made on all rows and heads")
        return bad

    def pick(name: str) -> Any:
        g, b = getattr(good, name), getattr(bad, name)
        return 0.0 if is_zero(g) and is_zero(b) else np.where(where, b, g)

    return Tensor(np.where(where, bad.data, good.data), good.axes, pick("var"), pick("acc"), pick("half"))
