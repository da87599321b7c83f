"""Summation trees: which partial sums a sum of `terms` addends is formed of, whatever their values.

A leaf is an addend; an inner node adds its children with one rounding. Addition commutes, so children have no order. Binary nodes are
ordinary additions; a node of more children is a fused sum (an exact or aligned sum of several products, as matrix units form).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Tree:
    """A tree in its one canonical form, so that equal trees compare equal.

    Nodes are numbers: ``0 … terms-1`` the leaves, ``terms + i`` the inner node with ``children[i]``. Children stand in the order of their
    smallest leaves, nodes in post-order; the root is the last. A single addend has no inner node. Made by `Grower`.
    """

    terms: int
    children: tuple[tuple[int, ...], ...]

    @property
    def root(self) -> int:
        return self.terms + len(self.children) - 1

    def below(self, node: int) -> tuple[int, ...]:
        """Children of the node; none of a leaf."""
        return self.children[node - self.terms] if node >= self.terms else ()

    def sizes(self) -> NDArray[np.intp]:
        """Leaves under every node, [node]."""
        sizes = np.ones(self.terms + len(self.children), np.intp)
        for i, below in enumerate(self.children):
            sizes[self.terms + i] = sizes[list(below)].sum()
        return sizes

    def first(self) -> NDArray[np.intp]:
        """Smallest leaf under every node, [node]."""
        first = np.arange(self.terms + len(self.children))
        for i, below in enumerate(self.children):
            first[self.terms + i] = first[below[0]]
        return first

    def parents(self) -> NDArray[np.intp]:
        """Parent of every node, [node]; the root's is itself."""
        parents = np.arange(self.terms + len(self.children))
        for i, below in enumerate(self.children):
            parents[list(below)] = self.terms + i
        return parents

    def positions(self) -> NDArray[np.intp]:
        """Places of the leaves in a row in which every node's leaves stand together, its smallest first, [leaf]."""
        positions = np.empty(self.terms, np.intp)
        todo, count = [self.root], 0
        while todo:
            node = todo.pop()
            if node < self.terms:
                positions[node] = count
                count += 1
            todo += reversed(self.below(node))
        return positions

    def text(self) -> str:
        """The whole tree with parentheses: ``((0 1) 2)``."""
        parts: list[str] = []
        todo: list[int | str] = [self.root]
        while todo:
            node = todo.pop()
            if isinstance(node, str):
                parts.append(node)
            elif node < self.terms:
                parts.append(str(node))
            else:
                spaced: list[int | str] = [part for child in self.below(node) for part in (" ", child)]
                todo += [")", *reversed(spaced[1:]), "("]
        return "".join(parts)

    def fingerprint(self) -> str:
        """SHA-256 of the number of addends and `text`."""
        return hashlib.sha256(f"{self.terms}:{self.text()}".encode()).hexdigest()


class Grower:
    """Builds a tree from its leaves: every method returns the number of a node, `tree` the canonical tree under one."""

    def __init__(self, terms: int) -> None:
        self.terms = terms
        self.below: list[tuple[int, ...]] = []

    def join(self, nodes: Iterable[int]) -> int:
        """The node that adds ``nodes`` at once; a single one is itself."""
        children = tuple(nodes)
        if len(children) == 1:
            return children[0]
        self.below.append(children)
        return self.terms + len(self.below) - 1

    def chain(self, nodes: Sequence[int]) -> int:
        """One after the other: ``((a b) c) …``."""
        node = nodes[0]
        for following in nodes[1:]:
            node = self.join((node, following))
        return node

    def balanced(self, nodes: Sequence[int]) -> int:
        """Neighbours in pairs, level by level; one left over goes up as it is."""
        level = list(nodes)
        while len(level) > 1:
            level = [self.join(level[i : i + 2]) for i in range(0, len(level), 2)]
        return level[0]

    def tree(self, root: int) -> Tree:
        """Canonical form of the tree under ``root``, which has every leaf once; ValueError where it has not."""
        first = list(range(self.terms)) + [0] * len(self.below)
        for i, children in enumerate(self.below):
            first[self.terms + i] = min(first[c] for c in children)
        number: dict[int, int] = {}
        made: list[tuple[int, ...]] = []
        todo = [(root, False)]
        while todo:
            node, ready = todo.pop()
            if node < self.terms:
                if node in number:
                    raise ValueError(f"addend {node} is in the tree twice")
                number[node] = node
                continue
            inner = sorted(self.below[node - self.terms], key=first.__getitem__)
            if ready:
                made.append(tuple(number[c] for c in inner))
                number[node] = self.terms + len(made) - 1
            else:
                todo += [(node, True), *((c, False) for c in reversed(inner))]
        if len(number) != self.terms + len(made):
            raise ValueError(f"{len(number) - len(made)} of {self.terms} addends are in the tree")
        return Tree(self.terms, tuple(made))
