"""What the wrong values are, seen from the right ones: every kind of signature planted and seen, and where indices lie."""

from __future__ import annotations

import numpy as np
import pytest

from oracle.arithmetic import named
from oracle.floats import BF16, F16
from oracle.ops import OPS
from oracle.readings import Noise, Stage
from oracle.tensor import Tensor
from oracle.weights import Weight
from parity.case import Case, append, propose
from parity.explain.base import Suspect
from parity.explain.patterns import form, recurrence, runs
from parity.explain.signature import signature
from parity.explain.storage import explanations
from parity.judge import Judge

F32 = named("f32")
RNG = np.random.default_rng(11)
NORM = Stage("draft.L0.q_norm", OPS["rms_norm"], (Tensor(RNG.standard_normal((6, 4, 16)), ("row", "head", "dim")), None), {"eps": 1e-6})
RIGHT = Noise(F32).apply(NORM)


def suspect(c, stage=NORM, arithmetic=F32) -> Suspect:
    y = Noise(arithmetic).apply(stage)
    return Suspect(stage, y, c, Judge(arithmetic, 10_000).judge(stage, y, c).ratio > 1)


def facts(change, **options) -> list[dict]:
    c = RIGHT.data.copy()
    with np.errstate(all="ignore"):
        made = change(c)
    return signature(suspect(c if made is None else np.asarray(made, float), **options))


def scaled(where, factor):
    def change(c):
        c[where] *= factor

    return change


RATIOS = {
    "global": scaled(np.s_[:], 1.25),
    "row": lambda c: c * (1 + 0.1 * np.arange(1, 7))[:, None, None],
    "head": lambda c: c * (1 + 0.1 * np.arange(1, 5))[None, :, None],
    "column": lambda c: c * (1 + 0.1 * np.arange(1, 17)),
}


@pytest.mark.parametrize("scope", RATIOS)
def test_a_constant_ratio_has_its_scope(scope):
    found = facts(RATIOS[scope])[0]
    assert (found["kind"], found["scope"]) == ("ratio", scope), found


def test_an_offset_is_no_ratio():
    found = facts(lambda c: c + 0.37)[0]
    assert found["kind"] == "offset" and found["value"] == pytest.approx(0.37)


def test_zeros_and_signs():
    assert facts(lambda c: c * 0)[0]["kind"] == "zeros"
    assert facts(lambda c: -c)[0]["text"] == "the sign flipped"
    flipped = facts(lambda c: c * np.where(np.arange(16) < 8, -1, 1))
    assert any(f["kind"] == "sign" and "192 of 384" in f["text"] for f in flipped)


def test_shifts_permutations_and_equal_rows():
    assert {"kind": "shifted", "axis": "row", "by": 1, "text": "shifted by +1 along row"} in facts(lambda c: np.roll(c, 1, 0))
    assert any(f["kind"] == "shifted" and f["axis"] == "head" and f["by"] == -1 for f in facts(lambda c: np.roll(c, -1, 1)))
    assert any(f["kind"] == "permutation" for f in facts(lambda c: c[..., RNG.permutation(16)]))
    swapped = facts(lambda c: c[[0, 3, 2, 1, 4, 5]])
    assert any(f["kind"] == "equals" and f["rows"] == {"1": 3, "3": 1} for f in swapped)


def test_saturation_names_the_format():
    stage = Stage("x", OPS["given"], (Tensor(1e5 * (1 + RNG.random((4, 32))), ("row", "dim")),), {})
    found = signature(suspect(np.minimum(stage.args[0].data, 65504.0), stage))
    assert any(f["kind"] == "saturated" and "f16" in f["text"] for f in found)


REINTERPRETED = {
    "f16 words widened as bf16": lambda c: (c.astype(np.float16).view(np.uint16).astype(np.uint32) << 16).view(np.float32),
    "bf16 words read as f16": lambda c: (BF16.round(c).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.float16),
    "f32 in the other byte order": lambda c: c.astype(np.float32).byteswap(),
    "f32 bits read as an integer": lambda c: c.astype(np.float32).view(np.int32),
    "f16 words in the other byte order": lambda c: c.astype(np.float16).byteswap(),
}


