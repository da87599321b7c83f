"""What follows the logits: DFlash 2's selector walk, DSpark's Markov and confidence heads, reduced vocabularies, convolutions.

Source: `specs/dflash-generic.md` sections 11, 14 and 15, written out here a second time, a token at a time.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle.models import Drafter
from oracle.ops import OPS
from oracle.readings import Exact, Reading, Stage
from oracle.tape import Record
from oracle.tensor import Array, Tensor
from oracle.weights import Weight
from tests.oracle import calls, models
from tests.oracle.calls import ROWS, declared, measure, stage
from tests.oracle.models import BLOCK, EMBEDDING, HEAD, IDS, VOCAB

ANCHOR = int(IDS[0])


def proposed(d: Drafter, tape: Record | None = None):
    context = d.new_context()
    context.append(models.features(7), 0)
    return d.propose(context, IDS, EMBEDDING, HEAD, tape=tape)


def logistic(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def textbook_markov(d: Drafter, hidden: Array, logits: Array, rows: range) -> tuple[list[int], list[Array], list[float]]:
    """(drafts, biased logits, confidences) of section 15."""
    w = d.weights.markov
    previous, state = ANCHOR, np.zeros(w.w1.width)
    drafts, biased, sure = [], [], []
    for i in rows:
        e, h = w.w1.array()[previous], hidden[i]
        if d.dialect.markov == "vanilla":
            bias = w.w2.array() @ e
        elif d.dialect.markov == "gated":
            bias = w.w2.array() @ (logistic(w.gate.array() @ np.r_[h, e] + w.gate_bias.array()) * e)
        else:
            a, b, c = w.joint.array() @ np.r_[state, e, h] + w.joint_bias.array()
            state = logistic(a) * state + (1 - logistic(a)) * np.tanh(b)
            bias = w.w2.array() @ np.tanh(c)
        biased.append(logits[i] + bias)
        seen = np.r_[h, e] if d.dialect.confidence == "markov" else h
        if d.dialect.confidence != "none":
            sure.append(float(logistic(d.weights.confidence.array()[0] @ seen + d.weights.confidence_bias.array()[0])))
        previous = int(biased[-1].argmax())
        drafts.append(previous)
    return drafts, biased, sure


@pytest.mark.parametrize("layout", ["fill_in", "predict_next"])
@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
@pytest.mark.parametrize("sure", ["none", "hidden", "markov"])
def test_markov_and_confidence_heads_are_those_of_the_textbook(kind, sure, layout):
    d, tape = models.drafter(markov=kind, confidence=sure, anchor_layout=layout), Record()
    block = proposed(d, tape)
    rows = range(layout == "fill_in", BLOCK)
    drafts, biased, confidences = textbook_markov(d, block.hidden.data, block.logits.data, rows)
    assert block.drafts.data.astype(int).tolist() == drafts
    for i, want in zip(rows, biased, strict=True):
        assert np.abs(tape[f"draft.row{i}.logits"].data[0] - want).max() <= 1e-12
    assert (block.confidence is None) == (sure == "none")
    if confidences:
        assert np.abs(block.confidence.data[:, 0] - confidences).max() <= 1e-12


def test_a_recurrent_head_remembers_more_than_the_token_before():
    d = models.drafter(markov="rnn")
    w = d.weights.markov
    forgetful = Weight.of(w.joint.array() * np.r_[np.zeros(w.w1.width), np.ones(w.joint.width - w.w1.width)], w.joint.axes)
    other = replace(d, weights=replace(d.weights, markov=replace(w, joint=forgetful)))
    tapes = Record(), Record()
    for drafter, tape in zip((d, other), tapes, strict=True):
        proposed(drafter, tape)
    first, second = (np.abs(tapes[0][f"draft.row{i}.markov_bias"].data - tapes[1][f"draft.row{i}.markov_bias"].data).max() for i in (1, 2))
    assert first <= 1e-12 and second > 1e-4


@pytest.mark.parametrize("layout", ["fill_in", "predict_next"])
def test_the_selector_walks_greedily_over_the_best_candidates(layout):
    d = models.drafter(selector=True, anchor_layout=layout)
    block, s = proposed(d), d.weights.selector
    previous, want = ANCHOR, []
    for i in range(layout == "fill_in", BLOCK):
        candidates = np.argsort(-block.logits.data[i], kind="stable")[: models.TOP]
        h = s.hidden.array() @ block.hidden.data[i]
        scores = [block.logits.data[i, c] + (s.predecessor.array()[previous] * h) @ s.successor.array()[c] for c in candidates]
        previous = int(candidates[int(np.argmax(scores))])
        want.append(previous)
    assert block.drafts.data.astype(int).tolist() == want
    assert want != block.pick.data.astype(int).tolist()[-len(want) :]


class _Chosen:
    """A tape that goes on with another choice than the oracle's at one stage, as a candidate's own choice is gone on with."""

    def __init__(self, path: str, value: float) -> None:
        self.path, self.value, self.seen = path, value, Record()

    def __call__(self, made: Stage, value: Tensor, reading: Reading) -> Tensor:
        if made.path == self.path:
            value = Tensor(np.array([self.value]), value.axes)
        return self.seen(made, value, reading)


@pytest.mark.parametrize("head", [{"selector": True}, {"markov": "vanilla"}])
def test_the_rows_after_a_choice_follow_it(head):
    stages = "selector_scores" if "selector" in head else "markov_bias"
    plain, d = Record(), models.drafter(**head)
    proposed(d, plain)
    tape = _Chosen("draft.row2.pick", float((plain["draft.row2.pick"].data[0] + 1) % VOCAB))
    proposed(d, tape)
    assert np.array_equal(tape.seen[f"draft.row2.{stages}"].data, plain[f"draft.row2.{stages}"].data)
    assert not np.array_equal(tape.seen[f"draft.row3.{stages}"].data, plain[f"draft.row3.{stages}"].data)


@pytest.mark.parametrize("wild", [-1.0, float(VOCAB), np.nan, np.inf])
@pytest.mark.parametrize("head", [{"selector": True}, {"markov": "gated", "confidence": "markov"}])
def test_a_choice_that_is_no_token_makes_values_that_are_no_numbers(head, wild):
    tape = _Chosen("draft.row1.pick", wild)
    block = proposed(models.drafter(**head), tape)
    after = tape.seen["draft.row2.selector_scores" if "selector" in head else "draft.row2.logits"].data
    assert np.isnan(after).all()
    assert len(block.drafts.data) == BLOCK - 1


@pytest.mark.parametrize("markov", ["none", "vanilla"])
def test_a_reduced_vocabulary_proposes_ids_of_the_target(markov):
    d = models.drafter(markov=markov)
    ids = np.sort(np.random.default_rng(5).permutation(VOCAB)[:17])
    own = Weight.of(HEAD.array()[ids], HEAD.axes)
    small = replace(d.weights.markov, w2=Weight.of(d.weights.markov.w2.array()[ids], d.weights.markov.w2.axes))
    reduced = replace(d, weights=replace(d.weights, target_ids=ids, head=own, markov=small))
    whole, block, tape = proposed(d), None, Record()
    block = proposed(reduced, tape)
    assert np.abs(block.logits.data - whole.logits.data[:, ids]).max() <= 1e-12
    assert set(block.drafts.data.astype(int)) <= set(ids.tolist())
    if markov == "none":
        assert block.drafts.data.astype(int).tolist() == ids[block.logits.data[1:].argmax(1)].tolist()
    else:
        second = block.logits.data[2] + small.w2.array() @ small.w1.array()[int(block.drafts.data[0])]
        assert np.abs(tape["draft.row2.logits"].data[0] - second).max() <= 1e-12


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 5), taps=st.integers(1, 4), groups=st.integers(1, 3), size=st.integers(1, 3), seed=st.integers(0, 99))
def test_a_convolution_reads_the_rows_before_in_its_own_block(rows, taps, groups, size, seed):
    rng = np.random.default_rng(seed)
    x, kernel = rng.standard_normal((rows, groups * size)), rng.standard_normal((rows, 2, taps, groups))
    base = Weight.of(rng.standard_normal((2, taps, groups * size)), ("side", "tap", "dim"), "f64")
    for side in (0, 1):
        y = calls.read(Exact(), stage("dynamic_conv", Tensor(x, ROWS), Tensor(kernel, ("row", "side", "tap", "group")), base, side=side))
        for t in range(rows):
            for c in range(groups * size):
                terms = [(base.array()[side, j, c] + kernel[t, side, j, c // size]) * x[t - j, c] for j in range(min(taps, t + 1))]
                assert abs(y.data[t, c] - sum(terms)) <= 1e-12


def conv_call(kind: str, rng: np.random.Generator) -> Stage:
    base = Weight.of(rng.standard_normal((2, 2, 64)) / 2, ("side", "tap", "dim"))
    kernel = Tensor(calls.f32(0.3 * rng.standard_normal((64, 2, 2, 16))), ("row", "side", "tap", "group"))
    return stage("dynamic_conv", Tensor(calls.data(kind, (64, 64), rng), ROWS), kernel, base, side=1)


def scores_call(kind: str, rng: np.random.Generator) -> Stage:
    books = [calls.weight(kind, (50, 64), ("vocab", "in"), rng) for _ in range(2)]
    logits = Tensor(calls.data("gaussian", (16, 50), rng), ("row", "vocab"))
    candidates = Tensor(OPS["select"].formula(calls.EXACT, logits.data, k=16), ("row", "candidate"))
    hidden, previous = Tensor(calls.data(kind, (16, 64), rng), ROWS), Tensor(np.arange(16.0), ("row",))
    return stage("selector_scores", logits, candidates, hidden, previous, *books)


def state_call(kind: str, rng: np.random.Generator) -> Stage:
    joint = Tensor(calls.f32(2 * rng.standard_normal((64, 3, 64))), ("row", "part", "dim"))
    return stage("markov_state", Tensor(calls.f32(rng.uniform(-1, 1, (64, 64))), ROWS), joint)


def output_call(kind: str, rng: np.random.Generator) -> Stage:
    return stage("markov_output", Tensor(calls.f32(rng.standard_normal((64, 3, 64))), ("row", "part", "dim")))


CALLS = {"dynamic_conv": conv_call, "selector_scores": scores_call, "markov_state": state_call, "markov_output": output_call}


@pytest.mark.parametrize("order", calls.ORDERS)
@pytest.mark.parametrize("kind", ["gaussian", "massive", "tiny"])
@pytest.mark.parametrize("op", CALLS)
def test_their_errors_are_as_large_as_predicted_and_never_beyond_the_bound(op, kind, order):
    A = declared(order)
    m = measure(A, CALLS[op](kind, np.random.default_rng(31)))
    assert 0.45 <= m.rms <= 1.1
    assert m.z.max() <= 8
    assert m.reach(A, m.worst(m.error.size)).max() <= 1


@pytest.mark.parametrize("order", calls.ORDERS)
def test_rejudged_scores_have_on_average_the_energy_of_their_rule(order):
    A, made = declared(order), scores_call("gaussian", np.random.default_rng(7))
    y = calls.read(calls.Noise(A), made)
    where = tuple(i.ravel() for i in np.indices(y.data.shape))
    exact = made.op.rejudge(A, order, y.data, where, *made.args)
    assert exact.mean() == pytest.approx(np.asarray(y.var).mean(), rel=0.15)


@pytest.mark.parametrize("op", CALLS)
def test_errors_of_their_inputs_pass_through_as_predicted(op):
    """Inputs moved by a hundredth of a per cent move the result by what the rule says they inherit."""
    made = CALLS[op]("gaussian", np.random.default_rng(3))
    rng, size = np.random.default_rng(4), 1e-4
    floats = [isinstance(a, Tensor) and a.axes[-1] not in ("candidate",) and len(a.axes) > 1 for a in made.args]
    noisy = tuple(Tensor(a.data, a.axes, size**2) if f else a for a, f in zip(made.args, floats, strict=True))
    exact = calls.read(Exact(), made).data
    rule = made.op.noise(declared("f64"), exact, *noisy, **made.params)
    moved = []
    for _ in range(40):
        args = tuple(
            Tensor(a.data + size * rng.standard_normal(a.data.shape), a.axes) if f else a for a, f in zip(made.args, floats, strict=True)
        )
        moved.append(calls.read(Exact(), replace(made, args=args)).data - exact)
    ratio = np.square(moved).mean(0) / rule.inherited
    assert 0.9 <= ratio.mean() <= 1.1
