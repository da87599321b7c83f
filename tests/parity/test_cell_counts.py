"""Caches of another length than the case's: what is missing or too many is named only where the rest is the same, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from oracle.ops import OPS
from oracle.readings import Stage
from oracle.tensor import Tensor
from parity.explain.lengths import resized

AXES = ("cell", "head", "dim")
CONTEXT, BLOCK = 9, 3


@pytest.fixture
def cells() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((CONTEXT + BLOCK, 2, 4))


def explained(cells: np.ndarray, c: np.ndarray) -> list[tuple[str, list[int]]]:
    stage = Stage("draft.L0.k_cells", OPS["cells"], (Tensor(cells[:CONTEXT], AXES), Tensor(cells[CONTEXT:], AXES)), {})
    return [(e.kind, e.parameters["cells"]) for e in resized(stage, Tensor(cells, AXES), c)]


@pytest.mark.parametrize(
    ("lost", "kind"),
    [([0, 1], "attention.window"), ([2, 3, 4], "attention.window"), ([7, 8], "context.crop"), ([8], "context.crop")],
)
def test_missing_cells(cells, lost, kind):
    assert explained(cells, np.delete(cells, lost, 0)) == [(kind, lost)]


def test_more_cells_than_there_should_be(cells):
    other = np.ones((2, 2, 4))
    assert explained(cells, np.insert(cells, [CONTEXT], other, 0)) == [("context.proposals", [9, 10])]
    assert explained(cells, np.insert(cells, [2], other, 0)) == [("attention.window", [2, 3])]
    assert explained(cells, np.concatenate([other, cells])) == [("attention.window", [0, 1])]


def test_what_is_not_one_piece_of_the_context_is_not_explained(cells):
    assert explained(cells, np.delete(cells, [1, 4], 0)) == [], "two holes"
    assert explained(cells, np.delete(cells, [11], 0)) == [], "a row of the block"
    assert explained(cells, np.delete(cells, [3], 0) * (1 + 2.0**-20)) == [], "other values"
    assert explained(cells, np.delete(cells, [3], 0)[::-1]) == [], "another order"
    assert explained(cells, np.delete(cells, [3], 0)[:, :1]) == [], "another number of heads"
