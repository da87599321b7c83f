"""The summation tree of a kernel from its results alone.

One addend is M, another -M, the rest units so small that M swallows them: what is added before M and -M meet is lost, what is added
afterwards counts. The units that are lost are the leaves under the lowest common ancestor of the two. From the losses of one leaf i with
all others follows its path to the root; the subtrees beside the path are found in the same way (FPRev, algorithm 2). A node where more
than two subtrees meet at once loses all of them for each pair of its children; an exact one only the two children of the pair.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oracle.tensor import Array
from oracle.trees import Grower, Tree

Ask = Callable[[Array], Array]
"""Values of the leaves [probe, leaf] to the kernel's sums [probe], float64."""
Counts = NDArray[np.intp]
AT_ONCE = 128


class IrregularError(ValueError):
    """The results do not fit any summation tree."""


@dataclass(frozen=True)
class Masks:
    """``large``: M. ``unit``: a swallowed addend. ``capacity``: units whose sum is swallowed too, and is exact where it is not.
    ``spacing``: distance of accumulators at M, where rounding may move M by it (directed rounding); 0 where it may not."""

    large: float
    unit: float
    capacity: int
    spacing: float = 0.0

    def survivors(self, results: Array) -> Array:
        """Units in the results; IrregularError for a result that is no number of them."""
        left = np.mod(results, self.spacing) if self.spacing else results
        counts = left / self.unit
        whole = np.rint(counts)
        bad = ~(np.abs(counts - whole) < 0.01)
        if bad.any():
            raise IrregularError(f"a sum of units left {results[bad][0]:.9g}, which is no number of units of {self.unit:.9g}")
        return np.asarray(whole)


