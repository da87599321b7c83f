"""How a kernel's additions round: range, precision and direction, measured with three addends and, once the tree is known, node by node.

1.5 2^s and -1.5 2^s meet a tiny addend: what is left of it after they have cancelled is what the accumulator between them kept. Lengths
are in significant bits p: at 1.5 2^s the accumulator's spacing is 2^(s-p+1), also where something is taken off.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oracle.floats import F32
from oracle.tensor import Array
from oracle.trees import Tree
from parity.ordering.revealing import AT_ONCE, Ask, IrregularError, Masks

LOWEST, HIGHEST = -149, 127
MARGIN_BITS = 8
SAMPLES = 8
Triples = Sequence[tuple[int, ...]]
"""Leaves of (1.5 2^s, the tiny addend, -1.5 2^s); the last may be -1, for none: the result itself is looked at."""

# Spacings added to 1.5 2^s (its sign in front), and what is left of them, in spacings, for each rounding. The fifth is a tie above an even
# number, the sixth one above an odd one.
STEPS = ((1, 0.75), (1, 0.25), (-1, 0.75), (-1, 0.25), (1, 0.5), (1, 1.5), (1, -0.25), (1, -0.75))
ROUNDINGS: dict[tuple[float, ...], str] = {
    (1, 0, -1, 0, 0, 2, 0, -1): "nearest, ties to even",
    (1, 0, -1, 0, 1, 2, 0, -1): "nearest, ties away from zero",
    (1, 0, -1, 0, 0, 1, 0, -1): "nearest, ties toward zero",
    (0, 0, 0, 0, 0, 1, -1, -1): "toward zero",
    (0, 0, 0, 0, 0, 1, 0, 0): "toward zero, each addend before it is added",
    (0, 0, -1, -1, 0, 1, -1, -1): "down",
    (1, 1, 0, 0, 1, 2, 0, 0): "up",
}


@dataclass(frozen=True)
class Range:
    """Exponents of the smallest and the largest power of two that passes through a sum unchanged."""

    lowest: int
    highest: int

    @property
    def scale(self) -> int:
        """Exponent s of the large addends: below the largest, and never so large that what f32 inputs cannot reach is asked for."""
        return min(self.highest - 1, 90)


@dataclass(frozen=True)
class Addition:
    """How nodes of the tree round. ``bits``: of their result; 0 where nothing was seen to be lost. ``inside``: bits that addends of one
    fused sum keep among themselves (0: all), None for ordinary additions. ``count`` of them."""

    bits: int
    rounding: str
    inside: int | None = None
    count: int = 1


def exponents(ask: Ask, terms: int) -> Range:
    """What range a single addend has, at the first and the last leaf. IrregularError where not even 1 comes back."""

    def passes(exponent: int) -> bool:
        values = np.zeros((2, terms))
        values[0, 0] = values[1, -1] = 2.0**exponent
        return bool((ask(values) == 2.0**exponent).all())

    if not passes(0):
        values = np.zeros((1, terms))
        values[0, 0] = 1.0
        raise IrregularError(f"a sum of one addend of 1 is {ask(values)[0]:.9g}")
    return Range(-_last(lambda e: passes(-e), -LOWEST), _last(passes, HIGHEST))


def _last(holds: Callable[[int], bool], most: int) -> int:
    """The largest n of 0 … ``most`` up to which ``holds``, which holds of 0."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _results(ask: Ask, terms: int, triples: Triples, tops: Array, tinies: Array, ends: Array) -> Array:
    """Sums with ``tops``, ``tinies`` and ``ends`` at the leaves of the triples; without a third leaf the end is taken off the result."""
    out = np.empty(len(triples))
    for start in range(0, len(triples), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        leaves = np.array(triples[part])
        rows, open_ = np.arange(len(leaves)), leaves[:, 2] < 0
        values = np.zeros((len(leaves), terms))
        values[rows, leaves[:, 0]] = tops[part]
        values[rows, leaves[:, 1]] = tinies[part]
        values[rows[~open_], leaves[~open_, 2]] = ends[part][~open_]
        out[part] = ask(values) + np.where(open_, ends[part], 0.0)
    return out


def precisions(ask: Ask, terms: int, triples: Triples, span: Range) -> NDArray[np.intp]:
    """Significant bits kept where the tiny addend joins, per triple; 0 where no loss was seen."""
    s = span.scale
    low, high = np.zeros(len(triples), np.intp), np.full(len(triples), min(s - span.lowest, HIGHEST) + 1, np.intp)
    most = int(high[0])
    top = np.full(len(triples), 1.5 * 2.0**s)
    while (high - low > 1).any():
        middle = (low + high) // 2
        tiny = 2.0 ** (s - middle.astype(np.float64))
        kept = _results(ask, terms, triples, top, tiny, -top) == tiny
        low, high = np.where(kept, middle, low), np.where(kept, high, middle)
    return np.where(high == most, 0, high)


def to_nearest(ask: Ask, terms: int, triples: Triples, bits: NDArray[np.intp], span: Range) -> NDArray[np.bool_]:
    """Whether three quarters of a spacing count as one: the accumulator has these ``bits`` exactly, and rounds to nearest."""
    spacing = 2.0 ** (span.scale - bits.astype(np.float64) + 1)
    top = np.full(len(triples), 1.5 * 2.0**span.scale)
    return np.asarray(_results(ask, terms, triples, top, 0.75 * spacing, -top) == spacing)


def rounding(ask: Ask, terms: int, triple: tuple[int, int, int], bits: int, span: Range) -> str:
    """The name of the rounding of one node of ``bits``; where it has none, what was left of the steps."""
    spacing = 2.0 ** (span.scale - bits + 1)
    signs, steps = np.array(STEPS).T
    top = signs * 1.5 * 2.0**span.scale
    left = _results(ask, terms, [triple] * len(STEPS), top, signs * steps * spacing, -top) / spacing
    found = tuple(float(v) for v in left)
    return ROUNDINGS.get(
        found, f"other: of {', '.join(f'{a * b:g}' for a, b in STEPS)} spacings {', '.join(f'{v:g}' for v in found)} are left"
    )


@dataclass(frozen=True)
class Survey:
    """Precision over a sample of triples, before the tree is known. ``bits``: (fewest, most), None where no sum lost anything; ``result``:
    those of the result, 0 where none was seen to be lost."""

    bits: tuple[int, int] | None
    nearest: bool
    result: int = 0


def survey(ask: Ask, terms: int, span: Range, seed: int = 0) -> Survey:
    """Three addends at neighbouring and at random places, each in every part."""
    rng = np.random.default_rng(seed)
    places = [tuple(range(i, i + 3)) for i in range(0, min(terms - 2, 9), 3)]
    places += [tuple(int(i) for i in rng.choice(terms, 3, replace=False)) for _ in range(SAMPLES)] if terms > 3 else []
    triples = list(dict.fromkeys(p for place in places for p in itertools.permutations(place)))
    if not triples:
        return Survey((F32.p, F32.p), True, F32.p)
    bits = precisions(ask, terms, triples, span)
    lost = [t for t, p in zip(triples, bits, strict=True) if p]
    if not lost:
        return Survey(None, True)
    nearest = to_nearest(ask, terms, lost, bits[bits > 0], span)
    result = precisions(ask, terms, [(0, 1, -1)], span)[0]
    return Survey((int(bits[bits > 0].min()), int(bits.max())), bool(nearest.all()), int(result))


def masks(terms: int, span: Range, found: Survey) -> Masks:
    """M and units that suit the accumulators. IrregularError where their range leaves no room between the two."""
    assert found.bits is not None
    fewest, most = found.bits
    fewest = min(fewest, found.result or fewest)
    s, spacing = span.scale, span.scale - most + 1
    room = spacing - 1 - span.lowest
    if found.nearest:
        count = min(fewest, 30, room - 2)
        margin = max(min(MARGIN_BITS, room - count), 0)
    else:
        # A mask may be moved once per unit; survivors and moves share the accumulator's bits.
        margin = 2
        count = min((fewest - margin - 1) // 2, room - margin)
    if count < 0:
        raise IrregularError(f"sums of {most} bits have room for exponents {span.lowest} to {span.highest} only: too few to mask addends")
    unit = 2.0 ** (spacing - 1 - count - margin)
    return Masks(1.5 * 2.0**s, unit, 1 << count, 0.0 if found.nearest else 2.0**spacing)


def additions(ask: Ask, tree: Tree, span: Range, hint: int) -> list[Addition]:
    """How every node but the root rounds, equal ones counted together, most frequent first. ``hint``: bits that most should have."""
    first, parents = tree.first(), tree.parents()
    nodes = range(tree.terms, tree.root)
    outer = [_outside(tree, n, first, parents) for n in nodes]
    found = _kinds(ask, tree.terms, outer, span, hint)
    fused = [n for n, below in enumerate(tree.children) if len(below) > 2]
    within = [tuple(int(first[c]) for c in tree.children[n][:3]) for n in fused]
    inside = dict(zip(fused, precisions(ask, tree.terms, within, span), strict=True)) if fused else {}
    told = Counter(Addition(a.bits, a.rounding, int(inside[n]) if n in inside else None) for n, a in enumerate(found))
    root = len(tree.children) - 1
    if root in inside and not told:
        told[Addition(0, "not seen: a single sum", int(inside[root]))] += 1
    return [Addition(a.bits, a.rounding, a.inside, n) for a, n in told.most_common()]


def result(ask: Ask, tree: Tree, span: Range) -> Addition:
    """How the root's sum is rounded and stored."""
    first = tree.first()
    a, b = (int(first[c]) for c in tree.children[-1][:2])
    return _kinds(ask, tree.terms, [(a, b, -1)], span, F32.p)[0]


def _outside(tree: Tree, node: int, first: NDArray[np.intp], parents: NDArray[np.intp]) -> tuple[int, int, int]:
    """Leaves of two children of the node, and of a sibling."""
    sibling = next(c for c in tree.below(int(parents[node])) if c != node)
    a, b = tree.below(node)[:2]
    return int(first[a]), int(first[b]), int(first[sibling])


def _kinds(ask: Ask, terms: int, triples: list[tuple[int, int, int]], span: Range, hint: int) -> list[Addition]:
    """Bits and rounding where each triple meets. All are asked one question; those that answer as expected are like one of them."""
    if not triples:
        return []
    bits = np.full(len(triples), hint, np.intp)
    as_hinted = to_nearest(ask, terms, triples, bits, span)
    others = np.flatnonzero(~as_hinted)
    if others.size:
        bits[others] = precisions(ask, terms, [triples[i] for i in others], span)
    names: dict[tuple[bool, int], str] = {}
    found = []
    for i, triple in enumerate(triples):
        if as_hinted[i] or others.size > SAMPLES:
            key = (bool(as_hinted[i]), int(bits[i]))
            if key not in names:
                names[key] = rounding(ask, terms, triple, int(bits[i]), span) if bits[i] else "none"
            name = names[key]
        else:
            name = rounding(ask, terms, triple, int(bits[i]), span) if bits[i] else "none"
        found.append(Addition(int(bits[i]), name))
    return found


def input_bits(ask: Ask, terms: int, span: Range) -> int:
    """Significant bits that an addend keeps before it is added; at most those of the sums it passes through."""
    if terms < 2:
        return 0
    s = span.scale

    def keeps(k: int) -> bool:
        values = np.zeros((1, terms))
        values[0, 0], values[0, 1] = 2.0**s * (1 + 2.0**-k), -(2.0**s)
        return bool(ask(values)[0] == 2.0 ** (s - k))

    return _last(lambda k: k == 0 or keeps(k), min(23, s - span.lowest)) + 1


def accumulator(bits: int, span: Range) -> str:
    """The usual name of an accumulator of ``bits``."""
    if bits == 11 and span.highest < 32:
        return "f16"
    named = {8: "bf16", 24: "f32", 53: "f64", 0: "exact"}
    return named.get(bits, f"{bits}-bit")
