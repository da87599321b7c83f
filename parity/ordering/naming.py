"""A summation tree in words: its usual name, where it has one, and an expression that is short where the tree is regular."""

from __future__ import annotations

from collections.abc import Iterator

from oracle import summation
from oracle.trees import Grower, Tree

MOST = 400


def name(tree: Tree) -> str:
    """``sequential``, ``pairwise``, ``blocked:n``, ``lanes:n``, ``lanes:nxw`` (`oracle.summation`), ``fused:n`` (a chain that takes n
    products at a time), else the empty string."""
    if not tree.children:
        return "sequential"
    for order in _orders(tree):
        if summation.tree(order, tree.terms) == tree:
            return order
    step = len(tree.children[0])
    return f"fused:{step}" if step > 2 and fused(step, tree.terms) == tree else ""


def fused(step: int, terms: int) -> Tree:
    """A chain that takes ``step`` addends at a time, the sum so far beside them."""
    grower = Grower(terms)
    node = grower.join(range(min(step, terms)))
    for start in range(step, terms, step):
        node = grower.join([node, *range(start, min(start + step, terms))])
    return grower.tree(node)


def _orders(tree: Tree) -> Iterator[str]:
    """Orders that the tree could have, the simplest first: told by the chain that the first addend begins."""
    yield from ("sequential", "pairwise")
    parents = tree.parents()
    chain, node = [0], 0
    while node != tree.root:
        parent = int(parents[node])
        beside = [c for c in tree.below(parent) if c != node]
        if len(beside) != 1 or beside[0] >= tree.terms:
            break
        chain.append(beside[0])
        node = parent
    yield f"blocked:{len(chain)}"
    run = next((i for i, leaf in enumerate(chain) if leaf != i), len(chain))
    lanes = chain[run] // run if run < len(chain) else -(-tree.terms // run)
    yield f"lanes:{lanes}" if run == 1 else f"lanes:{lanes}x{run}"


def description(tree: Tree) -> str:
    """The tree as nested ``chain(…)``, ``pairs(…)`` and ``fused(…)`` of addends ``first..last/step`` and repeated parts
    ``n x part +shift``; cut after `MOST` characters."""
    if not tree.children:
        return "0"
    text = _Words(tree).node(tree.root)
    return text if len(text) <= MOST else text[: MOST - 1] + "…"


class _Words:
    def __init__(self, tree: Tree) -> None:
        self.tree, self.sizes, self.first = tree, tree.sizes(), tree.first()
        shapes: dict[tuple[tuple[int, int], ...], int] = {}
        self.shape = [0] * tree.terms
        for i, below in enumerate(tree.children):
            start = self.first[tree.terms + i]
            key = tuple((self.shape[c], int(self.first[c] - start)) for c in below)
            self.shape.append(shapes.setdefault(key, len(shapes) + 1))

    def node(self, node: int) -> str:
        if node < self.tree.terms:
            return str(node)
        below = self.tree.below(node)
        if len(below) == 2:
            level = self._balanced(node)
            if len(level) > 2:
                return f"pairs({self._parts(level)})"
        return self._chain(node)

    def _balanced(self, node: int) -> list[int]:
        """Subtrees of one shape whose sums are added in pairs, level by level."""
        level = [node]
        while True:
            below = [self.tree.below(n) for n in level]
            if any(len(b) != 2 for b in below) or len({self.shape[c] for b in below for c in b}) != 1:
                return level
            level = [c for b in below for c in b]

    def _chain(self, node: int) -> str:
        """The largest part first, what is added to it one after the other."""
        steps: list[list[int]] = []
        arity = len(self.tree.below(node))
        while node >= self.tree.terms and len(self.tree.below(node)) == arity:
            below = self.tree.below(node)
            if len({self.shape[c] for c in below}) == 1:
                break
            largest = max(below, key=lambda c: (self.sizes[c], -self.first[c]))
            steps.append([c for c in below if c != largest])
            node = largest
        below = self.tree.below(node)
        base = list(below) if len(below) in (arity, arity - 1) and len({self.shape[c] for c in below}) == 1 else [node]
        rest = [c for step in reversed(steps) for c in step]
        if rest and base != [node] and self.shape[rest[0]] != self.shape[base[0]]:
            base = [node]
        word = "chain" if arity == 2 else f"fused{arity - 1 if steps else arity}"
        return f"{word}({self._parts([*base, *rest])})"

    def _parts(self, nodes: list[int]) -> str:
        """Parts side by side; runs of one shape at equal distances as one."""
        words, at = [], 0
        while at < len(nodes):
            run, shift = 1, 0
            if at + 1 < len(nodes):
                shift = int(self.first[nodes[at + 1]] - self.first[nodes[at]])
            while at + run < len(nodes) and self._follows(nodes[at + run - 1], nodes[at + run], shift):
                run += 1
            start, leaf = int(self.first[nodes[at]]), nodes[at] < self.tree.terms
            if run < 3:
                words += [self.node(n) for n in nodes[at : at + run]]
            elif leaf:
                words.append(f"{start}..{start + (run - 1) * shift}" + (f"/{shift}" if shift != 1 else ""))
            else:
                words.append(f"{run} x {self.node(nodes[at])} +{shift}")
            at += run
        return ", ".join(words)

    def _follows(self, node: int, following: int, shift: int) -> bool:
        return self.shape[node] == self.shape[following] and int(self.first[following] - self.first[node]) == shift
