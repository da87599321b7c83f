"""One forward, many readings: the same stages, axes and shapes; and what each reading promises of its values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from oracle import faults
from oracle.arithmetic import Arithmetic, named
from oracle.drafters.weights import DrafterWeights, LayerWeights
from oracle.floats import BF16
from oracle.models import Drafter, Target
from oracle.ops import OPS
from oracle.policies import FLIP
from oracle.readings import Exact, Fault, Faulty, Noise, OwnNoise, Reading, Rounded, Sampled, Shapes, Stage, Survey, consumed
from oracle.tape import Machine, Record
from oracle.tensor import Array, Tensor, concatenate
from oracle.weights import Weight
from tests.oracle import calls, models
from tests.oracle.calls import HEADS, ROWS, read, stage
from tests.oracle.models import HEADS_OF_A_DRAFTER, IDS, SWITCHES


def drafted(d: Drafter, reading: Reading, head: Weight = models.HEAD, embedding: Weight = models.EMBEDDING) -> Record:
    """Seven rows committed in two portions, one block: every stage of the last commit and of the block."""
    tape = Record()
    context = d.new_context(reading, tape)
    context.append(models.features(7)[:4], 0, step=0)
    context.append(models.features(7)[4:], 4, step=1)
    d.propose(context, IDS, embedding, head, step=2)
    return tape


def targeted(t: Target, reading: Reading) -> Record:
    tape = Record()
    first = t.window([1, 2, 3], reading=reading, step=0)
    t.window([4, 5], first.state, reading=reading, tape=tape, step=1)
    return tape


def readings(survey: Survey) -> dict[str, Reading]:
    """Every reading but Exact; the survey has to be run before the sampled one."""
    A = named("bf16,use=*.o:bf16+*.q_raw:f16")
    fault = Fault("none", "*.attn", lambda s: s, rows=(0,), heads=(1,))
    return {
        "survey": survey, "sampled": Sampled(survey.own, 1), "noise": Noise(A), "rounded": Rounded(A), "shapes": Shapes(),
        "faulty": Faulty(Exact(), fault),
    }  # fmt: skip


def described(record: Record) -> list[tuple[str, tuple[str, ...], tuple[int, ...]]]:
    return [(path, t.axes, t.data.shape) for path, t in record.items()]


DIALECTS = {"plain": {}, "ring": {"window_rule": "SINK_RING", "sink": 1, "window": 3}} | SWITCHES | HEADS_OF_A_DRAFTER


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("parts", [{}, {"biased": True, "head_norms": False}])
def test_every_reading_of_a_drafter_has_the_same_stages_axes_and_shapes(name, parts):
    window = {"window_rule": "W_LT", "window": 4} if name != "plain" else {}
    d = models.drafter(**parts, **(window | DIALECTS[name]))
    expected = described(drafted(d, Exact()))
    assert expected[0] == ("draft.taps", ("row", "dim"), (3, 48))
    assert ("draft.L1.attn", HEADS, (5, 4, 8)) in expected
    assert ("draft.L2.k_cells", ("cell", "head", "dim"), (12, 2, 8)) in expected
    for reading in readings(Survey(Arithmetic())).values():
        assert described(drafted(d, reading)) == expected


@pytest.mark.parametrize("parts", [{}, {"biased": True, "head_norms": True}])
def test_every_reading_of_a_target_has_the_same_stages_axes_and_shapes(parts):
    t = models.target(**parts)
    expected = described(targeted(t, Exact()))
    assert ("target.L0.k_cells", ("cell", "head", "dim"), (5, 2, 8)) in expected
    for reading in readings(Survey(Arithmetic())).values():
        assert described(targeted(t, reading)) == expected


@dataclass(frozen=True, eq=False)
class _Untouchable(Weight):
    def tile(self, start: int, stop: int) -> Array:
        raise AssertionError(f"{self.name} was read")


def untouchable(w: Weight | None) -> Weight | None:
    """The declaration of a weight without its bytes."""
    return w and _Untouchable(np.broadcast_to(np.uint8(0), w.raw.shape), w.axes, w.shape, w.stored, w.name)


def without_bytes(d: Drafter) -> Drafter:
    w = d.weights
    layers = tuple(LayerWeights(**{k: untouchable(v) for k, v in vars(layer).items()}) for layer in w.layers)
    return Drafter(d.geometry, d.dialect, DrafterWeights(untouchable(w.fc), untouchable(w.hidden_norm), layers, untouchable(w.norm)))


def test_shapes_read_no_weight():
    d = models.drafter(biased=True)
    hollow = without_bytes(d)
    found = drafted(hollow, Shapes(), head=untouchable(models.HEAD), embedding=untouchable(models.EMBEDDING))
    assert described(found) == described(drafted(d, Exact()))
    with pytest.raises(AssertionError, match="was read"):
        drafted(hollow, Exact())


def test_noise_and_survey_keep_the_values_of_the_oracle():
    d = models.drafter()
    exact, noise, survey = (drafted(d, r) for r in (Exact(), Noise(Arithmetic()), Survey(named("bf16"))))
    for path, value in exact.items():
        assert noise[path].data.tolist() == value.data.tolist() == survey[path].data.tolist()
        assert survey[path].exact


def test_a_sample_is_its_seed():
    survey = Survey(named("bf16"))
    d = models.drafter()
    drafted(d, survey)
    first, again, other = (drafted(d, Sampled(survey.own, seed))["draft.logits"].data for seed in (1, 1, 2))
    assert first.tolist() == again.tolist()
    assert first.tolist() != other.tolist()


def test_a_sample_without_errors_is_the_oracle():
    d = models.drafter()
    assert drafted(d, Sampled({}, 1))["draft.logits"].data.tolist() == drafted(d, Exact())["draft.logits"].data.tolist()


def sampled(own: OwnNoise, made: Stage, count: int) -> Array:
    """Deviations of ``count`` samples of one stage from the oracle."""
    exact = Exact().apply(made).data
    return np.stack([Sampled({made.key: own}, seed).apply(made).data - exact for seed in range(count)])


@pytest.mark.parametrize("op", ["linear", "rms_norm", "attention", "rope", "swiglu"])
@pytest.mark.parametrize("store", ["f32", "bf16"])
def test_samples_have_the_variance_of_the_survey(op, store):
    made, survey = calls.CALLS[op]("gaussian", np.random.default_rng(1)), Survey(calls.declared("sequential", store))
    survey.apply(made)
    own = survey.own[made.key]
    expected = np.square(own.independent) + np.square(own.common) + np.square(own.half) / 3
    found = np.square(sampled(own, made, 40)).mean(0)
    assert (found / expected).mean() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("op", ["rms_norm", "attention"])
def test_the_common_part_of_an_error_is_one_draw_for_a_row(op):
    made, survey = calls.CALLS[op]("gaussian", np.random.default_rng(2)), Survey(Arithmetic())
    survey.apply(made)
    own = survey.own[made.key]
    assert np.asarray(own.common).any()
    draws = sampled(OwnNoise(0.0, own.common, 0.0), made, 3)
    factor = draws / np.maximum(own.common, 1e-300)
    assert np.ptp(factor, axis=-1).max() < 1e-5
    assert np.ptp(factor, axis=tuple(range(factor.ndim - 1))).min() > 1


@pytest.mark.parametrize(("store", "low", "high"), [("f32", 0.5, 1.2), ("bf16", 0.6, 1.5)])
def test_samples_of_a_drafter_spread_as_its_noise_is_predicted(store, low, high):
    """`specs/noise-rules.md` 8.1: plain variances stay honest over a five-layer drafter (0.64 to 1.10, attention in bf16 to 1.57)."""
    d, A = models.drafter(), named(store)
    exact, noise, survey = drafted(d, Exact()), drafted(d, Noise(A)), Survey(A)
    drafted(d, survey)
    samples = [drafted(d, Sampled(survey.own, seed)) for seed in range(12)]
    for path in ("draft.L0.attn", "draft.L0.h_mlp", "draft.L2.h_mlp", "draft.final_norm", "draft.logits"):
        spread = np.mean([np.square(s[path].data - exact[path].data) for s in samples], 0)
        assert low <= np.sqrt((spread / noise[path].variance()).mean()) <= high


class _Follow(Record):
    """Keeps a reading's own values, but goes on with the candidate's: what a local comparison does."""

    def __init__(self, candidate: Record) -> None:
        super().__init__()
        self.candidate = candidate

    def __call__(self, stage: Stage, value: Tensor, reading: Reading) -> Tensor:
        self[stage.path] = value
        return reading.lift(self.candidate[stage.path].data, value.axes)


ARITHMETICS = ["f32-sequential", "f32-pairwise", "f32-blocked", "bf16", "f16", "bf16,truncate=1", "f32-sequential,use=*:bf16"]


def beyond_noise(d: Drafter, A: Arithmetic, reading: Reading) -> list[str]:
    """Stages of a candidate that differ from its own inputs' result by more than λe sigma and half a spacing of the store."""
    rows = models.features(7)
    context, local = d.new_context(reading, candidate := Record()), d.new_context(Noise(A), follow := _Follow(candidate))
    for c in (context, local):
        c.append(rows, 0)
        d.propose(c, IDS, models.EMBEDDING, models.HEAD)
    assert list(follow) == list(candidate)
    found = []
    for path, own in follow.items():
        reach = 14 * np.sqrt(np.broadcast_to(own.var, own.data.shape)) + 1.01 * np.broadcast_to(own.half, own.data.shape)
        expected = A.to_storage(path, own.data) if own.exact else own.data
        if not (np.abs(candidate[path].data - expected) <= reach).all():
            found.append(path)
    return found


