"""Summation trees: canonical, and the one that `summation.total` really adds in."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracle import summation
from oracle.trees import Grower, Tree

ORDERS = st.one_of(
    st.sampled_from(["sequential", "pairwise"]),
    st.integers(1, 12).map("blocked:{}".format),
    st.integers(1, 9).map("lanes:{}".format),
    st.tuples(st.integers(1, 5), st.integers(1, 5)).map(lambda lw: f"lanes:{lw[0]}x{lw[1]}"),
)


def evaluated(tree: Tree, x: np.ndarray) -> np.float32:
    sums = list(x)
    for below in tree.children:
        total = sums[below[0]]
        for child in below[1:]:
            total = np.float32(total + sums[child])
        sums.append(total)
    return sums[tree.root]


@given(ORDERS, st.integers(1, 60), st.integers(0, 99))
def test_a_sum_is_formed_along_the_tree_of_its_order(order: str, terms: int, seed: int):
    x = (np.random.default_rng(seed).standard_normal(terms) * 100).astype(np.float32)
    assert evaluated(summation.tree(order, terms), x) == summation.total(x, order)


@given(ORDERS, st.integers(1, 40))
def test_sizes_first_leaves_and_parents_agree(order: str, terms: int):
    tree = summation.tree(order, terms)
    sizes, first, parents, positions = tree.sizes(), tree.first(), tree.parents(), tree.positions()
    under = {leaf: {leaf} for leaf in range(terms)}
    assert sizes[tree.root] == terms and first[tree.root] == 0 and parents[tree.root] == tree.root
    for i, below in enumerate(tree.children):
        assert all(parents[c] == terms + i for c in below) and list(first[list(below)]) == sorted(first[list(below)])
        assert sizes[terms + i] == sum(sizes[c] for c in below)
        under[terms + i] = set().union(*(under[c] for c in below))
        begin = positions[first[terms + i]]
        assert {int(positions[leaf]) for leaf in under[terms + i]} == set(range(begin, begin + sizes[terms + i]))


def test_the_text_of_small_trees():
    assert [summation.tree(o, 5).text() for o in ("sequential", "pairwise", "blocked:2", "lanes:2", "lanes:2x2")] == [
        "((((0 1) 2) 3) 4)",
        "(((0 1) (2 3)) 4)",
        "(((0 1) (2 3)) 4)",
        "(((0 2) 4) (1 3))",
        "(((0 1) 4) (2 3))",
    ]
    assert summation.tree("pairwise", 1).text() == "0"


def test_children_have_no_order_and_a_long_chain_needs_no_stack():
    one, other = Grower(3), Grower(3)
    assert one.tree(one.join([one.join([2, 0]), 1])) == other.tree(other.join([1, other.join([0, 2])]))
    chain = summation.tree("sequential", 20_000)
    assert len(chain.fingerprint()) == 64 and chain.fingerprint() != summation.tree("pairwise", 20_000).fingerprint()


def test_a_tree_has_every_addend_once():
    grower = Grower(3)
    with pytest.raises(ValueError, match="2 of 3 addends"):
        grower.tree(grower.join([0, 1]))
    with pytest.raises(ValueError, match="addend 1 is in the tree twice"):
        grower.tree(grower.join([grower.join([0, 1]), grower.join([1, 2])]))


@pytest.mark.parametrize("order", ["blas", "f64"])
def test_an_unknown_order_has_no_tree(order: str):
    with pytest.raises(ValueError, match="does not say"):
        summation.tree(order, 8)
