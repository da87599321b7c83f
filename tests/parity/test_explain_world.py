"""What only the rest of the run can tell: stale cells, aliased buffers, wrong inputs, taps, tokens, choices, runs that do not repeat."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from oracle import arithmetic as arithmetics
from oracle.readings import Rounded
from parity.comparing import compare_dump
from parity.recording import record
from parity.report import Report

F32 = arithmetics.named("f32")


@pytest.fixture
def altered(tmp_path: Path):
    """A healthy f32 dump of a case with some stages changed: ``change(step, stage, values, get)`` returns other values or None."""
    from dumps import DumpWriter, open_dump

    made = []

    def make(case, change, repeats: int = 0) -> Report:
        made.append(tmp_path / str(len(made)))
        with DumpWriter(made[-1] / "healthy", case.describe(), {}) as writer:
            record(case, Rounded(F32), writer, F32)
        healthy = open_dump(made[-1] / "healthy")
        with DumpWriter(made[-1] / "altered", case.describe(), {}) as writer:
            for step in healthy.steps:
                for stage in healthy.stages(step):
                    found = healthy.get(step, stage)
                    values = np.array(found.array())
                    other = change(step, stage, values.copy(), lambda s, n: np.array(healthy.get(s, n).array()))
                    writer.put(
                        step, stage, values if other is None else np.asarray(other, values.dtype), dtype=found.dtype, axes=found.axes
                    )
        again = [healthy] * repeats
        return compare_dump(case, open_dump(made[-1] / "altered"), F32, mode="local", repeats=again)

    return make


def at(path: str, edit, step: int | None = None):
    def change(s, stage, values, get):
        return edit(values, get) if stage == path and step in (None, s) else None

    return change


def first(report: Report) -> dict:
    assert report.divergences[0].explanations, report.divergences[0]
    return report.divergences[0].explanations[0]


def test_a_stale_cell_is_traced_to_its_step(altered, drafter):
    """Cells of the second block that still hold what the first block put behind the context: rejected rows that stayed."""

    def stale(values, get):
        values[11:14] = get(2, "draft.L0.k_cells")[11:14]
        return values

    found = first(altered(drafter, at("draft.L0.k_cells", stale, 4)))
    assert found["kind"] == "cells.stale" and "of step 2 (stale)" in found["text"] and "cells 11-13" in found["text"]


def test_cells_that_moved_by_one_and_cells_never_written(altered, drafter):
    moved = first(altered(drafter, at("draft.L1.v_cells", lambda v, _: np.roll(v, 1, 0), 2)))
    assert moved["kind"] == "cells.shift" and "-1 from it" in moved["text"]
    zeroed = altered(drafter, at("draft.L1.v_cells", lambda v, _: v * (np.arange(len(v)) != 4)[:, None, None], 2))
    assert first(zeroed)["kind"] == "cells.zero" and zeroed.divergences[0].signature[0]["kind"] == "zeros"


def test_a_buffer_that_holds_another_stage(altered, drafter):
    report = altered(drafter, at("draft.L1.mlp_up", lambda _, get: get(2, "draft.L1.mlp_gate"), 2))
    named = {e["kind"] for e in report.divergences[0].explanations}
    assert "values.stage" in named or "linear.other" in named
    assert any(f["kind"] == "equals" and f["stage"] == "draft.L1.mlp_gate" for f in report.divergences[0].signature)


def test_taps_out_of_order_and_of_another_row(altered, drafter):
    def order(values, _):
        taps = values.reshape(len(values), 3, -1)
        return taps[:, [1, 0, 2]].reshape(values.shape)

    found = first(altered(drafter, at("draft.taps", order)))
    assert found["kind"] == "tap.order" and found["parameters"]["order"] == [1, 0, 2]
    rows = first(altered(drafter, at("draft.taps", lambda v, _: np.roll(v, 1, 0), 0)))
    assert rows["kind"] in ("tap.row", "values.rows")


@pytest.mark.parametrize("delta", [1, pytest.param(-1, marks=pytest.mark.slow)])
def test_a_tap_of_the_next_layer(altered, drafter, delta):
    """The target is run again for the layers around: the second tap is one off."""
    from parity.explain.fusion import target_taps

    layers, _, declared, norm = target_taps(drafter, 0)

    def other(values, _):
        taps = values.reshape(len(values), 3, -1)
        taps[:, 1] = layers[declared[1] + delta]
        return taps.reshape(values.shape)

    found = first(altered(drafter, at("draft.taps", other, 0)))
    # A neighbour that is tapped too is as well one tap in the place of another.
    assert found["kind"] in ("tap.layer", "tap.order")

    def last(values, _):
        taps = values.reshape(len(values), 3, -1)
        taps[:, 2] = norm(taps[:, 2].astype(float))[0][1]
        return taps.reshape(values.shape)

    assert first(altered(drafter, at("draft.taps", last, 0)))["kind"] == "tap.norm"


def test_the_token_that_was_embedded_and_the_anchor_that_was_not(altered, drafter):
    wrong = replace(drafter, steps=(*drafter.steps[:2], drafter.steps[2]))
    table = {}

    def mask(values, get):
        table.setdefault("anchor", values[0].copy())
        values[1:] = values[0]
        return values

    found = first(altered(wrong, at("draft.embed", mask, 2)))
    assert found["kind"] in ("anchor.layout", "mask.embedding") and "anchor" in found["text"]


def test_a_choice_by_another_rule(altered, drafter):
    def second(values, get):
        logits = get(2, "draft.logits")
        return np.argsort(-logits, axis=-1, kind="stable")[:, 1]

    report = altered(drafter, at("draft.pick", second, 2))
    assert first(report)["text"] == "the second largest"


def test_what_differs_between_runs_is_not_reproducible(altered, drafter):
    report = altered(drafter, at("draft.L0.xn", lambda v, _: v * (1 + 1e-3 * (np.arange(v.size).reshape(v.shape) == 5)), 2), repeats=2)
    facts = report.divergences[0].signature
    assert facts[0] == {
        "kind": "not reproducible",
        "text": "not reproducible: 2 of 2 further runs differ at this stage",
        "runs": 2,
        "of": 2,
    }


def test_the_recorded_extent_and_signature_reach_the_json(altered, drafter):
    report = altered(drafter, at("draft.L1.q_raw", lambda v, _: v * np.where(np.arange(6) % 2, 1.25, 1.0)[None, :, None], 4))
    body = report.to_json()["divergences"][0]
    assert body["extent"]["patterns"]["head"] == "every 2 from 1 to 5" and body["extent"]["steps"] == [4]
    assert body["extent"]["recurrence"].startswith("from step 4 (position 14) on") and "partial accept" in body["extent"]["recurrence"]
    assert body["signature"][0]["kind"] == "ratio" and body["explanations"][0]["kind"] == "linear.scale"