@pytest.mark.parametrize("name", ARITHMETICS)
def test_a_rounded_drafter_is_within_the_noise_of_every_stage_of_its_own(name):
    A = named(name)
    assert beyond_noise(models.drafter(biased=True), A, Rounded(A)) == []


@pytest.mark.parametrize(
    ("spec", "stages"),
    [
        ("linear.scale:stage=draft.L1.q_raw", ["draft.L1.q_raw"]),
        ("norm.eps:stage=draft.L2.xn,factor=1000", ["draft.L2.xn"]),
        ("rope.position:stage=draft.L0.q_rope,row=2,heads=1", ["draft.L0.q_rope"]),
        ("attention.cell:stage=draft.L1.attn,cell=3", ["draft.L1.attn"]),
    ],
)
def test_a_planted_mistake_is_beyond_the_noise_at_its_own_stage_alone(spec, stages):
    A = named("f32-sequential")
    assert beyond_noise(models.drafter(), A, Faulty(Rounded(A), faults.parse(spec))) == stages


def test_what_a_consumer_rounds_is_applied_to_the_value():
    A = named("f32,use=*.q_raw:bf16")
    x = Tensor(np.array([[1.0 + 2.0**-9, 3.0]]), ROWS)
    w = Weight.of(np.eye(2), ("dim", "in"))
    made = Stage("draft.L0.q_raw", stage("linear", x, w).op, (x, w), {})
    assert consumed(A, made).args[0].data.tolist() == [[1.0, 3.0]]
    assert Noise(A).apply(made).data.tolist() == Rounded(A).apply(made).data.tolist() == [[1.0, 3.0]]
    assert consumed(A, Stage("draft.L0.k_raw", made.op, made.args, {})).args[0] is x


