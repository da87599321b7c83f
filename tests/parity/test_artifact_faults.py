"""Artifact faults are edits of a copy, in either container: what they name is changed, nothing else is, and the lab finds it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gguf import GGUFReader

from oracle import arithmetic as arithmetics
from oracle.faults import FaultError
from oracle.readings import Rounded
from parity.faults import parse
from parity.faults.planting import record_planted
from parity.memory import MemoryDump
from parity.models import open_case_model
from parity.scoring_cases import score_case
from parity.scoring_runs import expectations, judged, outcome

F32 = arithmetics.named("f32")


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """A target in one GGUF file, windowed in part of its layers, its matrices in quantised blocks."""
    return score_case("muse-glimmer target", 0, tmp_path_factory.mktemp("gguf"))


def fields(path):
    return {key: [np.array(p).tolist() for p in f.parts] for key, f in GGUFReader(path).fields.items()}


def tensors(path):
    return {t.name: t.data.tobytes() for t in GGUFReader(path).tensors}


@pytest.mark.parametrize(
    ("key", "factor", "suffix"),
    [
        ("eps", 1000, "attention.layer_norm_rms_epsilon"),
        ("theta", 0.1, "rope.freq_base"),
        ("window", 0.5, "attention.sliding_window"),
    ],
)
def test_a_parameter_of_a_gguf_is_changed_and_nothing_else(case, tmp_path, key, factor, suffix):
    before = case.model.read_bytes()
    wrong = parse(f"artifact.config:key={key},factor={factor}").plant(case.model, tmp_path)
    assert case.model.read_bytes() == before and tensors(wrong) == tensors(case.model)
    mine, theirs = fields(case.model), fields(wrong)
    changed = [k for k in mine if mine[k] != theirs[k]]
    assert changed and all(k.endswith(f".{suffix}") for k in changed)
    for k in changed:
        old, new = mine[k][-1][0], theirs[k][-1][0]
        assert new == (int(old * factor) if key == "window" else pytest.approx(old * factor, rel=1e-6))


@pytest.mark.parametrize("spec", ["artifact.swapped:a=gate,b=up", "artifact.layer:role=down", "artifact.permuted:how=halves"])
def test_tensors_of_a_gguf_are_moved_and_nothing_else(case, tmp_path, spec):
    wrong = parse(spec).plant(case.model, tmp_path)
    mine, theirs = tensors(case.model), tensors(wrong)
    changed = {name for name in mine if mine[name] != theirs[name]}
    assert changed and all(name.startswith("blk.1.") for name in changed) and fields(wrong) == fields(case.model)
    if spec.startswith("artifact.swapped"):
        assert theirs["blk.1.ffn_gate.weight"] == mine["blk.1.ffn_up.weight"]
    if spec.startswith("artifact.layer"):
        assert theirs["blk.1.ffn_down.weight"] == mine["blk.0.ffn_down.weight"]


def test_blocks_cannot_be_transposed_and_a_missing_parameter_is_said(case, tmp_path):
    with pytest.raises(FaultError, match="quantised blocks cannot be transposed"):
        parse("artifact.transposed:role=o").plant(case.model, tmp_path)
    llama = score_case("llama target", 0, tmp_path)
    with pytest.raises(FaultError, match=r"no attention\.sliding_window here"):
        parse("artifact.config:key=window").plant(llama.model, tmp_path / "wrong")


def test_a_model_written_anew_under_its_name_is_another_model(case, tmp_path):
    found = []
    for spec in ("artifact.layer:role=down", "artifact.swapped:a=gate,b=up"):
        made = open_case_model(replace(case, model=parse(spec).plant(case.model, tmp_path)))
        found.append(made)
    assert found[0] is not found[1]


@pytest.mark.parametrize("key", ["eps,factor=1000", "theta,factor=0.1", "window,factor=0.5"])
def test_a_wrong_parameter_of_a_gguf_is_found_and_named(case, tmp_path, key):
    spec = f"artifact.config:key={key}"
    limit = expectations(case, "f32", [spec], tmp_path)[spec]
    dump = MemoryDump(case.describe(), {})
    record_planted(case, Rounded(F32), spec, dump, F32, tmp_path / "run")
    made = outcome(case, "f32", spec, limit, judged(case, dump, "f32"))
    assert made.above and made.found and made.stage and made.place and made.named == 1, made
