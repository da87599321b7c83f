"""A candidate's product as a function: x [M, K] float32 and a weight [N, K] to [M, N], whatever computes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oracle.arithmetic import Arithmetic
from oracle.ops import OPS
from oracle.readings import Exact, Reading, Rounded, Stage
from oracle.weights import Weight
from parity.errors import UsageError

if TYPE_CHECKING:
    from native import Context, Stored

Kernel = Callable[[NDArray[np.float32], Weight], NDArray[Any]]
OPERATIONS = ("linear", "expert_linear")
PATH = "linear"
"""The stage path under which a declared arithmetic is asked for its stores and policies."""


def of_arithmetic(arithmetic: Arithmetic | None) -> Kernel:
    """The NumPy candidate of a declared arithmetic; None: the oracle in double."""
    reading: Reading = Exact() if arithmetic is None else Rounded(arithmetic)

    def product(x: NDArray[np.float32], w: Weight) -> NDArray[Any]:
        with np.errstate(over="ignore", invalid="ignore"):
            return reading.apply(Stage(PATH, OPS["linear"], (reading.lift(x, ("row", "in")), w), {})).data

    return product


def of_library(context: Context, operation: str = "linear") -> Kernel:
    """The operation of a library: ``linear`` by its entry point (or by name), ``expert_linear`` by name with a single expert."""
    if operation not in context.ops:
        raise UsageError(
            f"--op {operation}: the library has no such operation (native/include/dlab.h); it has {', '.join(sorted(context.ops))}"
        )
    from parity.native_reading import stored

    # A weight is described once: guard pages are made per description.
    described: dict[int, tuple[Weight, Stored]] = {}

    def product(x: NDArray[np.float32], w: Weight) -> NDArray[Any]:
        if id(w) not in described:
            described[id(w)] = (w, stored(w))
        operand = described[id(w)][1]
        if operation == "linear" and context.has_entry("linear"):
            return context.linear(x, operand)
        if operation == "linear":
            return context.apply("linear", [x, operand], [], np.empty((len(x), w.row_count), np.float32))
        chosen = np.zeros((len(x), 1), np.int32)
        return context.apply("expert_linear", [x, chosen, operand], [], np.empty((len(x), 1, w.row_count), np.float32))[:, 0]

    return product
