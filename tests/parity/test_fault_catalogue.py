"""One declaration per fault: the document, the lists and the plants say the same, and every kind can exist somewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dumps import open_dump
from oracle.faults import FaultError
from parity.cli import main
from parity.comparing import compare_dump
from parity.faults import KINDS, parse, table, type_of
from parity.faults.existing import kinds_in
from parity.flow import run_candidate
from parity.scoring_cases import CASES, score_case


def test_the_document_is_what_the_declarations_say():
    """Regenerate with ``python -m parity.faults.table``."""
    assert Path("docs/faults.md").read_text() == table.document()


def test_every_public_kind_is_planted_or_says_why_not():
    planted = {r for k in KINDS.values() for r in k.reports}
    assert set(table.REPORTS) == {f"K{i}" for i in range(1, 36)}
    assert {r for r in table.REPORTS if r not in planted} == {"K24", "K32"} <= set(table.REMARKS)


@pytest.mark.parametrize("name", KINDS)
def test_a_declaration_is_whole(name):
    kind = KINDS[name]
    assert kind.about and kind.reports and set(kind.alike) <= set(KINDS) - {name}
    for text in (*kind.variants, *kind.knobs.values()):
        assert parse(f"{name}:{text}") is not None
    assert name.startswith("dump.") == (type_of(kind) == "dump")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("tap.depth", "fault kind 'tap.depth' is unknown"),
        ("tap.layer:stage=draft.taps", "'stage=draft.taps': expected delta = value"),
        ("tap.order:how=up", "how=up: expected one of reversed, turned, interleaved"),
        ("dump.rows:a=x", "'x' is not an arithmetic expression"),
        ("artifact.config:key=depth", "key=depth: expected one of eps, theta, window"),
        ("context.crop:delta=1", "a crop leaves out rows"),
    ],
)
def test_what_does_not_fit_is_refused(spec, message):
    with pytest.raises(FaultError, match=message):
        parse(spec)


def test_every_kind_can_exist_in_some_family(tmp_path):
    there = {name: kinds_in(score_case(name, 0, tmp_path), tmp_path / "scratch") for name in CASES}
    assert set(KINDS) == set().union(*there.values()), set(KINDS) - set().union(*there.values())


def test_a_list_can_be_asked_for_a_family(capsys):
    with pytest.raises(SystemExit) as end:
        main(["faults", "list", "--family", "llama", "--json"])
    kinds = {k["kind"] for k in json.loads(capsys.readouterr().out)}
    assert end.value.code == 0
    assert {"rope.factors", "state.rollback", "artifact.swapped", "dump.rows"} <= kinds
    assert not {"tap.layer", "attention.window", "router.bias", "delta.decay", "state.stale"} & kinds


@pytest.mark.parametrize(
    ("spec", "stage"),
    [
        ("norm.eps:factor=1000,stage=draft.L1.xn", "draft.L1.xn"),
        ("tap.layer:delta=-1", "draft.taps"),
        ("dump.zero", "draft.L0.xn_mlp"),
        ("artifact.layer:role=q", "draft.L1.q_raw"),
    ],
)
def test_a_planted_dump_diverges_where_the_mistake_is(spec, stage, drafter, tmp_path, capsys):
    drafter.save(tmp_path / "case")
    with pytest.raises(SystemExit) as end:
        main(["faults", "plant", spec, "--case", str(tmp_path / "case"), "--out", str(tmp_path / "out")])
    assert end.value.code == 0 and "parity explain" in capsys.readouterr().out
    assert (tmp_path / "out/artifact").exists() == spec.startswith("artifact")
    from oracle.arithmetic import named
    from parity.case import load

    report = compare_dump(load(tmp_path / "out/case"), open_dump(tmp_path / "out/dump"), named("f32"), mode="local")
    assert report.divergences[0].stage == stage


def test_a_mistake_that_cannot_be_made_here_says_so(drafter, tmp_path):
    from parity.candidates import parse as candidate
    from parity.errors import UsageError

    with pytest.raises(UsageError, match=r"fault router.bias: no stage of this case"):
        run_candidate(drafter, candidate("f32"), fault="router.bias")
    with pytest.raises(UsageError, match="not an edit of the case"):
        run_candidate(drafter, candidate("cpu", "fused"), fault="rope.position")