@pytest.mark.parametrize("text", REINTERPRETED)
def test_bits_read_as_another_type(text):
    with np.errstate(all="ignore"):
        wrong = REINTERPRETED[text](RIGHT.data).astype(float)
    wild = ~np.isfinite(wrong)
    s = suspect(np.where(wild, 0.0, wrong))
    assert any(f["kind"] == "bits" and text in f["text"] for f in signature(s)), signature(s)
    assert wild.any() or any(text in found[1] for found in explanations(s))


@pytest.mark.parametrize(("order", "store"), [("sequential", F16), ("pairwise", F16), ("sequential", BF16)])
def test_narrow_accumulators_are_told_with_their_order(order, store):
    from parity.explain.storage import _summed

    x, w = RNG.standard_normal((4, 64)), RNG.standard_normal((12, 64))
    x, w = x.astype(np.float32).astype(float), w.astype(np.float32).astype(float)
    stage = Stage("draft.L0.o", OPS["linear"], (Tensor(x, ("row", "dim")), Weight.of(w, ("dim", "in"), "f32")), {})
    c = _summed(store.round(x[:, None] * w[None]), order, store.round)
    found = explanations(suspect(c, stage), "sequential")
    assert found and found[0][0] == "linear.accumulator" and f"{store.name} accumulators, summed {order}" in found[0][1]


def test_storage_that_is_cut_is_told_from_storage_that_rounds():
    assert "(rounded)" in explanations(suspect(BF16.round(RIGHT.data)))[0][1]
    assert "(cut)" in explanations(suspect(BF16.truncate(RIGHT.data)))[0][1]
    assert not explanations(suspect(RIGHT.data * 1.001))


@pytest.mark.parametrize(
    ("indices", "size", "text"),
    [
        (range(8), 8, "all"),
        ([0, 1, 2], 8, "the first 3"),
        ([6, 7], 8, "the last 2"),
        ([7], 8, "7 (the last)"),
        ([2], 8, "2"),
        ([3, 4, 5], 8, "contiguous 3-5"),
        ([1, 2, 3, 4, 5, 6, 7], 8, "contiguous 1-7"),
        ([0, 1, 2, 4, 5, 6, 7], 8, "all but 3"),
        ([1, 3, 5], 8, "every 2 from 1 to 5"),
        ([0, 1, 4, 5], 8, "0-1 of every 4"),
        ([0, 2, 3, 7], 9, "0, 2-3, 7"),
    ],
)
def test_how_indices_lie(indices, size, text):
    expected = "the last 7" if list(indices) == [1, 2, 3, 4, 5, 6, 7] else text
    assert form(list(indices), size) == expected
    assert sum(b - a + 1 for a, b in runs(list(indices))) == len(list(indices))


def case_of(*steps) -> Case:
    from pathlib import Path

    return Case("c", "qwen3", "drafter", Path("m"), tuple(steps))


def test_when_it_recurs():
    f = np.zeros((1, 4), np.float32)
    rounds = case_of(
        append(np.repeat(f, 8, 0), 0),
        propose([1, 2, 2, 2], 8),
        append(np.repeat(f, 4, 0), 8),
        propose([1, 2, 2, 2], 12),
        append(np.repeat(f, 2, 0), 12),
        propose([1, 2, 2, 2], 14),
        append(np.repeat(f, 4, 0), 14),
        propose([1, 2, 2, 2], 18),
    )
    proposals = [1, 3, 5, 7]
    assert recurrence(rounds, proposals, [5]) == "only after a partial accept (steps 5)"
    assert recurrence(rounds, proposals, [3, 5, 7]).startswith("from step 3 (position 12) on; not at position 8")
    assert recurrence(rounds, proposals, proposals) == "in every one of 4 steps"
    assert recurrence(rounds, proposals, [1, 7]) == "in steps 1, 7, not in 3, 5"
    assert recurrence(rounds, [1], [1]) == ""