def test_an_input_with_errors_leaves_only_the_flips_of_its_rounding():
    A = named("f32,use=*:bf16")
    x = Tensor(np.array([[1.0, 300.0, 301.0, 1 + 2.0**-8]]), ROWS, np.full((1, 4), 1e-8))
    made = stage("linear", x, Weight.of(np.eye(4), ("dim", "in")))
    spacing = np.array([[0, 0, 2.0, 2.0**-7]])
    once = consumed(A, made)
    assert np.allclose(once.args[0].variance(), np.square(FLIP * spacing))
    assert consumed(A, once).args[0] is once.args[0]


def test_a_product_reads_rows_whole_whatever_heads_they_have():
    x = Tensor(np.random.default_rng(1).standard_normal((2, 4, 16)), HEADS)
    made = stage("linear", x, Weight.of(np.eye(64), ("dim", "in")))
    assert consumed(named("f32,use=*:q8_0"), made).args[0].data.shape == (2, 64)


@pytest.mark.parametrize("truncate", [False, True])
def test_a_store_rounds_or_cuts_what_is_recorded(truncate):
    A = named(f"bf16,truncate={int(truncate)}")
    x = np.array([[1 + 2.0**-8 + 2.0**-10, 3.0]])
    made = stage("add", Tensor(x, ROWS), Tensor(np.zeros((1, 2)), ROWS))
    assert read(Rounded(A), made).data.tolist() == [[1.0 if truncate else 1 + 2.0**-7, 3.0]]
    assert read(Noise(A), made).half.tolist() == (np.array([[2.0**-7, 2.0**-6]]) * (1 if truncate else 0.5)).tolist()


