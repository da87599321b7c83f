"""Summation orders: the check values of the noise rules, every order against a loop, and the energy of a tree against the tree."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle import summation
from oracle.kit import Kit
from oracle.ops.base import gamma
from oracle.weights import Weight

drawn = settings(max_examples=60, deadline=None)
ORDERS = ["sequential", "pairwise", "blocked:1", "blocked:5", "blocked:64", "lanes:1", "lanes:3", "lanes:8", "lanes:2x3", "lanes:32x4"]


def chain(values: list[np.floating]) -> np.floating:
    total = values[0]
    for v in values[1:]:
        total = total + v
    return total


def balanced(values: list[np.floating]) -> np.floating:
    while len(values) > 1:
        pairs = [values[i] + values[i + 1] for i in range(0, len(values) - 1, 2)]
        values = pairs + ([values[-1]] if len(values) % 2 else [])
    return values[0]


def lanes_of(values: list, n: str) -> list[list]:
    """The addends of each lane of ``lanes:n``, those without any left out."""
    count, _, width = n.partition("x")
    lanes = [[v for i, v in enumerate(values) if i // int(width or 1) % int(count) == lane] for lane in range(int(count))]
    return [lane for lane in lanes if lane]


def naive(values: list[np.floating], order: str) -> np.floating:
    """The sum, one rounded addition at a time."""
    kind, _, n = order.partition(":")
    if kind == "sequential":
        return chain(values)
    if kind == "pairwise":
        return balanced(values)
    if kind == "blocked":
        size = int(n)
        return chain([chain(values[i : i + size]) for i in range(0, len(values), size)])
    return balanced([chain(lane) for lane in lanes_of(values, n)])


def addends(k: int, seed: int, dtype: type) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(k) * 10.0 ** rng.integers(-3, 4, k)).astype(dtype)


@pytest.mark.parametrize(
    ("order", "terms", "a", "b"),
    [
        ("sequential", 4, 1.875, 0.625),
        ("pairwise", 8, 1.75, 1.25),
        ("sequential", 576, 192.5, 96.0),
        ("blocked:128", 576, 10.83, 56.67),
        ("sequential", 4096, 1365.83, 682.667),
        ("pairwise", 4096, 1.9995, 10.0005),
        ("blocked:256", 4096, 11.208, 125.79),
        ("lanes:8", 4096, 23.146, 236.35),
        ("blocked:256", 33280, 44.49, 149.5),
    ],
)
def test_energies_are_those_of_the_noise_rules(order, terms, a, b):
    """`specs/noise-rules.md` section 3, "check values"."""
    found = summation.energy(order, terms)
    assert found[0] == pytest.approx(a, rel=5e-4)
    assert found[1] == pytest.approx(b, rel=5e-4)


def leaves_of(order: str, k: int) -> list[int]:
    """Number of leaves under every addition of the tree; a chain starts from zero, so its first addition has one leaf."""
    kind, _, n = order.partition(":")
    if kind == "sequential":
        return list(range(1, k + 1))
    if kind == "pairwise":
        return [m for level in range(1, int(math.log2(k)) + 1) for m in [2**level] * (k // 2**level)]
    size = len(lanes_of(list(range(k)), n)) if kind == "lanes" else int(n)
    if kind == "blocked":
        return [*range(1, size + 1)] * (k // size) + [size * c for c in range(1, k // size + 1)]
    return [*range(1, k // size + 1)] * size + [m * (k // size) for m in leaves_of("pairwise", size)]


@pytest.mark.parametrize("order", ["sequential", "pairwise", "blocked:16", "blocked:64", "lanes:4", "lanes:8", "lanes:32x4"])
@pytest.mark.parametrize("k", [64, 256])
def test_energy_is_summed_over_the_additions_of_the_tree(order, k):
    shares = np.array(leaves_of(order, k)) / k
    a, b = summation.energy(order, k)
    assert a == pytest.approx(np.square(shares).sum(), rel=1e-12)
    assert b == pytest.approx((shares * (1 - shares)).sum(), rel=1e-12)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@drawn
@given(k=st.integers(1, 70), seed=st.integers(0, 2**32 - 1))
def test_total_is_the_naive_sum_to_the_bit(order, dtype, k, seed):
    x = addends(k, seed, dtype)
    assert summation.total(np.stack([x, x[::-1]]), order).tolist() == [naive(list(x), order), naive(list(x[::-1]), order)]


@pytest.mark.parametrize("order", ORDERS)
@drawn
@given(k=st.integers(1, 70), seed=st.integers(0, 2**32 - 1))
def test_the_last_partial_sum_is_the_exact_total(order, k, seed):
    x = np.random.default_rng(seed).integers(-(2**20), 2**20, (3, k)).astype(float)
    sums = summation.partial_sums(x, order)
    assert sums[..., -1].tolist() == x.sum(-1).tolist()


@pytest.mark.parametrize("order", ORDERS)
def test_partial_sums_are_the_results_of_every_addition(order):
    """Powers of two name their subset: each sum tells which addends lie under the addition."""
    k = 13
    x = 2.0 ** np.arange(k)
    kind, _, n = order.partition(":")
    leaves = list(range(k))
    if kind == "blocked":
        chains = [leaves[i : i + int(n)] for i in range(0, k, int(n))]
    elif kind == "lanes":
        chains = lanes_of(leaves, n)
    else:
        chains = [leaves] if kind == "sequential" else []
    expected = {sum(2**i for i in c[: m + 1]) for c in chains for m in range(len(c))}
    found = set(summation.partial_sums(x, order).astype(int).tolist())
    assert expected <= found
    assert 2**k - 1 in found


@pytest.mark.parametrize("order", ORDERS)
@drawn
@given(k=st.integers(1, 300), seed=st.integers(0, 2**32 - 1))
def test_the_error_of_a_sum_stays_within_the_bound_of_its_depth(order, k, seed):
    x = addends(k, seed, np.float32)
    error = abs(float(summation.total(x, order)) - math.fsum(x.tolist()))
    assert error <= gamma(summation.depth(order, k)) * np.abs(x.astype(float)).sum()


def test_a_sum_in_double_is_exact_for_float32_addends():
    x = addends(4096, 3, np.float32)
    assert summation.total(x, "f64") == np.float32(math.fsum(x.tolist()))
    assert summation.energy("f64", 4096) == (0.0, 0.0)
    assert summation.depth("f64", 4096) == 0
    assert not summation.partial_sums(x.astype(float), "f64").any()


def test_an_unknown_order_counts_as_sequential():
    assert summation.energy("blas", 300) == summation.energy("sequential", 300)
    assert summation.depth("blas", 300) == summation.depth("sequential", 300)


@pytest.mark.parametrize("order", ["sequential", "pairwise", "blocked:5", "blocked:64", "lanes:3", "lanes:8", "lanes:4x2"])
@drawn
@given(k=st.integers(1, 40), seed=st.integers(0, 2**32 - 1))
def test_a_dot_product_rounds_every_product_and_every_addition(order, k, seed):
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal((2, k)).astype(np.float32), rng.standard_normal((3, k)).astype(np.float32)
    expected = [[naive(list(a * b), order) for b in w] for a in x]
    assert Kit(np.float32, order).dot(x, w).tolist() == expected
    assert Kit(np.float32, order).dot(x, Weight.of(w, ("dim", "in"))).tolist() == expected


def test_a_dot_product_accumulated_in_double_is_rounded_once():
    rng = np.random.default_rng(5)
    x, w = rng.standard_normal((2, 900)).astype(np.float32), rng.standard_normal((3, 900)).astype(np.float32)
    expected = (x.astype(float) @ w.astype(float).T).astype(np.float32)
    assert Kit(np.float32, "f64").dot(x, w).tolist() == expected.tolist()


def test_a_norm_may_sum_in_another_order_than_the_products():
    kit = Kit(np.float32, "sequential", "pairwise")
    x = addends(257, 11, np.float32)
    assert kit.sum(x) == naive(list(x), "sequential")
    assert kit.sum(x, kit.norm_sum) == naive(list(x), "pairwise")
    assert naive(list(x), "sequential") != naive(list(x), "pairwise")


NO_ORDERS = ["", "seq", "f32", "blocked", "blocked:", "blocked:0", "blocked:²", "blocked:4x4", "sequential:4", "pairwise:"]
NO_ORDERS += ["lanes:1.5", "lanes:x4", "lanes:4x", "lanes:4x0"]


@pytest.mark.parametrize("order", NO_ORDERS)
def test_a_name_that_is_no_order_is_refused_and_the_known_ones_named(order):
    with pytest.raises(ValueError, match=r"expected sequential, pairwise, blocked:n, lanes:n, lanes:nxw, blas or f64"):
        summation.parse(order)
