"""The seed echo of a drafter that copies its anchor, of one that cannot, and of a layout that has none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oracle.speculation.echo import echo_rate, seed_echo
from oracle.weights import Weight
from tests.oracle import models


def copying():
    """A drafter whose layers add nothing and whose head is the embedding: every row gives its own token back."""
    made = models.drafter()
    silent = tuple(
        replace(layer, o=Weight.of(np.zeros(layer.o.shape), layer.o.axes), down=Weight.of(np.zeros(layer.down.shape), layer.down.axes))
        for layer in made.weights.layers
    )
    plain = Weight.of(np.ones(models.HIDDEN), ("dim",))
    return replace(made, weights=replace(made.weights, layers=silent, norm=plain))


def block(made, head, anchor):
    ids = np.array([anchor] + [models.MASK] * (models.BLOCK - 1))
    context = made.new_context()
    context.append(models.features(4), 0)
    return made.propose(context, ids, models.EMBEDDING, head), ids


UNIT = models.EMBEDDING.array() / np.linalg.norm(models.EMBEDDING.array(), axis=1, keepdims=True)


@pytest.mark.parametrize("anchor", [0, 3, 17])
def test_a_drafter_that_copies_its_row_echoes_the_seed(anchor):
    made = copying()
    proposed, ids = block(made, Weight.of(UNIT, ("vocab", "in")), anchor)
    assert seed_echo(made.dialect, proposed, ids) is True
    assert seed_echo(made.dialect, proposed, [anchor + 1, *ids[1:]]) is False


def test_a_drafter_fed_another_embedding_does_not():
    made = copying()
    turned = Weight.of(np.roll(UNIT, 1, axis=0), ("vocab", "in"))
    assert seed_echo(made.dialect, *block(made, turned, 3)) is False


def test_a_layout_that_predicts_the_next_position_has_no_echo():
    made = copying()
    proposed, ids = block(made, Weight.of(UNIT, ("vocab", "in")), 3)
    assert seed_echo(replace(made.dialect, anchor_layout="predict_next"), proposed, ids) is None


def test_the_rate_counts_only_rounds_that_tell():
    assert echo_rate([True, None, False, True]) == pytest.approx(2 / 3)
    assert echo_rate([None]) is None and echo_rate([]) is None
