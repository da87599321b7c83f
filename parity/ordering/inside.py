"""Everything that is asked of a kernel: run in the candidate's worker process, the answers left as one JSON file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oracle import arithmetic as arithmetics
from oracle.floats import F32
from oracle.tensor import Array
from oracle.trees import Tree
from oracle.weights import Weight
from parity.errors import UsageError
from parity.ordering import gauge, kernels, naming
from parity.ordering.kernels import Kernel
from parity.ordering.leaves import Leaves, Place, random_weight
from parity.ordering.revealing import Ask, IrregularError, Masks, Revealer

if TYPE_CHECKING:
    from collections.abc import Callable

    from parity.candidates import Candidate

DRAWS = 2
FUSED_NODES = 256


@dataclass(frozen=True)
class Options:
    """``weights``: formats. ``widths``: K; a width that a format's blocks do not divide is left out for it. ``outputs``: N. ``block``: the
    largest M. ``operation``: one of `kernels.OPERATIONS`."""

    weights: tuple[str, ...]
    widths: tuple[int, ...]
    outputs: int
    block: int
    operation: str = "linear"
    seed: int = 0


@dataclass(frozen=True)
class Order:
    """What one row's sums turned out to be. ``name`` is empty where the order has none."""

    name: str
    description: str
    fingerprint: str
    additions: list[gauge.Addition]
    result: gauge.Addition
    fused: str
    fused_why: str


@dataclass(frozen=True)
class Known:
    """An order already found, with what is needed to see whether another row has it too."""

    tree: Tree
    order: Order


def work(candidate: Candidate, options: Options, out: Path, threads: int, tell: Callable[[str, str], None] | None) -> None:
    """Probe the candidate and write the answers to ``out``. `UsageError` for a candidate that is no product of matrices."""
    from parity import candidates

    if candidate.kind == "numpy":
        if options.operation != "linear":
            raise UsageError(f"--op {options.operation}: a NumPy candidate is probed by its linear")
        arithmetic = None if candidate.spec == "f64" else arithmetics.named(candidate.spec)
        found = {"where": "numpy", "kernels": answers(kernels.of_arithmetic(arithmetic), options)}
    elif candidate.kind == "library":
        with candidates.opened(candidate, out, threads, tell) as (context, about):
            found = about | {"kernels": answers(kernels.of_library(context, options.operation), options)}
    else:
        raise UsageError(
            f"candidate {candidate.spec!r}: an order can be probed where single products can be called: a library (native/include/dlab.h) "
            "or a NumPy candidate; wrap the engine's product as dlab_linear (native/example/engine.c)"
        )
    out.write_text(json.dumps(found))


def answers(kernel: Kernel, options: Options) -> list[dict[str, Any]]:
    """One entry per weight format and width, ready for JSON."""
    from native import NativeError
    from oracle.artifacts import blocks

    found: list[dict[str, Any]] = []
    for stored in options.weights:
        for width in options.widths:
            head = {"weights": stored, "width": width, "outputs": options.outputs}
            if width % blocks.format_of(stored).values:
                continue
            try:
                found.append(head | Probe(kernel, stored, width, options).answers())
            except NativeError as e:
                if e.status not in ("UNSUPPORTED", "DTYPE"):
                    raise
                found.append(head | {"skipped": e.text})
    return found


