"""Planted mistakes: the grammar of a SPEC, and that every kind changes the stage it names and no other."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle import faults
from oracle.faults import KINDS, FaultError, Kind, NotHereError, evaluate, indices, parse
from oracle.models import Drafter
from oracle.ops import OPS
from oracle.readings import Exact, Faulty, Reading, Stage
from oracle.tape import Record
from oracle.tensor import Tensor
from tests.oracle import models
from tests.oracle.models import EMBEDDING, HEAD, IDS


class _GoOnWith(Record):
    """Keeps what a reading makes of every stage, and goes on with the healthy value."""

    def __init__(self, healthy: Record) -> None:
        super().__init__()
        self.healthy = healthy

    def __call__(self, stage: Stage, value: Tensor, reading: Reading) -> Tensor:
        self[stage.path] = value
        return self.healthy[stage.path]


def drafter() -> Drafter:
    """Small rows (norm.eps shows), a window inside the context (the window shows)."""
    return models.drafter(window_rule="W_LT", window=4, eps=1e-3, causal=(True, False, True))


def recorded(reading: Reading, tape: Record) -> Record:
    d = drafter()
    context = d.new_context(reading, tape)
    context.append(models.features(9), 0)
    d.propose(context, IDS, EMBEDDING, HEAD)
    return tape


# The first cell, dropped by default, is outside the window here.
SEEN = {"attention.cell": "cell=9"}


class _Calls(Record):
    """Keeps every call beside its value."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Stage] = []

    def __call__(self, stage: Stage, value: Tensor, reading: Reading) -> Tensor:
        self.calls.append(stage)
        return super().__call__(stage, value, reading)


HEALTHY = _Calls()
recorded(Exact(), HEALTHY)


def differing(found: Record) -> list[str]:
    return [p for p, t in found.items() if not np.array_equal(t.data, HEALTHY[p].data)]


def acting(kind: Kind) -> list[str]:
    """The stages of the drafter at which the kind's default mistake can be made, by its default glob."""
    fault, found = parse(f"{kind.name}:{SEEN.get(kind.name, '')}"), []
    for call in HEALTHY.calls:
        if fault.acts_on(call):
            with contextlib.suppress(NotHereError):
                fault.planted(Exact(), call, HEALTHY[call.path])
                found.append(call.path)
        if fault.see is not None:
            fault.see(call, HEALTHY[call.path])
    return found


# Some kinds need an operation or an option that this drafter has not: `tests/parity/test_fault_catalogue.py` finds each one a family.
HERE = [name for name, kind in KINDS.items() if acting(kind) and name != "values.stage"]


def test_most_kinds_can_exist_in_a_plain_drafter():
    assert len(HERE) >= 45


@pytest.mark.parametrize("kind", HERE)
@pytest.mark.parametrize("one", [False, True])
def test_a_kind_changes_its_own_stages_and_no_other_where_inputs_are_healthy(kind, one):
    """At every stage its glob names, or at one that is asked for."""
    named = acting(KINDS[kind])
    named = named[:1] if one else named
    faulty = Faulty(Exact(), parse(f"{kind}:{f'stage={named[0]},' if one else ''}{SEEN.get(kind, '')}"))
    assert differing(recorded(faulty, _GoOnWith(HEALTHY))) == named
    assert faulty.hits == len(named)


@pytest.mark.parametrize("kind", HERE)
def test_a_kind_leaves_everything_upstream_of_it_as_it_was(kind):
    named = acting(KINDS[kind])
    found = recorded(Faulty(Exact(), parse(f"{kind}:{SEEN.get(kind, '')}")), Record())
    assert differing(found)[0] == named[0]


def test_a_stage_of_the_step_before_is_what_a_stale_one_holds():
    """The first call is right, the second holds the first's values."""
    faulty, d = Faulty(Exact(), parse("values.stage:stage=*.attn")), drafter()
    blocks = []
    for reading in (Exact(), faulty):
        context, tape = d.new_context(reading), Record()
        context.append(models.features(9), 0)
        for ids in (IDS, IDS[::-1]):
            d.propose(context, ids, EMBEDDING, HEAD, tape=tape)
            blocks.append(tape["draft.L0.attn"].data)
    healthy, _, first, second = blocks
    assert np.array_equal(first, healthy) and np.array_equal(second, healthy)


@pytest.mark.parametrize("kind", KINDS)
def test_a_declaration_is_whole(kind):
    """Every variant and knob is a text of the kind's own keys, what it may be taken for exists, and its reports are of the 35."""
    declared = KINDS[kind]
    for text in (*declared.variants, *declared.knobs.values()):
        assert parse(f"{kind}:{text}").kind == kind
    assert set(declared.alike) <= set(KINDS) - {kind}
    assert declared.reports and set(declared.reports) <= {f"K{i}" for i in range(1, 36)}
    assert set(declared.ops) <= set(OPS)
    assert declared.about and len(declared.variants) == len(set(declared.variants))


def rows_and_heads(spec: str, stage: str) -> set[tuple[int, int]]:
    found = recorded(Faulty(Exact(), parse(spec)), _GoOnWith(HEALTHY))
    changed = (found[stage].data != HEALTHY[stage].data).any(-1)
    return {(int(r), int(h)) for r, h in np.argwhere(changed)}


def test_a_fault_is_confined_to_its_rows_and_heads():
    spec = "rope.position:stage=draft.L1.q_rope,rows=1-2,heads=0+3"
    assert rows_and_heads(spec, "draft.L1.q_rope") == {(1, 0), (1, 3), (2, 0), (2, 3)}


