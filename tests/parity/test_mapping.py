"""Mapping files: what they may say, where tensors go, and that nothing is passed over."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from oracle.artifacts import make_artifact
from parity.adapters.mapping import SHIPPED, MappingError, Place, arranged, load_mapping, shipped
from parity.case import Case
from parity.making import drafter_case, target_case
from parity.models import declared_stages

HEAD = 'schema = "dflash-parity-mapping/1"\nengine = "e"\nfamily = "llama"\nrole = "target"\n'
MAP = '[[map]]\nname = "q-{layer}"\nstage = "target.L{layer}.q_raw"\naxes = ["row", "head.dim"]\n'


def mapping(tmp_path: Path, text: str, head: str = HEAD):
    file = tmp_path / "m.toml"
    file.write_text(head + text)
    return load_mapping(file)


def test_names_go_to_stages_by_layer(tmp_path):
    m = mapping(tmp_path, MAP)
    assert m.place("q-12").path == "target.L12.q_raw"
    assert m.place("q-12b") is None and m.place("xq-1") is None
    assert m.unmapped == {"q-{n}b ()": 1, "xq-{n} ()": 1}


def test_layers_may_count_from_one(tmp_path):
    assert mapping(tmp_path, "layer_base = 1\n" + MAP).place("q-1").path == "target.L0.q_raw"


def test_op_source_and_step_narrow_a_rule(tmp_path):
    text = MAP + 'op = "MUL_MAT"\n'
    text += '[[map]]\nname = "node_{n}"\nsource = "blk.{layer}.k.weight"\nstep = "append"\n'
    text += 'stage = "target.L{layer}.k_raw"\naxes = ["row"]\n'
    m = mapping(tmp_path, text)
    assert m.place("q-1", "ROPE") is None and m.place("q-1", "MUL_MAT").path == "target.L1.q_raw"
    assert m.place("node_7", "MUL_MAT", ("blk.3.k.weight", "x"), "append").path == "target.L3.k_raw"
    assert m.place("node_7", "MUL_MAT", ("blk.3.k.weight", "x"), "propose") is None
    assert m.place("node_7", "MUL_MAT", ("x", "y"), "append") is None


def test_a_fused_product_holds_several_stages_and_one_of_another_kind_of_layer_none(tmp_path):
    text = '[[map]]\nname = "qkv-{layer}"\nstage = ["target.L{layer}.q_raw", "target.L{layer}.k_raw"]\naxes = ["row", "rest"]\n'
    text += '[[map]]\nname = "k-{layer}"\nstage = "target.L{layer}.k_raw"\naxes = ["row", "rest"]\nalso = true\notherwise = "nowhere"\n'
    m = mapping(tmp_path, text)
    stages = {(0, "target.L0.q_raw"): (("row", "head", "dim"), (2, 3, 4)), (0, "target.L0.k_raw"): (("row", "head", "dim"), (2, 1, 4))}
    parts = m.place("qkv-0").parts(stages, 0)
    assert [(p.path, part) for p, part in parts] == [("target.L0.q_raw", slice(0, 12)), ("target.L0.k_raw", slice(12, 16))]
    x = np.arange(32.0).reshape(2, 16)
    assert np.array_equal(arranged("t", x[:, parts[1][1]], parts[1][0], *stages[0, "target.L0.k_raw"], None), x[:, None, 12:])
    assert [p.path for p, _ in m.place("k-0").parts(stages, 0)] == ["target.L0.k_raw"] and not m.place("k-1").parts(stages, 0)


def test_a_stage_that_is_another_in_other_layers(tmp_path):
    m = mapping(tmp_path, MAP + 'otherwise = "target.L{layer}.q_norm"\n')
    stages = {(0, "target.L0.q_raw"): (("row",), (2,)), (0, "target.L1.q_norm"): (("row",), (2,))}
    assert [m.place(f"q-{i}").parts(stages, 0)[0][0].path for i in (0, 1)] == ["target.L0.q_raw", "target.L1.q_norm"]


def test_what_is_ignored_is_not_unmapped_and_what_was_never_met_is_known(tmp_path):
    m = mapping(tmp_path, MAP + '[[ignore]]\nname = "{any} (view)"\nreason = "seen before"\n')
    assert m.place("x (view)") is None and m.place("y") is None
    assert m.unmapped == {"y ()": 1} and m.unmet == ["target.L{layer}.q_raw"]
    m.place("q-0")
    assert m.unmet == []


def test_a_tensor_with_two_rules_is_refused(tmp_path):
    m = mapping(tmp_path, MAP + '[[map]]\nname = "{any}-{layer}"\nstage = "target.L{layer}.k_raw"\naxes = ["row"]\n')
    with pytest.raises(MappingError, match=r"'q-1' .* is mapped twice, to 'target.L{layer}.q_raw' and 'target.L{layer}.k_raw'"):
        m.place("q-1")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[map", "not TOML"),
        ("other = 1\n", "unknown key 'other'"),
        ("layer_base = 2\n", "layer_base: expected 0 or 1, found 2"),
        ("map = 3\n", r"map: expected at most 4096 tables \[\[map\]\]"),
        ('[[map]]\nstage = "s"\n', "name: expected text, found None"),
        ('[[map]]\nname = "q-{layer}"\nstage = "s"\naxes = ["row"]\n', "expected {layer} once in name or source and in stage"),
        ('[[map]]\nname = "q-{number}"\nstage = "s"\naxes = ["row"]\n', "expected {layer}, {n}, {any} in a name, found {number}"),
        ('[[map]]\nname = "q"\nstage = "s"\naxes = ["width"]\n', "axes: expected different names of row, cell, head"),
        ('[[map]]\nname = "q"\nstage = "s"\naxes = ["row", "row"]\n', "axes: expected different names"),
        ('[[map]]\nname = "q"\nstage = "s"\naxes = []\n', "axes: expected different names"),
        ('[[map]]\nname = "q"\nstage = "s"\naxes = ["row"]\npairs = "half"\n', "pairs: expected neox or interleaved, found 'half'"),
        ('[[map]]\nname = "q"\nstage = "s"\naxes = ["row"]\nstep = "verify"\n', "step: expected one of append, propose, window"),
        ('[[map]]\nname = "q"\nstage = "s"\naxes = ["row"]\nscale = 1\n', "unknown key 'scale'"),
        (MAP + "also = 1\n", "also: expected true or false, found 1"),
        ('[[ignore]]\nname = "q"\n', "reason: expected text, found None"),
        (MAP + MAP, "the stage 'target.L{layer}.q_raw' has 2 rules; expected one"),
    ],
)
def test_a_mapping_that_is_not_one_is_refused(tmp_path, text, says):
    with pytest.raises(MappingError, match=says):
        mapping(tmp_path, text)


def test_another_schema_a_missing_and_a_huge_file_are_refused(tmp_path):
    with pytest.raises(MappingError, match="expected schema = 'dflash-parity-mapping/1', found 'x'"):
        mapping(tmp_path, "", head='schema = "x"\n')
    with pytest.raises(MappingError, match="cannot be read"):
        load_mapping(tmp_path / "none.toml")
    (tmp_path / "huge.toml").write_text("#" * (1 << 20) + "\n")
    with pytest.raises(MappingError, match="larger than"):
        load_mapping(tmp_path / "huge.toml")


def place(tmp_path: Path, axes: str, pairs: str = "") -> Place:
    text = f'[[map]]\nname = "t"\nstage = "target.logits"\naxes = [{axes}]\n' + (f'pairs = "{pairs}"\n' if pairs else "")
    return mapping(tmp_path, text).place("t")


def test_axes_are_split_moved_and_cut(tmp_path):
    x = np.arange(2 * 3 * 4).reshape(2, 3, 4)
    whole = ("row", "head", "dim"), (2, 3, 4)
    assert np.array_equal(arranged("t", x.reshape(2, 12), place(tmp_path, '"row", "head.dim"'), *whole, None), x)
    assert np.array_equal(arranged("t", x.transpose(1, 2, 0), place(tmp_path, '"head", "dim", "row"'), *whole, None), x)
    assert np.array_equal(arranged("t", x[None], place(tmp_path, '"row", "head", "dim"'), *whole, None), x)
    cache = np.concatenate([x, x]).transpose(1, 0, 2)
    assert np.array_equal(arranged("t", cache, place(tmp_path, '"head", "cell", "dim"'), ("cell", "head", "dim"), (2, 3, 4), None), x)


def test_pairs_are_put_in_the_oracles_order(tmp_path):
    halves, neighbours = np.array([[0, 1, 2, 10, 11, 12]]), np.array([[0, 10, 1, 11, 2, 12]])
    whole = ("row", "dim"), (1, 6)
    assert np.array_equal(arranged("t", neighbours, place(tmp_path, '"row", "dim"', "interleaved"), *whole, "neox"), halves)
    assert np.array_equal(arranged("t", halves, place(tmp_path, '"row", "dim"', "neox"), *whole, "interleaved"), neighbours)
    assert np.array_equal(arranged("t", halves, place(tmp_path, '"row", "dim"', "neox"), *whole, "neox"), halves)


@pytest.mark.parametrize(
    ("axes", "shape", "says"),
    [
        ('"row"', (2, 12), r"has 2 axes \[2, 12\], the mapping names row"),
        ('"row", "vocab"', (2, 12), "mapped with the axes row, vocab; target.logits has row, head, dim"),
        ('"row", "head.dim"', (2, 13), "its axis head.dim has 13 entries, target.logits has 12"),
        ('"row", "head.dim"', (3, 12), "its axis row has 3 entries, target.logits has 2"),
    ],
)
def test_a_tensor_that_does_not_fit_its_rule_is_refused(tmp_path, axes, shape, says):
    with pytest.raises(MappingError, match=says):
        arranged("t", np.zeros(shape), place(tmp_path, axes), ("row", "head", "dim"), (2, 3, 4), None)


def tiny(tmp_path: Path, family: str, role: str) -> Case:
    files = make_artifact(family, "tiny", "f32", tmp_path, seed=1, role=role)
    if role == "target":
        return target_case(files[0], prefill=5, block=2, seed=1)
    return drafter_case(files[0], files[1], family=family, appends=(5,), seed=1)


@pytest.mark.parametrize("file", sorted(f.name for f in SHIPPED.glob("*.toml")))
def test_a_shipped_mapping_has_a_rule_for_every_stage(file, tmp_path):
    """But for what the engine is given (the features) and what it picks, which its sampler says."""
    engine, family, role = file.removesuffix(".toml").rsplit(".", 2)
    m = shipped(engine, family, role)
    assert (m.engine, m.family, m.role) == (engine, family, role)
    ruled = {stage.replace("{layer}", str(layer)) for rule in m.rules for stage in (rule.stage, *rule.others) for layer in range(64)}
    left = {path for (_, path), _, _ in declared_stages(tiny(tmp_path, family, role)) if not m.hidden(path)} - ruled
    assert left <= {"draft.taps", "draft.pick", "target.pick"}


def test_a_family_without_a_mapping_is_told_which_there_are():
    with pytest.raises(MappingError, match="tensors for a laguna target: there are llama target, muse-glimmer drafter"):
        shipped("llama.cpp", "laguna", "target")