class Revealer:
    """Finds the tree of ``terms`` leaves by asking. ``asked``: probes so far."""

    def __init__(self, ask: Ask, terms: int, masks: Masks, seed: int = 0) -> None:
        self.ask, self.terms, self.masks = ask, terms, masks
        self.rng = np.random.default_rng(seed)
        self.grower = Grower(terms)
        self.asked = 0

    def tree(self) -> Tree:
        """The whole tree. IrregularError where there is none."""
        return self.grower.tree(self._cluster(list(range(self.terms))))

    def lost(self, i: int, others: Sequence[int], among: Sequence[int]) -> Counts:
        """For each j of ``others``: how many of the leaves ``among`` (i and j count) lie under the lowest common ancestor of i and j."""
        lost = np.full(len(others), 2, np.intp)
        for start in range(0, len(among), self.masks.capacity):
            units = np.zeros(self.terms)
            units[list(among[start : start + self.masks.capacity])] = self.masks.unit
            lost += self._lost_units(np.full(len(others), i), np.asarray(others), units)
        return lost

    def _lost_units(self, first: Counts, second: Counts, units: Array) -> Counts:
        """Units lost by each pair (first, second), of the addends ``units`` [leaf] but for the pair itself."""
        found = np.empty(len(first), np.intp)
        for start in range(0, len(first), AT_ONCE):
            i, j = first[start : start + AT_ONCE], second[start : start + AT_ONCE]
            values = np.repeat(units[None], len(i), 0)
            rows = np.arange(len(i))
            values[rows, i], values[rows, j] = 0.0, 0.0
            given = np.rint(values.sum(1) / self.masks.unit)
            values[rows, i], values[rows, j] = self.masks.large, -self.masks.large
            left = self.masks.survivors(self.ask(values))
            self.asked += len(i)
            if ((left < 0) | (left > given)).any():
                raise IrregularError(f"of {given[0]:g} units {left.min():g} to {left.max():g} were left")
            found[start : start + AT_ONCE] = (given - left).astype(np.intp)
        return found

    def _cluster(self, leaves: list[int], shuffled: bool = False) -> int:
        """The node with exactly ``leaves`` under it. ``shuffled``: the path of any of them, where the first one's was of little use."""
        if len(leaves) == 1:
            return leaves[0]
        i = leaves[int(self.rng.integers(len(leaves)))] if shuffled else leaves[0]
        others = [j for j in leaves if j != i]
        return self._path(i, others, self.lost(i, others, leaves))

    def _path(self, i: int, others: list[int], lost: Counts) -> int:
        """The node over i and ``others``, from the losses of i with each of them: one level for every loss, from i up."""
        node, size, total = i, 1, len(others) + 1
        beside: dict[int, list[int]] = {}
        for j, n in zip(others, lost, strict=True):
            beside.setdefault(int(n), []).append(j)
        losses = sorted(beside)
        while losses:
            level = [losses.pop(0)]
            while losses and self._same_node(i, [beside[v] for v in level], beside[losses[0]], losses[0] - size):
                level.append(losses.pop(0))
            groups = [beside[v] for v in level]
            if len(level) == 1 and level[0] == size + len(groups[0]):
                node = self.grower.join([node, *self._subtrees(groups[0], i, 4 * len(groups[0]) > 3 * total)])
            elif all(v > size and len(g) % (v - size) == 0 for v, g in zip(level, groups, strict=True)):
                parts = [part for v, g in zip(level, groups, strict=True) for part in self._equal_subtrees(g, v - size)]
                node = self.grower.join([node, *parts])
            else:
                raise IrregularError(
                    f"addend {i} and {len(groups[0])} others lose {level[0]} addends where they meet, but {size} were added to it before"
                )
            size += sum(map(len, groups))
        return node

    def _same_node(self, i: int, groups: list[list[int]], group: list[int], more: int) -> bool:
        """Whether ``group`` hangs on the same, exact node as ``groups``: a sum of i and one of it, with ``more`` losses than i had, loses
        nothing of them."""
        before = [j for g in groups for j in g]
        if more == len(before) + len(group):
            return False
        return int(self.lost(i, group[:1], before)[0]) == 2

    def _subtrees(self, leaves: list[int], witness: int, shuffled: bool) -> list[int]:
        """Children, under one node with ``witness``, that have ``leaves``: one, or several of a fused sum."""
        parts: list[int] = []
        while leaves:
            i = leaves[int(self.rng.integers(len(leaves)))] if shuffled else leaves[0]
            others = [j for j in leaves if j != i]
            if not others:
                return [*parts, i]
            lost = self.lost(i, others, [*leaves, witness])
            inside = lost <= len(leaves)
            own = [j for j, keep in zip(others, inside, strict=True) if keep]
            parts.append(self._path(i, own, lost[inside]))
            leaves = [j for j, keep in zip(others, inside, strict=True) if not keep]
        return parts

    def _equal_subtrees(self, leaves: list[int], size: int) -> list[int]:
        """Children of an exact node, each of ``size`` leaves."""
        if size == 1:
            return leaves
        parts: list[int] = []
        while leaves:
            i, *others = leaves
            lost = self.lost(i, others, leaves) if len(leaves) > size else np.zeros(len(others), np.intp)
            own = [i, *(j for j, n in zip(others, lost, strict=True) if n <= size)]
            if len(own) != size:
                raise IrregularError(f"addend {i} shares a sum with {len(own) - 1} others, expected {size - 1}")
            parts.append(self._cluster(own))
            leaves = [j for j in leaves if j not in set(own)]
        return parts

    def agrees(self, tree: Tree) -> bool:
        """Whether the kernel adds along ``tree``: every node of it loses just the addends under it (their numbers of units are random).

        One probe per node, and one per pair of neighbouring children of a fused sum.
        """
        pairs = [(tree.terms + n, a, b) for n, below in enumerate(tree.children) for a, b in itertools.pairwise(below)]
        first, sizes, positions = tree.first(), tree.sizes(), tree.positions()
        in_row = np.argsort(positions)
        most = max(min(127, self.masks.capacity // tree.terms), 1)
        for start in range(0, len(pairs), AT_ONCE):
            nodes, *sides = np.array(pairs[start : start + AT_ONCE]).T
            values = self.rng.integers(1, most + 1, (len(nodes), tree.terms)).astype(np.float64)
            if tree.terms > self.masks.capacity:
                values *= self.rng.random(values.shape) * tree.terms < self.masks.capacity / 2
                values *= np.cumsum(values, 1) <= self.masks.capacity
            rows, ends = np.arange(len(nodes)), first[sides]
            values[rows, ends] = 0.0
            sums = np.concatenate([np.zeros((len(nodes), 1)), np.cumsum(values[:, in_row], 1)], 1)
            begin = positions[first[nodes]]
            outside = sums[:, -1] - (sums[rows, begin + sizes[nodes]] - sums[rows, begin])
            values *= self.masks.unit
            values[rows, ends[0]], values[rows, ends[1]] = self.masks.large, -self.masks.large
            try:
                left = self.masks.survivors(self.ask(values))
            except IrregularError:
                return False
            self.asked += len(nodes)
            if (left != outside).any():
                return False
        return True
