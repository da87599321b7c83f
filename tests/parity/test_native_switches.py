"""The attention gate, the tap norms and the context norm: fused and op by op, against the oracle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oracle.models import Drafter
from oracle.weights import Weight
from parity import models as opened
from parity.candidates import execute, parse
from parity.case import Case, append, propose
from parity.comparing import compare_dump

SWITCHES = {
    "tap norm": {"tap_norm": True},
    "context norm": {"ctx_layernorm": True},
    "gate per head": {"attn_gate": "softplus"},
    "gate per channel": {"attn_gate": "sigmoid"},
    "all": {"tap_norm": True, "ctx_layernorm": True, "attn_gate": "softplus", "causal": (True, True, True)},
}


@pytest.fixture
def switched(drafter: Case):
    """The shared case with a drafter of other switches, seeded weights for what they need."""

    def make(**switches: object) -> Case:
        base = opened.open_case_model(drafter)
        g, rng = base.drafter.geometry, np.random.default_rng(3)
        rows = g.heads if switches.get("attn_gate") == "softplus" else g.heads * g.head_dim
        gate = lambda: Weight.of(rng.standard_normal((rows, g.hidden)) / 7, ("dim", "in"), "f32")  # noqa: E731
        layers = tuple(replace(w, attn_gate=gate() if "attn_gate" in switches else None) for w in base.drafter.weights.layers)
        tap_norm = Weight.of(1 + 0.3 * rng.standard_normal(len(g.tap_ids) * g.target_hidden), ("dim",), "f32")
        weights = replace(base.drafter.weights, layers=layers, tap_norm=tap_norm)
        changed = Drafter(g, replace(base.drafter.dialect, **switches), weights, base.drafter.identity)
        case = replace(
            drafter, name=str(switches), steps=(*drafter.steps[:1], append(drafter.steps[1].array, 7), propose([1, 66, 66, 66], 11))
        )
        monkey = replace(case, model=case.model / ".")
        key = (str(monkey.model), str(monkey.borrowed), monkey.role, monkey.family, ())
        opened._CACHE[key] = replace(base, drafter=changed)
        return monkey

    before = dict(opened._CACHE)
    yield make
    opened._CACHE.clear()
    opened._CACHE.update(before)


@pytest.mark.parametrize("entry", ["op", "fused"])
@pytest.mark.parametrize("name", SWITCHES)
def test_the_cpu_library_agrees(switched, tmp_path, name, entry):
    from dumps import open_dump
    from oracle.arithmetic import named

    case = switched(**SWITCHES[name])
    execute(parse("cpu", entry), case, tmp_path / "dump", None, threads=1)
    report = compare_dump(case, open_dump(tmp_path / "dump"), named("cpu"), members=3)
    assert report.verdict == "parity" and not report.unseen, (report.divergences[:2], report.unseen[:3])
