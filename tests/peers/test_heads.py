"""The oracle's DFlash 2 parts against the official package, and its DSpark heads against ``speculators``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import oracle
from oracle.tape import Record
from oracle.weights import Weight
from tests.peers import random_models as rm
from tests.peers.dflash_cases import CASES, SIZES, Case
from tests.peers.heads_cases import DFLASH2_CASES, MARKOV_KINDS, headed

pytestmark = pytest.mark.peers
TOLERANCE, MISS = 1e-12, 1e-3

by_name = pytest.mark.parametrize("case", DFLASH2_CASES, ids=lambda case: case.name)


@pytest.fixture(scope="module")
def peer() -> ModuleType:
    """The official model; imported only when a test of this module runs."""
    for package in ("torch", "transformers", "dflash"):
        pytest.importorskip(package)
    from tests.peers import heads_peer

    return heads_peer


def difference(mine, theirs) -> float:
    outputs = [[(hidden, logits) for _, hidden, logits in rounds] for rounds in (mine, theirs)]
    return rm.largest_difference(*outputs)


@by_name
def test_dflash_2_agrees_in_every_round_and_in_every_draft(case: Case, peer: ModuleType):
    h = headed(case, conv=True, selector=True)
    mine, theirs = h.drafts(), peer.dflash2_rounds(h)
    assert difference(mine, theirs) <= TOLERANCE
    assert [d for d, _, _ in mine] == [d for d, _, _ in theirs]
    plain = [logits[1:].argmax(-1).tolist() for _, _, logits in mine]
    assert plain != [d for d, _, _ in mine], "a selector that changes no pick proves nothing"


@by_name
def test_wrong_readings_of_dflash_2_miss(case: Case, peer: ModuleType):
    h = headed(case, conv=True, selector=True)
    theirs = peer.dflash2_rounds(h)
    w = h.drafter.weights

    def exchanged(weight: Weight, axis: int) -> Weight:
        return Weight.of(np.flip(weight.array(), axis), weight.axes, "f64")

    wrong = {"no convolution": replace(h.drafter, dialect=replace(h.drafter.dialect, conv=False))}
    for name, axis in (("sides exchanged", 0), ("taps in reverse", 1)):
        layers = tuple(replace(layer, attn_conv_base=exchanged(layer.attn_conv_base, axis)) for layer in w.layers)
        wrong[name] = replace(h.drafter, weights=replace(w, layers=layers))
    for name, drafter in wrong.items():
        assert difference(replace(h, drafter=drafter).drafts(), theirs) > MISS, name
    books = replace(w.selector, predecessor=w.selector.successor, successor=w.selector.predecessor)
    turned = replace(h, drafter=replace(h.drafter, weights=replace(w, selector=books))).drafts()
    assert [d for d, _, _ in turned] != [d for d, _, _ in theirs]


@by_name
def test_a_dflash_2_folder_saved_by_the_package_opens_as_the_same_drafter(case: Case, peer: ModuleType, tmp_path: Path):
    h = headed(case, conv=True, selector=True)
    peer.dflash2(h).save_pretrained(tmp_path)
    opened = replace(h, drafter=oracle.open_drafter(tmp_path, family="qwen3"))
    theirs = peer.dflash2_rounds(h)
    assert difference(opened.drafts(), theirs) <= TOLERANCE
    assert [d for d, _, _ in opened.drafts()] == [d for d, _, _ in theirs]


@pytest.mark.parametrize("layout", ["fill_in", "predict_next"])
@pytest.mark.parametrize("sure", ["hidden", "markov"])
@pytest.mark.parametrize("kind", MARKOV_KINDS)
def test_dspark_heads_agree(kind: str, sure: str, layout: str, peer: ModuleType):
    if peer.dspark_heads() is None:
        pytest.skip("needs speculators (pip install --no-deps speculators==0.9.0)")
    h = headed(CASES[0], markov=kind, confidence=sure, anchor_layout=layout)
    table, top = (Weight.of(x, ("vocab", "in"), "f64") for x in rm.vocabulary(SIZES, h.case.seed))
    context, first = h.drafter.new_context(), int(layout == "fill_in")
    for r in h.case.rounds():
        context.append(h.case.features()[r.start : r.position], r.start)
        tape = Record()
        block = h.drafter.propose(context, r.ids, table, top, position=r.position, tape=tape)
        drafts, biased, sures = peer.dspark_walk(h, int(r.ids[0]), block.hidden.data, block.logits.data)
        assert block.drafts.data.astype(int).tolist() == drafts
        mine = np.concatenate([tape[f"draft.row{i}.logits"].data for i in range(first, len(r.ids))])
        assert np.abs(mine - biased).max() <= TOLERANCE
        assert np.abs(block.confidence.data[:, 0] - sures).max() <= TOLERANCE
