"""The Muse drafter at its real window of 2,048 and block of 16, with tiny widths: where the engines' rules part.

`specs/muse-glimmer.md` 3.4: every row sees everything iff n <= 2033 (hf), n <= 2032 (llama.cpp), and the ring evicts past 64 + 2048 rows.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from oracle.drafters import forward
from oracle.readings import Exact
from oracle.recipes import Visible
from oracle.tape import Machine, Record
from oracle.tensor import Array
from tests.oracle import golden_drafter as tiny

WINDOW, SINK, BLOCK = 2048, 64, 16
FEATURES = np.random.default_rng(20).standard_normal((WINDOW + 2 * SINK, 16))
IDS = np.array([tiny.ANCHOR] + [tiny.MASK] * (BLOCK - 1))


@cache
def attention(rule: str, rows: int, before: int = 0) -> Array:
    """Layer 0's attention output of a block after ``rows`` context rows; with ``before``, a block was proposed at that length too."""
    sliding, none = (True, True), (False, False)
    w, g = tiny.weights(), replace(tiny.geometry(sliding, WINDOW), block_size=BLOCK)
    d = tiny.dialect(rule, none, WINDOW, sink=SINK if rule == "SINK_RING" else 0)
    reading, tape, context = Exact(), Record(), forward.Context()
    m = Machine(reading, tape).at("draft")
    start = 0
    for stop in ([before] if before else []) + [rows]:
        forward.append(m, w, g, d, context, reading.lift(FEATURES[start:stop], ("row", "dim")), start)
        forward.propose(m, w, g, d, context, IDS, stop, tiny.EMBEDDING, tiny.HEAD)
        start = stop
    return tape["draft.L0.attn"].data


def differing_rows(rule: str, rows: int) -> list[int]:
    return np.flatnonzero(np.abs(attention(rule, rows) - attention("none", rows)).reshape(BLOCK, -1).max(1) > 0).tolist()


@pytest.mark.parametrize(
    ("rows", "hf", "llama"),
    [
        (2032, [], []),
        (2033, [], [15]),
        (2034, [15], [14, 15]),
        (2112, list(range(16)), list(range(16))),
        (2113, list(range(16)), list(range(16))),
    ],
)
def test_which_rows_the_window_cuts(rows, hf, llama):
    assert differing_rows("W_LE", rows) == hf
    assert differing_rows("W_LT_left", rows) == llama


@pytest.mark.parametrize("rows", [2032, 2033, 2034, 2112, 2113])
@pytest.mark.parametrize("rule", ["W_LE", "W_LT_left"])
def test_the_visible_sets_at_the_edge_equal_a_brute_force(rule, rows):
    q, k = np.arange(rows, rows + BLOCK), np.arange(rows + BLOCK)
    seen = Visible(rule, False, WINDOW, q, k, rows).matrix()
    for i in (0, 1, 14, 15):
        near = [abs(int(q[i]) - int(c)) <= WINDOW if rule == "W_LE" else int(q[i]) - int(c) < WINDOW for c in k]
        assert seen[i].tolist() == near


def test_the_ring_reads_everything_until_it_has_evicted():
    """2,112 rows fit; a round that ends with 2,113 forgets row 64 for the next one, and only for the next one."""
    assert np.array_equal(attention("SINK_RING", 2112), attention("none", 2112))
    assert np.array_equal(attention("SINK_RING", 2113), attention("none", 2113))
    assert np.array_equal(attention("SINK_RING", 2114, before=2112), attention("none", 2114))
    assert not np.array_equal(attention("SINK_RING", 2115, before=2113), attention("none", 2115))