def test_an_offset_may_depend_on_the_head_and_the_row():
    assert rows_and_heads("rope.position:offset=h//2", "draft.L0.q_rope") == {(r, h) for r in range(5) for h in (2, 3)}
    assert rows_and_heads("rope.position:offset=r*h", "draft.L0.q_rope") == {(r, h) for r in range(1, 5) for h in range(1, 4)}
    shifted = recorded(Faulty(Exact(), parse("rope.position:offset=h//2")), _GoOnWith(HEALTHY))["draft.L0.q_rope"].data
    d = drafter()
    x, at = HEALTHY["draft.L0.q_norm"].data, np.arange(9, 14)[:, None] + np.array([0, 0, 1, 1])
    t = at[..., None] * d.dialect.rope.inv_freq()
    assert np.allclose(shifted[..., :4], x[..., :4] * np.cos(t) - x[..., 4:] * np.sin(t), rtol=0, atol=1e-12)


def test_the_window_moves_by_its_delta():
    """One cell less is the fault of a strict comparison: the rows lose the cell at the edge and nothing else."""
    fault = parse("attention.window:delta=-1")
    seen = []

    def spy(stage: Stage, value: Tensor, reading: Reading) -> Tensor:
        if stage.path == "draft.L0.attn":
            seen.append((stage.params["visible"].matrix(), fault.edit(stage).params["visible"].matrix()))
        return value

    d = drafter()
    context = d.new_context(Exact(), spy)
    context.append(models.features(9), 0)
    d.propose(context, IDS, EMBEDDING, HEAD)
    lost = seen[0][0] & ~seen[0][1]
    assert [np.flatnonzero(row).tolist() for row in lost] == [[r + 6] for r in range(5)]
    assert not (seen[0][1] & ~seen[0][0]).any()


def test_a_spec_sets_stage_rows_heads_and_the_keys_of_its_kind():
    fault = parse("rope.position:stage=draft.L1.q_rope,row=0,heads=2-13,offset=h//2")
    assert (fault.kind, fault.stage, fault.rows, fault.heads) == ("rope.position", "draft.L1.q_rope", (0,), tuple(range(2, 14)))
    assert parse("norm.eps").stage == "*.xn"
    assert (parse("norm.eps").rows, parse("norm.eps").heads) == (None, None)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("rope.phase", "fault kind 'rope.phase' is unknown; known: rope.position"),
        ("", "fault kind '' is unknown"),
        ("norm.eps:factor", "'factor': expected stage, rows, heads, factor = value"),
        ("norm.eps:offset=1", "'offset=1': expected stage, rows, heads, factor = value"),
        ("norm.axis:axis=1", "'axis=1': expected stage, rows, heads = value"),
        ("linear.permuted:how=up", "how=up: expected one of halves, pairs, heads"),
        ("norm.eps:factor=ten", "'ten' is not an arithmetic expression in numbers"),
        ("norm.eps:factor=h", "'h' is not an arithmetic expression in numbers"),
        ("rope.theta:factor=ten", "'ten' is not an arithmetic expression"),
        ("rope.style:style=halves", "style"),
        ("rope.position:offset=q", "'q' is not an arithmetic expression in h, r"),
        ("rope.position:offset=1e999", "1e999"),
        ("attention.window:delta=1e999", "1e999"),
        ("attention.window:delta=1.5", "1.5"),
        ("attention.cell:cell=1.5", "1.5"),
        ("norm.eps:factor=__import__('os')", "is not an arithmetic expression"),
        ("norm.eps:factor=2**3", "is not an arithmetic expression"),
        ("norm.eps:factor=1/0", "is not an arithmetic expression"),
        ("norm.eps:rows=x", "'x' is not a range: expected 3, 2-13"),
        ("norm.eps:rows=²", "is not a range"),
        ("norm.eps:rows=5-3", "'5-3' is not a range"),
        ("norm.eps:rows=0-99999999999", "is not a range"),
        ("norm.eps:heads=", "'' is not a range"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(spec, message):
    with pytest.raises(FaultError, match=message.replace("*", r"\*").replace("(", r"\(")):
        parse(spec)


def test_a_cell_that_is_not_there_is_refused_by_name():
    with pytest.raises(FaultError, match="cell 99"):
        recorded(Faulty(Exact(), parse("attention.cell:cell=99")), Record())


keys = st.sampled_from(["rows", "heads", "stage", *sorted({key for kind in KINDS.values() for key in kind.defaults})])
specs = st.builds("{}:{}={}".format, st.sampled_from([*KINDS]), keys, st.text("0123456789.+-*/%()hrex ,", max_size=12))


@settings(max_examples=300, deadline=None)
@given(spec=st.one_of(st.text(max_size=30), specs))
def test_any_text_is_a_fault_or_refused(spec):
    with contextlib.suppress(FaultError):
        assert isinstance(parse(spec), faults.Fault)


@pytest.mark.parametrize(("text", "expected"), [("3", (3,)), ("2-5", (2, 3, 4, 5)), ("0+4+6-8", (0, 4, 6, 7, 8)), ("7-7", (7,))])
def test_ranges(text, expected):
    assert indices(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("h//2", 2), ("-h + r*3", 1), ("(h - r) % 3", 0), ("h / 2", 2.5), ("1e-3", 1e-3), ("7 // 2", 3)]
)
def test_expressions(text, expected):
    assert evaluate(text, h=5, r=2) == expected


def test_an_expression_is_short():
    with pytest.raises(FaultError, match="at most 200"):
        evaluate("1+" * 150 + "1")
