"""The oracle's Muse Glimmer target against the model of Transformers, through its own cache, past its window."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import oracle
from tests.peers import muse_target_cases as muse
from tests.peers.golden.files import read

pytestmark = pytest.mark.peers
TOLERANCE = 1e-11

deep = pytest.mark.parametrize("layers", muse.DEPTHS)


@pytest.fixture(scope="module")
def peer() -> ModuleType:
    """The model; imported only when a test of this module runs, so that deselecting them needs no torch."""
    for package in ("torch", "transformers"):
        pytest.importorskip(package)
    from tests.peers import muse_target_peer

    return muse_target_peer


@deep
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("chunks", [(muse.ROWS,), muse.CHUNKS, (1,) * muse.ROWS], ids=["at once", "in chunks", "token by token"])
def test_logits_and_taps_agree(layers: int, attention: str, chunks: tuple[int, ...], peer: ModuleType):
    assert muse.WINDOW < muse.ROWS // 2
    assert muse.difference(muse.outputs(muse.target(layers), chunks), peer.outputs(layers, attention, chunks)) <= TOLERANCE


@deep
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_golden_file_is_current(layers: int, attention: str, peer: ModuleType):
    golden, found = read("muse_target")[str(layers)], muse.summary(peer.outputs(layers, attention))
    assert golden.keys() == found.keys()
    for name in golden:
        for kept, now in zip(golden[name], found[name], strict=True):
            assert np.abs(np.subtract(kept, now)).max() <= TOLERANCE


@deep
def test_widening_changed_nothing_but_the_precision(layers: int, peer: ModuleType):
    assert 1e-9 < muse.difference(peer.outputs(layers, "eager", wide=False), peer.outputs(layers, "eager")) < 1e-2


def test_a_folder_saved_by_transformers_opens_as_the_same_target(peer: ModuleType, tmp_path: Path):
    """The wrapper's own config and names, vision tower included; the query scale is one that float32 holds, as files keep it."""
    layers, scale = muse.DEPTHS[0], float(np.float32(muse.QK_SCALE))
    peer.build(layers, "eager", scale).save_pretrained(tmp_path)
    opened = oracle.open_target(tmp_path)
    assert opened.geometry.family == "muse-glimmer" and opened.geometry.placeholders == (muse.IMAGE, muse.VIDEO)
    assert muse.difference(muse.outputs(opened), peer.outputs(layers, "eager", qk_scale=scale)) <= TOLERANCE
