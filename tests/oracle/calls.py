"""Single operations as the tests call them: kinds of data, one call in the Rounded reading, and its error in units of its noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from oracle.arithmetic import Arithmetic
from oracle.kit import EXACT
from oracle.ops import OPS
from oracle.ops.base import Where
from oracle.readings import Noise, Reading, Rounded, Stage
from oracle.recipes import Rope, Visible
from oracle.tensor import Array, Axes, Tensor
from oracle.weights import Weight

HEADS: Axes = ("row", "head", "dim")
ROWS: Axes = ("row", "dim")
ORDERS = ("sequential", "pairwise", "blocked:64", "lanes:8")
STORES = ("f32", "bf16", "f16")
KINDS = ("gaussian", "massive", "cancelling", "positive", "equal rows", "tiny")


def f32(x: Any) -> Array:
    """Values that float32 holds, in float64: what a recorded input is."""
    return np.asarray(x, np.float64).astype(np.float32).astype(np.float64)


def data(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Inputs of a kind, the last axis being the one that is summed over.

    massive: four channels 80 to 1000 times the rest; cancelling: the second half nearly repeats the first with the other
    sign; equal rows: one row, repeated; tiny: rms 1e-4.
    """
    x = rng.standard_normal(shape)
    n = shape[-1]
    if kind == "massive":
        x[..., rng.choice(n, 4, replace=False)] *= np.array([80, 200, 500, 1000])
    elif kind == "cancelling":
        x[..., n // 2 :] = -x[..., : n - n // 2] * (1 + 1e-3 * rng.standard_normal(n - n // 2))
    elif kind == "positive":
        x = np.abs(x)
    elif kind == "equal rows":
        x[:] = x[:1]
    elif kind == "tiny":
        x *= 1e-4
    return f32(x)


def weight(kind: str, shape: tuple[int, ...], axes: Axes, rng: np.random.Generator) -> Weight:
    """A matrix that makes sums of the kind: for cancelling data its two halves are equal, for positive data it is positive."""
    w = rng.standard_normal(shape) / np.sqrt(shape[-1])
    n = shape[-1]
    if kind == "cancelling":
        w[..., n // 2 :] = w[..., : n - n // 2]
    elif kind == "positive":
        w = np.abs(w)
    return Weight.of(w, axes)


def declared(order: str, store: str = "f32", **changes: Any) -> Arithmetic:
    return Arithmetic("test", store=(("*", store),), order=order, norm_sum=order, declared=True, **changes)


def stage(name: str, *args: Any, **params: Any) -> Stage:
    return Stage("x", OPS[name], args, params)


def read(reading: Reading, made: Stage) -> Tensor:
    """The stage in a reading, its tensor arguments lifted into it."""
    args = tuple(reading.lift(a.data, a.axes) if isinstance(a, Tensor) else a for a in made.args)
    return reading.apply(Stage(made.path, made.op, args, made.params))


@dataclass(frozen=True)
class Measured:
    """One operation, really rounded: ``error`` against the exact value, ``sigma`` its predicted deviation, ``half`` of the store."""

    stage: Stage
    exact: Array
    error: Array
    sigma: Array
    half: Array

    @property
    def rms(self) -> float:
        """rms z over the elements that have a predicted error."""
        z = self.error[self.sigma > 0] / self.sigma[self.sigma > 0]
        return float(np.sqrt(np.square(z).mean()))

    @property
    def z(self) -> Array:
        """|error| in units of sigma; an error where none is predicted is infinitely many."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.error == 0, 0.0, np.abs(self.error) / self.sigma)

    def worst(self, count: int) -> Where:
        """Coordinates of the ``count`` elements of largest z."""
        return np.unravel_index(np.argsort(self.z, axis=None)[-count:], self.z.shape)

    def reach(self, A: Arithmetic, where: Where) -> Array:
        """|error| over the deterministic bound at ``where``, the store's half spacing included."""
        bound = self.stage.op.bound(A, self.exact, where, *self.stage.args, **self.stage.params)
        return np.asarray(np.abs(self.error[where]) / (bound + self.half[where]))


def measure(A: Arithmetic, made: Stage) -> Measured:
    """The stage in the Rounded reading against its own noise rule; its inputs are taken as exact."""
    rule = read(Noise(A), made)
    rounded = read(Rounded(A), made)
    half = np.broadcast_to(np.asarray(rule.half, np.float64), rule.data.shape)
    return Measured(made, rule.data, rounded.data - rule.data, np.sqrt(rule.variance()), half)


def linear_call(kind: str, rng: np.random.Generator, rows: int = 16, k: int = 256, out: int = 128) -> Stage:
    return stage("linear", Tensor(data(kind, (rows, k), rng), ROWS), weight(kind, (out, k), ("dim", "in"), rng))


def norm_call(kind: str, rng: np.random.Generator, rows: int = 64, n: int = 64) -> Stage:
    return stage("rms_norm", Tensor(data(kind, (rows, n), rng), ROWS), Weight.of(1 + 0.2 * rng.standard_normal(n), ("dim",)), eps=1e-6)


def rope_call(kind: str, rng: np.random.Generator) -> Stage:
    return stage("rope", Tensor(data(kind, (16, 4, 64), rng), HEADS), np.arange(100, 116), Rope(1e4, 64))


def attention_call(kind: str, rng: np.random.Generator) -> Stage:
    """16 rows over 100 context cells and their own; the last 15 cells are equal for equal rows, as a layer's mask rows are."""
    q, k, v = (data(kind if kind != "equal rows" else "gaussian", s, rng) for s in ((16, 4, 64), (116, 2, 64), (116, 2, 64)))
    if kind == "equal rows":
        q[:], k[-15:], v[-15:] = q[:1], k[-1:], v[-1:]
    visible = Visible("none", True, None, np.arange(100, 116), np.arange(116), 100)
    scale = 1e-6 if kind == "massive" else 0.125
    return stage("attention", Tensor(q, HEADS), Tensor(k, HEADS), Tensor(v, HEADS), visible=visible, scale=scale)


def sink_attention_call(kind: str, rng: np.random.Generator) -> Stage:
    """The same with a sink per head: far below the scores, among them, and above them."""
    made = attention_call(kind, rng)
    sinks = Weight.of(f32([-20.0, 0.5, 2.0, 6.0]), ("head",))
    return stage("sink_attention", *made.args, sinks, **made.params)


def pair_call(name: str, kind: str, rng: np.random.Generator, factor: float = 1.0) -> Stage:
    first, second = (Tensor(f32(c * data(kind, (16, 256), rng)), ROWS) for c in (factor, 1.0))
    return stage(name, first, second)


def softcap_call(kind: str, rng: np.random.Generator) -> Stage:
    cap = 400.0 if kind == "massive" else 30.0
    return stage("softcap", Tensor(data(kind, (16, 256), rng), ROWS), scale=float(np.float32(0.3)), cap=cap)


def router_call(name: str, kind: str, rng: np.random.Generator) -> Stage:
    return stage(name, Tensor(data(kind, (16, 64), rng), ("row", "expert")))


def scores(kind: str, rng: np.random.Generator, rows: int = 64, experts: int = 32) -> Tensor:
    """Router scores in (0, 1]; massive data saturate."""
    return Tensor(f32(OPS["sigmoid"].formula(EXACT, data(kind, (rows, experts), rng))), ("row", "expert"))


def chosen(given: Tensor, k: int) -> Tensor:
    return Tensor(OPS["select"].formula(EXACT, given.data, None, k=k), ("row", "rank"))


def expert_weights_call(kind: str, rng: np.random.Generator) -> Stage:
    given = scores(kind, rng)
    return stage("expert_weights", given, chosen(given, 8), scale=2.5)


def expert_linear_call(kind: str, rng: np.random.Generator) -> Stage:
    experts = tuple(weight(kind, (32, 256), ("dim", "in"), rng) for _ in range(6))
    return stage("expert_linear", Tensor(data(kind, (16, 256), rng), ROWS), chosen(scores("gaussian", rng, 16, 6), 3), experts)


def expert_sum_call(kind: str, rng: np.random.Generator) -> Stage:
    made = np.swapaxes(data(kind, (16, 128, 8), rng), 1, 2)
    return stage("expert_sum", Tensor(made, ("row", "rank", "dim")), Tensor(f32(rng.uniform(0.05, 0.6, (16, 8))), ("row", "rank")))


CALLS: dict[str, Callable[[str, np.random.Generator], Stage]] = {
    "linear": linear_call,
    "rms_norm": norm_call,
    "rope": rope_call,
    "attention": attention_call,
    "sink_attention": sink_attention_call,
    "swiglu": lambda kind, rng: pair_call("swiglu", kind, rng, 3.0),
    "add": lambda kind, rng: pair_call("add", kind, rng),
    "softcap": softcap_call,
    "sigmoid": lambda kind, rng: router_call("sigmoid", kind, rng),
    "softmax": lambda kind, rng: router_call("softmax", kind, rng),
    "expert_weights": expert_weights_call,
    "expert_linear": expert_linear_call,
    "expert_sum": expert_sum_call,
}