@pytest.mark.parametrize(("rows", "heads"), [(None, None), ((1,), None), (None, (0, 3)), ((0, 2), (1,)), ((1, 99), (2,))])
def test_a_fault_changes_the_named_rows_and_heads_and_nothing_else(rows, heads):
    x = Tensor(np.random.default_rng(3).standard_normal((3, 4, 5)), HEADS)
    made = stage("given", x)
    faulty = Faulty(Exact(), Fault("test", "x", lambda s: s, rows, heads, after=lambda stage, y: y + 1))
    changed = faulty.apply(made).data != x.data
    expected = np.zeros((3, 4, 5), bool)
    expected[np.ix_([r for r in rows or range(3) if r < 3], list(heads or range(4)))] = True
    assert changed.tolist() == expected.tolist()
    assert faulty.hits == 1


def test_a_fault_on_an_axis_the_stage_lacks_is_refused():
    made = stage("given", Tensor(np.zeros((2, 3)), ROWS))
    with pytest.raises(ValueError, match=r"fault test: the stage has no axis 'head', its axes are \('row', 'dim'\)"):
        Faulty(Exact(), Fault("test", "*", lambda s: s, heads=(0,))).apply(made)


def test_a_fault_leaves_other_stages_alone():
    faulty = Faulty(Exact(), Fault("test", "*.attn", lambda s: s, after=lambda stage, y: y + 1))
    made = stage("given", Tensor(np.ones((2, 3)), ROWS))
    assert faulty.apply(made).data.tolist() == np.ones((2, 3)).tolist()
    assert faulty.hits == 0


def test_a_merged_value_carries_the_error_of_the_part_it_came_from():
    x = Tensor(np.ones((2, 3)), ROWS, 0.25)
    worse = Tensor(np.ones((2, 3)), ROWS, 4.0)
    merged = Faulty(Noise(Arithmetic()), Fault("test", "*", lambda s: stage("given", worse), rows=(1,))).apply(stage("given", x))
    assert merged.var.tolist() == [[0.25] * 3, [4.0] * 3]


def test_a_machine_names_stages_by_their_scope_and_knows_its_operations():
    tape = Record()
    m = Machine(Exact(), tape, step=3).at("draft").at("L0")
    m.add("h", m.given("x", m.lift([[1.0]], ROWS)), m.lift([[2.0]], ROWS))
    assert list(tape) == ["draft.L0.x", "draft.L0.h"]
    assert m.positions(5, 3).tolist() == [5, 6, 7]
    with pytest.raises(AttributeError, match="no operation 'telepathy'; operations: rms_norm, linear"):
        _ = m.telepathy


def test_a_tape_decides_with_what_the_forward_goes_on():
    m = Machine(Exact(), lambda stage, value, reading: Tensor(value.data * 10, value.axes))
    assert m.given("x", m.lift([[1.0]], ROWS)).data.tolist() == [[10.0]]


def test_parts_are_joined_with_their_errors():
    a, b = Tensor(np.ones((2, 3)), ROWS, 0.5), Tensor(np.zeros((1, 3)), ROWS, np.full((1, 3), 2.0), half=0.25)
    joined = concatenate([a, b])
    assert joined.var.tolist() == [[0.5] * 3] * 2 + [[2.0] * 3]
    assert joined.half.tolist() == [[0.0] * 3] * 2 + [[0.25] * 3]
    assert joined.rows(2).half.tolist() == [[0.25] * 3]
    assert concatenate([a, a]).var == 0.5
    with pytest.raises(ValueError, match="do not name the 2 axes"):
        Tensor(np.ones((2, 3)), HEADS)


def test_values_beside_rounded_ones_are_rounded_by_the_next_consumer_too() -> None:
    """A state that was rounded when it was joined, a hidden row that was not: the product rounds the whole."""
    A = named("f32,use=bf16")
    rng = np.random.default_rng(3)
    state = Tensor(rng.standard_normal((1, 8)), ("row", "dim"), np.full((1, 8), 1e-14))
    hidden = Tensor(rng.standard_normal((1, 8)), ("row", "dim"))
    joined = Noise(A).apply(Stage("draft.markov_in", OPS["join"], (state, hidden), {}))
    assert joined.coarse is not None and joined.coarse.where is not None
    assert joined.coarse.where.tolist() == [[True] * 8 + [False] * 8]
    w = Weight.of(np.eye(16), ("dim", "in"))
    seen = consumed(A, Stage("draft.markov_gate", OPS["linear"], (joined, w), {})).args[0]
    np.testing.assert_array_equal(seen.data, BF16.round(np.concatenate([state.data, hidden.data], 1)))
    assert not seen.variance()[0, 8:].any()

