"""The oracle against llama.cpp itself, stage by stage: its CPU kernels, its key/value cache, its dflash drafter (``make test-llama``)."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from dumps import DumpWriter, open_dump
from oracle import arithmetic as arithmetics
from oracle.artifacts import make_artifact
from oracle.artifacts.convert import convert_artifact
from parity import realtext
from parity.adapters.mapping import SHIPPED
from parity.candidates import parse
from parity.case import Case
from parity.comparing import compare_dump
from parity.errors import UsageError
from parity.flow import run_candidate
from parity.making import drafter_case, target_case
from parity.report import Report

pytestmark = [pytest.mark.peers, pytest.mark.skipif(find_spec("llama_cpp") is None, reason="needs the extra `llama`: make test-llama")]


def run(case: Case, arithmetic: str | None = None, mode: str = "local", mapping: Path | None = None, keep: Path | None = None) -> Report:
    candidate = parse("llama.cpp", mapping=None if mapping is None else str(mapping))
    return run_candidate(case, candidate, None if arithmetic is None else arithmetics.named(arithmetic), mode=mode, keep=keep, members=4)


def muse_target(tmp_path: Path, weights: str) -> Case:
    return target_case(make_artifact("muse-glimmer", "tiny", weights, tmp_path, seed=3, role="target")[0], prefill=40, block=8, seed=0)


def muse_drafter(tmp_path: Path, weights: str, **how: object) -> Case:
    files = make_artifact("muse-glimmer", "tiny", weights, tmp_path, seed=3)
    return drafter_case(*files, dialect={"engine": "llama.cpp"}, appends=(40,), accepts=(3, 0, 7), seed=0, **how)


@pytest.fixture(scope="module")
def smollm2() -> Case:
    model = realtext.smollm2()
    ids = realtext.tokenizer(model).encode(realtext.PROMPT.read_text())
    return target_case(model, prefill=ids[:-16], block=ids[-16:], seed=0)


def test_smollm2_on_real_text_agrees_at_every_stage_of_every_layer(smollm2):
    report = run(smollm2)
    assert report.verdict == "parity" and not report.unseen and not report.extra and not report.missing
    assert report.counts() == {"agree": 2 * (4 + 30 * 17)}
    assert len(report.margins) == sum(len(s.array) for s in smollm2.steps)
    assert {m.verdict for m in report.margins} <= {"agree", "tie"}


def test_under_plain_f32_smollm2_is_said_to_quantise_its_activations(smollm2):
    report = run(smollm2, "f32")
    assert report.first_divergence.stage == "target.L0.q_raw"
    assert "quantised activations, not a bug: the input rounded to Q8_1" in report.first_divergence.explanations[0]["text"]
    assert any(note.startswith("quantised activations: the first") for note in report.notes)


@pytest.mark.parametrize("weights", ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q4_k", "q5_k", "q6_k"])
def test_a_muse_target_agrees_in_every_weight_format(tmp_path, weights):
    report = run(muse_target(tmp_path, weights))
    assert report.verdict == "parity" and not report.unseen and not report.extra


def test_a_muse_target_agrees_rolled_too(tmp_path):
    report = run(muse_target(tmp_path, "q4_k"), mode="both")
    assert report.verdict == "parity" and not report.consequences


@pytest.mark.parametrize("weights", ["f32", "q4_k"])
def test_a_muse_drafter_agrees_over_rounds_of_append_and_propose(tmp_path, weights):
    report = run(muse_drafter(tmp_path, weights))
    assert report.verdict == "parity" and not report.extra
    assert {label.partition(":")[2] for label in report.unseen} == {"draft.taps"}


def test_the_drafters_window_is_the_one_that_llama_cpp_has(tmp_path):
    """Its own dialect agrees above; Transformers' rule of the same window is another, and is seen at the first attention."""
    files = make_artifact("muse-glimmer", "tiny", "f32", tmp_path, seed=3)
    report = run(drafter_case(*files, appends=(40,), seed=0))
    assert report.first_divergence.stage == "draft.L0.attn"