class Probe:
    """The questions to one kernel: one weight format, one width."""

    def __init__(self, kernel: Kernel, stored: str, width: int, options: Options) -> None:
        self.kernel, self.options = kernel, options
        self.rng = np.random.default_rng([options.seed, width])
        self.weights = [random_weight(options.outputs, width, stored, self.rng) for _ in range(DRAWS)]
        self.same_columns = self._one_row_repeated(stored, width)
        self.x = self.rng.standard_normal((options.block, width)).astype(np.float32)
        self.leaves = Leaves(kernel, stored, width, options.outputs)
        self.known: list[Known] = []

    def _one_row_repeated(self, stored: str, width: int) -> Weight:
        one = random_weight(1, width, stored, self.rng)
        return Weight(np.repeat(one.raw, self.options.outputs, 0), one.axes, (self.options.outputs, width), stored)

    def answers(self) -> dict[str, Any]:
        singles = [self._singles(w) for w in self.weights]
        out: dict[str, Any] = {"leaf_elements": self.leaves.block, "leaves": self.leaves.terms}
        if not all(np.array_equal(a, b) for a, b in zip(singles, (self._singles(w) for w in self.weights), strict=True)):
            return out | {"repeats": False}
        out |= {"repeats": True, "columns": self._columns()}
        try:
            out |= self._reveal(Place(1, (0,), 0))
        except IrregularError as e:
            out["irregular"] = str(e)
        out["rows"] = [self._wide(m, singles) for m in range(2, self.options.block + 1)]
        return out

    def _singles(self, w: Weight) -> NDArray[np.uint8]:
        return _bits(np.concatenate([self.kernel(row[None], w) for row in self.x]))

    def _columns(self) -> list[list[int]]:
        """Output features that give the same bits for the same weights, grouped."""
        sums = _bits(self.kernel(self.x[:1], self.same_columns))[0]
        groups: dict[bytes, list[int]] = {}
        for column, bits in enumerate(sums):
            groups.setdefault(bits.tobytes(), []).append(column)
        return list(groups.values())

    def _reveal(self, place: Place) -> dict[str, Any]:
        """The order at a place: one that is known already, or one found anew. IrregularError where there is none."""
        leaves = self.leaves

        def ask(values: Array) -> Array:
            return leaves.ask(values, place)

        if leaves.terms < 2:
            raise IrregularError(f"one scale for {leaves.block} elements of x leaves {leaves.terms} addends: there is no order to find")
        span = gauge.exponents(ask, leaves.terms)
        found = gauge.survey(ask, leaves.terms, span, self.options.seed)
        if found.bits is None:
            raise IrregularError("no sum of three addends lost anything: it is exact as far as f32 inputs reach, and has no order")
        masks = gauge.masks(leaves.terms, span, found)
        tree = self._tree(ask, masks)
        order = self._order(ask, place, tree, span, found.bits[1])
        self.known.append(Known(tree, order))
        return {"range": asdict(span), "input_bits": self._input_bits(ask, span), "order": asdict(order)}

    def _tree(self, ask: Ask, masks: Masks) -> Tree:
        revealer = Revealer(ask, self.leaves.terms, masks, self.options.seed)
        tree = next((k.tree for k in self.known if revealer.agrees(k.tree)), None)
        return tree if tree is not None else revealer.tree()

    def _order(self, ask: Ask, place: Place, tree: Tree, span: gauge.Range, bits: int) -> Order:
        fused, why = self._fused(ask, place, tree, span, bits)
        result = gauge.result(ask, tree, span)
        return Order(
            naming.name(tree), naming.description(tree), tree.fingerprint(), gauge.additions(ask, tree, span, bits), result, fused, why
        )

    def _input_bits(self, ask: Ask, span: gauge.Range) -> int:
        return gauge.input_bits(ask, self.leaves.terms, span) if self.leaves.block == 1 else 0

    def _fused(self, ask: Ask, place: Place, tree: Tree, span: gauge.Range, bits: int) -> tuple[str, str]:
        """Are products added unrounded? ``yes``, ``no``, ``some``, or ``unseen`` and why.

        A product t s that f32 cannot hold meets -RN(t s), which stands in a neighbouring addend: what is left is the rounding, or 0.
        """
        if self.leaves.block > 1:
            return "unseen", "products inside a block are whole numbers, and its scale is multiplied in afterwards"
        if bits < F32.p or self._input_bits(ask, span) < F32.p:
            return "unseen", "inputs or accumulators are narrower than f32, so no product is cut by f32"
        t, s = 1 + 2.0**-23, self.leaves.marked_value
        rounded = float(F32.round(t * s))
        first = tree.first()
        with_products = [below for below in tree.children if min(below) < tree.terms]
        kept = []
        for below in with_products[:: max(len(with_products) // FUSED_NODES, 1)]:
            # Of two products that begin a chain the first is rounded in any case.
            pairs = ((c, int(first[other])) for c, other in zip(below, (*below[1:], below[0]), strict=True) if c < tree.terms)
            kept.append(any(self._left(place, i, j, t, rounded) == t * s - rounded for i, j in pairs))
        return ("yes" if all(kept) else "some" if any(kept) else "no"), f"{sum(kept)} of {len(kept)} sums"

    def _left(self, place: Place, i: int, j: int, t: float, rounded: float) -> float:
        bit = (i ^ j).bit_length() - 1
        values = np.zeros((1, self.leaves.terms))
        values[0, i], values[0, j] = t, -rounded
        return float(self.leaves.ask(values, place, self.leaves.marked(bit, i >> bit & 1))[0])

    def _wide(self, m: int, singles: list[NDArray[np.uint8]]) -> dict[str, Any]:
        """M rows at once against each row alone: bits on random data, and the order of the rows that differ and of those that do not."""
        last = len(self.x) - m
        differing: dict[int, int] = {}
        total = 0
        for w, single in zip(self.weights, singles, strict=True):
            for start in dict.fromkeys((0, last)):
                found = _bits(self.kernel(self.x[start : start + m], w))
                unequal = (found != single[start : start + m]).any(-1).sum(1)
                total += unequal.size * self.options.outputs
                for row in np.flatnonzero(unequal).tolist():
                    differing[row] = differing.get(row, 0) + int(unequal[row])
        same = tuple(r for r in range(m) if r not in differing)
        out: dict[str, Any] = {"m": m, "differing": {str(r): n for r, n in sorted(differing.items())}, "values": total}
        if same and self.known:
            out["same"] = self._agreeing(Place(m, same, 0))
        if differing:
            row = min(differing)
            try:
                out["other"] = {"row": row} | self._reveal(Place(m, (row,), 0))
            except IrregularError as e:
                out["other"] = {"row": row, "irregular": str(e)}
        return out

    def _agreeing(self, place: Place) -> bool:
        """Whether the rows of the place, taken in turns, add along the tree of a single row."""
        first = self.known[0]
        try:
            span = gauge.exponents(lambda v: self.leaves.ask(v, place), self.leaves.terms)
            found = gauge.survey(lambda v: self.leaves.ask(v, place), self.leaves.terms, span, self.options.seed)
            if found.bits is None:
                return False
            masks = gauge.masks(self.leaves.terms, span, found)
        except IrregularError:
            return False
        return Revealer(lambda v: self.leaves.ask(v, place), self.leaves.terms, masks, self.options.seed).agrees(first.tree)


def _bits(y: NDArray[Any]) -> NDArray[np.uint8]:
    """[row, column] as bytes [row, column, byte]."""
    y = np.ascontiguousarray(y)
    return y.view(np.uint8).reshape(*y.shape, y.dtype.itemsize)
