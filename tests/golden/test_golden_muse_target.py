"""The Muse Glimmer target reproduces what Transformers gave; the file is made by ``tests.peers.golden.make_muse_target``."""

from __future__ import annotations

import numpy as np
import pytest

from oracle.models import Target
from tests.peers import muse_target_cases as muse
from tests.peers.golden.files import read

GOLDEN = read("muse_target")
TOLERANCE, MISS = 1e-11, 1e-3

deep = pytest.mark.parametrize("layers", muse.DEPTHS)


def difference(made: Target, layers: int, chunks: tuple[int, ...] = (muse.ROWS,)) -> float:
    """Largest difference of the summaries, in units of the larger of 1 and the golden row's largest value."""
    mine, golden = muse.summary(muse.outputs(made, chunks)), GOLDEN[str(layers)]
    assert mine.keys() == golden.keys()
    pairs = [(np.array(a), np.array(b)) for key in mine for a, b in zip(mine[key], golden[key], strict=True)]
    return float(max(np.abs(a - b).max() / max(1.0, np.abs(b).max()) for a, b in pairs))


@deep
@pytest.mark.parametrize("chunks", [(muse.ROWS,), muse.CHUNKS, (1,) * muse.ROWS], ids=["at once", "in chunks", "token by token"])
def test_the_target_is_reproduced(layers: int, chunks: tuple[int, ...]):
    assert difference(muse.target(layers), layers, chunks) <= TOLERANCE


@pytest.mark.parametrize("mistake", muse.WRONG)
def test_the_target_with_a_mistake_is_not(mistake: str):
    layers = muse.DEPTHS[0]
    assert difference(muse.WRONG[mistake](layers), layers) > MISS


def test_counting_full_layers_forward_shows_where_the_depth_is_no_multiple_of_four():
    assert difference(muse.counted_forward(10), 10) > MISS
    assert difference(muse.counted_forward(12), 12) <= TOLERANCE


def test_a_kept_state_forgets_the_rejected_rows():
    made, tokens = muse.target(10), muse.ids()
    whole = made.window(tokens, taps=(4,))
    speculated = made.window([*tokens[:20], 3, 5, 7], taps=(4,)).state
    again = made.window(tokens[20:], speculated.keep(20), taps=(4,))
    assert np.abs(again.logits - whole.logits[20:]).max() <= TOLERANCE
    assert np.abs(again.features - whole.features[20:]).max() <= TOLERANCE


@pytest.mark.parametrize("token", [muse.IMAGE, muse.VIDEO])
def test_placeholder_ids_are_refused(token: int):
    with pytest.raises(ValueError, match=f"token id {token} at row 2 stands for an image or video"):
        muse.target(10).window([1, 2, token])


@pytest.mark.parametrize("taps", [(10,), (-1,), (3, 3)])
def test_taps_that_are_no_distinct_layers_are_refused(taps: tuple[int, ...]):
    with pytest.raises(ValueError, match="distinct layers from 0 to 9"):
        muse.target(10).window([1], taps=taps)