@pytest.mark.parametrize("name", ["L2.q_raw", "L5.attn", "L7.mlp_down"])
def test_one_perturbed_value_of_a_real_run_is_found_at_its_stage(tmp_path, name):
    case = muse_target(tmp_path, "q8_0")
    run(case, keep=tmp_path / "kept")
    dump = open_dump(tmp_path / "kept/dump")
    with DumpWriter(tmp_path / "again", dict(dump.case), dict(dump.provenance)) as writer:
        for step in dump.steps:
            for stage in dump.stages(step):
                record = dump.get(step, stage)
                values = record.float64()
                if (step, stage) == (1, f"target.{name}"):
                    values.reshape(len(values), -1)[3, 1] *= 1.01
                kept = record.dtype if record.dtype in ("f16", "i32", "i64") else "f32"
                writer.put(step, stage, values.astype({"f16": "f2", "i32": "i4", "i64": "i8"}.get(kept, "f4")))
    report = compare_dump(case, open_dump(tmp_path / "again"), arithmetics.named("llama.cpp-cpu"), mode="local")
    first = report.first_divergence
    assert (first.step, first.stage, first.row) == (1, f"target.{name}", 3)


@pytest.mark.parametrize(
    ("old", "new", "stage"),
    [
        ('"Kcur_normed-{layer}"', '"Qcur_normed-{layer}"', None),
        ('name = "Vcur-{layer}"\nop = "MUL_MAT"', 'name = "Kcur-{layer}"\nop = "MUL_MAT"', None),
        ('axes = ["head", "dim", "cell"]', 'axes = ["dim", "head", "cell"]', None),
        ('name = "attn_gated-{layer}"', 'name = "attn_gate_sig-{layer}"', "target.L0.attn_gated"),
    ],
)
def test_one_wrong_rule_of_a_mapping_is_refused_or_found(tmp_path, old, new, stage):
    text = (SHIPPED / "llama.cpp.muse-glimmer.target.toml").read_text()
    assert old in text
    (tmp_path / "wrong.toml").write_text(text.replace(old, new))
    case = muse_target(tmp_path, "f32")
    if stage is None:
        with pytest.raises(UsageError, match=r"is mapped twice|its axis"):
            run(case, mapping=tmp_path / "wrong.toml")
    else:
        assert run(case, mapping=tmp_path / "wrong.toml").first_divergence.stage == stage


@pytest.mark.parametrize("policy", ["f32", "f16", "q8_k"])
def test_a_wrong_policy_is_seen_at_the_product_that_it_is_declared_of(tmp_path, policy):
    report = run(muse_target(tmp_path, "q8_0"), f"llama.cpp-cpu,use=*_cells:f16+*.attn:f16+*.L1.q_raw:{policy}+ggml")
    assert report.first_divergence.stage == "target.L1.q_raw"


def test_probabilities_that_are_not_declared_are_seen_at_attention(tmp_path):
    report = run(muse_target(tmp_path, "f32"), "llama.cpp-cpu,probabilities=f32")
    assert report.first_divergence.stage == "target.L0.attn"


def test_what_our_converter_writes_loads_and_agrees(tmp_path):
    case = muse_target(tmp_path / "made", "f16")
    convert_artifact(case.model, tmp_path / "folder")
    made = convert_artifact(tmp_path / "folder", tmp_path / "back.gguf")
    assert run(target_case(made.path, prefill=20, block=4, seed=0)).verdict == "parity"


def test_a_file_that_llama_cpp_refuses_is_named_with_its_reason(tmp_path):
    case = muse_target(tmp_path, "f32")
    shutil.copy(case.model, tmp_path / "copy.gguf")
    raw = (tmp_path / "copy.gguf").read_bytes()
    (tmp_path / "copy.gguf").write_bytes(raw.replace(b"tokenizer.ggml.merges", b"tokenizer.ggml.mergez"))
    with pytest.raises(UsageError, match=r"copy.gguf: llama.cpp does not load it: .*merges"):
        run(target_case(tmp_path / "copy.gguf", prefill=4, block=2, seed=0))


def test_a_folder_is_refused_with_what_to_do(tmp_path):
    files = make_artifact("muse-glimmer", "tiny", "f32", tmp_path, seed=3, role="target", container="safetensors")
    with pytest.raises(UsageError, match="is no GGUF file: convert the folder first"):
        run(target_case(files[0], prefill=4, block=2, seed=0))
