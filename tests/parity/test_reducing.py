"""The compiled pass of `parity diff` against the same in NumPy, for every dtype and every way to differ."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dumps import DumpWriter, open_dump
from dumps.dtypes import STORED
from oracle.floats import F32, FORMATS
from parity import reducing
from parity.diffing import difference

EDGES = {
    "f64": [0.0, -0.0, np.nan, np.inf, -np.inf, 5e-324, 2.3e-308, 1.7976931348623157e308, -1.7976931348623157e308, 1.0],
    "f32": [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, 1.2e-38, 3.4028235e38, -3.4028235e38, 1.0],
    "i64": [0, 1, -1, 2**62, -(2**63), 2**63 - 1, 2**53 + 1],
    "i32": [0, 1, -1, 2**31 - 1, -(2**31)],
    "u8": [0, 1, 255],
}


def values(rng: np.random.Generator, dtype: str, n: int) -> np.ndarray:
    """Random bits or ordinary values, edges among them."""
    kind = STORED[dtype]
    if rng.random() < 0.5:
        made = np.frombuffer(rng.bytes(n * kind.itemsize), kind).copy()
    elif kind.kind == "f":
        made = rng.standard_normal(n).astype(kind)
    else:
        made = rng.integers(0, 100, n).astype(kind)
    if dtype in EDGES and n:
        places = rng.integers(0, n, 6)
        made[places] = rng.choice(np.array(EDGES[dtype], kind), 6)
    return made


def nearly(rng: np.random.Generator, a: np.ndarray, share: float) -> np.ndarray:
    """A copy in which some elements have their last bits changed."""
    bits = a.copy().view({1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[a.dtype.itemsize])
    chosen = rng.random(len(bits)) < share
    bits[chosen] ^= rng.integers(1, 8, int(chosen.sum())).astype(bits.dtype)
    return bits.view(a.dtype)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    dtypes=st.tuples(st.sampled_from(list(STORED)), st.sampled_from(list(STORED))),
    shape=st.sampled_from([(1, 1), (3, 7), (5, 512), (2, 513), (70, 3), (4, 1100), (2, 5003)]),
    share=st.sampled_from([0.0, 0.001, 0.2, 1.0]),
)
def test_the_compiled_pass_is_numpys(seed, dtypes, shape, share):
    rng = np.random.default_rng(seed)
    a = values(rng, dtypes[0], int(np.prod(shape)))
    b = nearly(rng, a, share) if dtypes[0] == dtypes[1] and share < 1 else values(rng, dtypes[1], a.size)
    a, b = a.reshape(shape), b.reshape(shape)
    coarse = min((FORMATS.get(d, F32) for d in dtypes), key=lambda f: f.p)
    ours, theirs = (f(a, dtypes[0], b, dtypes[1], coarse) for f in (reducing.compiled, reducing.in_numpy))
    assert np.array_equal(ours.differs, theirs.differs) and (ours.elements, ours.max_abs) == (theirs.elements, theirs.max_abs)
    assert ours.ulps == theirs.ulps


def test_a_difference_that_float32_rounds_is_the_largest_all_the_same():
    """1 + 2^-30 lies behind 4000 differences of 1, all of which float32 tells from it by nothing; 6.8e38 is none in float32."""
    a, b = np.full((2, 5000), 2, np.float32), np.full((2, 5000), 1, np.float32)
    a[1, 4000], b[1, 4000] = 1, -(2.0**-30)
    found = reducing.compiled(a, "f32", b, "f32", F32)
    assert (found.elements, found.max_abs) == (10_000, 1 + 2.0**-30)
    a[0, 7], b[0, 7] = 3.4e38, -3.4e38
    assert reducing.compiled(a, "f32", b, "f32", F32).max_abs == 2 * float(np.float32(3.4e38))


@pytest.mark.parametrize("apart", range(8, 24))
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_a_difference_of_values_far_apart_is_exact(dtype, apart):
    """Of exponents so far apart that float32 holds the difference, just holds it, or does not."""
    kind, last = FORMATS[dtype], 2.0 ** (1 - FORMATS[dtype].p)
    pair = [1.0, -((2 - last) * 2.0**-apart)]
    if dtype == "f16":
        pair = [v * 1024 for v in pair]
    stored = [np.full((1, 64), v, np.float32) for v in kind.round(np.array(pair))]
    a, b = ((x.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bf16" else x.astype(STORED[dtype]) for x in stored)
    ours, theirs = (f(a, dtype, b, dtype, kind) for f in (reducing.compiled, reducing.in_numpy))
    assert (ours.elements, ours.max_abs, ours.ulps) == (64, theirs.max_abs, theirs.ulps)


@pytest.mark.parametrize("dtype", STORED)
def test_one_element_of_a_few_megabytes_is_found_whatever_the_pieces(tmp_path, monkeypatch, dtype):
    """Two dumps in other pieces, chunks far smaller than either; one element differs, in the row that is said."""
    monkeypatch.setattr(reducing, "CHUNK", 1 << 16)
    rng = np.random.default_rng(3)
    rows, width = 301, 1024
    a = rng.integers(0, 60, (rows, width)).astype(STORED[dtype]) + (16000 if dtype == "bf16" else 0)
    b = a.copy()
    b[217, 1000] += 1
    for name, array, cuts in (("a", a, [0, rows]), ("b", b, [0, 100, 217, 218, rows])):
        with DumpWriter(tmp_path / name, {}, {}) as writer:
            for first, last in itertools.pairwise(cuts):
                writer.put(0, "target.embed", array[first:last], first, dtype)
    found = difference(open_dump(tmp_path / "a"), open_dump(tmp_path / "b")).stages
    assert [(s.verdict, s.rows, s.elements, s.of) for s in found] == [("different", [217], 1, rows * width)]
    records = [open_dump(tmp_path / n).get(0, "target.embed") for n in "ab"]
    both = [list(reducing.reduced(*records, FORMATS.get(dtype, F32), f)) for f in (reducing.compiled, reducing.in_numpy)]
    assert [r.elements for r in both[0]] == [r.elements for r in both[1]] and len(both[0]) > 4


def test_large_whole_numbers_are_told_apart(tmp_path):
    """Float64 would round them together."""
    a, b = np.array([[2**60]], np.int64), np.array([[2**60 + 1]], np.int64)
    for f in (reducing.compiled, reducing.in_numpy):
        assert f(a, "i64", b, "i64", F32).elements == 1 and f(a, "i64", b, "i64", F32).max_abs == 1.0
