"""llama.cpp as a candidate, as far as it goes without llama.cpp: who may run, the tensors it hands over, and what a report says of it."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from dumps import DumpWriter, open_dump
from oracle import arithmetic as arithmetics
from oracle.artifacts import make_artifact
from oracle.readings import Rounded
from parity import adapters, candidates
from parity.adapters import llama_cpp
from parity.adapters.ggml import Ggml, Pointer, Tensor
from parity.adapters.mapping import load_mapping, shipped
from parity.backends import survey
from parity.case import Case
from parity.comparing import compare_dump
from parity.errors import CandidateError, UsageError
from parity.making import target_case
from parity.models import run
from parity.report import Report

GGML = arithmetics.named("llama.cpp-cpu")
SIZES = {"hidden": 32, "intermediate": 64, "heads": 2, "kv_heads": 1, "head_dim": 16, "vocab": 31, "layers": 2}


@pytest.fixture(scope="module")
def case(tmp_path_factory) -> Case:
    root = tmp_path_factory.mktemp("llama")
    return target_case(make_artifact("llama", "tiny", "q4_1", root, seed=4, container="gguf", **SIZES)[0], prefill=5, block=3, seed=1)


class Nodes:
    """What the evaluation callback meets: the stages of a healthy run as tensors under llama.cpp's names, in the order of its graph."""

    NAMES = {
        "embed": ("embd", "GET_ROWS"),
        "xn": ("attn_norm-{}", "MUL"),
        "q_raw": ("Qcur-{}", "MUL_MAT"),
        "k_raw": ("Kcur-{}", "MUL_MAT"),
        "v": ("Vcur-{}", "MUL_MAT"),
        "q_rope": ("Qcur-{}", "ROPE"),
        "k_rope": ("Kcur-{}", "ROPE"),
        "k_cells": ("cache_k_l{} (view) (permuted)", "PERMUTE"),
        "v_cells": ("cache_v_l{} (view) (permuted)", "PERMUTE"),
        "attn": ("kqv_out-{}", "CONT"),
        "o": ("attn_out-{}", "MUL_MAT"),
        "h_attn": ("ffn_inp-{}", "ADD"),
        "xn_mlp": ("ffn_norm-{}", "MUL"),
        "mlp_gate": ("ffn_gate-{}", "MUL_MAT"),
        "mlp_up": ("ffn_up-{}", "MUL_MAT"),
        "mlp_act": ("ffn_swiglu-{}", "SWIGLU"),
        "mlp_down": ("ffn_out-{}", "MUL_MAT"),
        "h_mlp": ("l_out-{}", "ADD"),
        "final_norm": ("result_norm", "MUL"),
        "logits": ("result_output", "MUL_MAT"),
    }

    def __init__(self, case: Case) -> None:
        self.made: list[tuple[int, str, str, np.ndarray]] = []
        self.chosen: list[np.ndarray] = []
        self.extra: list[tuple[int, str, str, np.ndarray]] = []

        def tape(stage, value, reading):
            *_, layer, name = f"L0.{stage.path}".split(".") if "." in stage.path else ("", "L0", stage.path)
            if name == "pick":
                self.chosen.append(value.data.astype(np.int32))
            else:
                pattern, op = self.NAMES[name]
                self.made.append((stage.step, pattern.format(layer.removeprefix("L")), op, self._laid(name, value.data)))
            return value

        run(case, Rounded(GGML), tape)

    @staticmethod
    def _laid(name: str, x: np.ndarray) -> np.ndarray:
        """As ggml lays it out, slowest axis first: a cache with spare cells by head, everything else flat rows."""
        if name in ("k_cells", "v_cells"):
            x = np.concatenate([x, np.full((3, *x.shape[1:]), 7)]).astype(np.float16)
            return x.transpose(1, 0, 2) if name == "k_cells" else x.transpose(1, 2, 0)
        return x if name.endswith("rope") else x.reshape(len(x), -1)


class FakeGgml(Ggml):
    """The names of types and operations without a library."""

    def __init__(self) -> None:
        pass

    def operation(self, tensor) -> str:
        return self.op

    def type_name(self, tensor) -> str:
        return {0: "f32", 1: "f16"}[tensor.type]


class FakeEngine:
    """Runs a step by showing the tap each node of it twice, as ggml's scheduler does."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes, self.ggml, self.tap, self.index = nodes, FakeGgml(), None, 0

    def step(self, step) -> None:
        for at, name, op, values in [*self.nodes.made, *self.nodes.extra]:
            if at == self.index:
                self._show(name, op, np.ascontiguousarray(values))
        self.index += 1

    def _show(self, name: str, op: str, values: np.ndarray) -> None:
        tensor = Tensor()
        shape = [1] * (4 - values.ndim) + list(values.shape)
        tensor.type, tensor.name, tensor.data = {"f": 0, "e": 1}[values.dtype.char], name.encode(), values.ctypes.data
        tensor.ne[:], tensor.nb[:] = shape[::-1], np.array(values.reshape(shape).strides[::-1], np.uint64).tolist()
        self.ggml.op = op
        address = ctypes.cast(Pointer(tensor), ctypes.c_void_p).value
        if self.tap(address, True):
            self.tap(address, False)
        if self.tap.error is not None:
            raise self.tap.error

    def picks(self, rows: int) -> np.ndarray:
        return self.nodes.chosen[self.index - 1]


def judged(case: Case, tmp_path: Path, nodes: Nodes, arithmetic: str = "llama.cpp-cpu", rules=None) -> Report:
    with DumpWriter(tmp_path / "dump", case.describe(), {"candidate": "llama.cpp"}) as writer:
        llama_cpp.record(case, FakeEngine(nodes), rules or shipped("llama.cpp", "llama", "target"), writer)
    return compare_dump(case, open_dump(tmp_path / "dump"), arithmetics.named(arithmetic), mode="local")


def test_the_nodes_of_a_healthy_graph_make_a_dump_that_agrees(case, tmp_path):
    report = judged(case, tmp_path, Nodes(case))
    assert report.verdict == "parity" and not report.unseen and not report.extra
    assert {s.dtype for s in report.stages if s.stage.endswith("_cells")} == {"f16"}


@pytest.mark.parametrize("name", ["Kcur-1", "ffn_swiglu-0", "attn_out-1", "result_norm"])
def test_one_perturbed_tensor_is_found_at_its_stage(case, tmp_path, name):
    nodes = Nodes(case)
    at = next(i for i, (step, n, op, _) in enumerate(nodes.made) if step == 1 and n == name and op != "ROPE")
    step, n, op, values = nodes.made[at]
    values = values.copy()
    values[2, 5] *= 1.01
    nodes.made[at] = (step, n, op, values)
    first = judged(case, tmp_path, nodes).first_divergence
    stage = {"Kcur-1": "L1.k_raw", "ffn_swiglu-0": "L0.mlp_act", "attn_out-1": "L1.o", "result_norm": "final_norm"}[name]
    assert (first.step, first.stage, first.row) == (1, f"target.{stage}", 2)


def test_a_cache_that_forgot_a_cell_is_found_at_the_cells(case, tmp_path):
    nodes = Nodes(case)
    at = next(i for i, (step, n, _, _) in enumerate(nodes.made) if step == 1 and n.startswith("cache_v_l0"))
    step, n, op, values = nodes.made[at]
    nodes.made[at] = (step, n, op, np.roll(values, 1, axis=2))
    assert judged(case, tmp_path, nodes).first_divergence.stage == "target.L0.v_cells"


def edited(tmp_path: Path, old: str, new: str):
    text = shipped("llama.cpp", "llama", "target").file.read_text()
    assert old in text
    (tmp_path / "edited.toml").write_text(text.replace(old, new))
    return load_mapping(tmp_path / "edited.toml")


def test_gate_and_up_exchanged_in_the_mapping_is_found_where_they_are_made(case, tmp_path):
    rules = edited(tmp_path, "ffn_gate-", "ffn_x-")
    (tmp_path / "edited.toml").write_text(rules.file.read_text().replace("ffn_up-", "ffn_gate-").replace("ffn_x-", "ffn_up-"))
    report = judged(case, tmp_path, Nodes(case), rules=load_mapping(rules.file))
    assert [d.stage for d in report.divergences][:2] == ["target.L0.mlp_gate", "target.L0.mlp_up"]


def test_a_layer_base_off_by_one_names_a_stage_the_case_has_not(case, tmp_path):
    with pytest.raises(UsageError, match=r"'attn_norm-0' is mapped to target.L-1.xn, which step 0 has not"):
        judged(case, tmp_path, Nodes(case), rules=edited(tmp_path, "layer_base = 0", "layer_base = 1"))


def test_pairs_in_another_order_are_found_at_the_product(case, tmp_path):
    report = judged(case, tmp_path, Nodes(case), rules=edited(tmp_path, 'pairs = "interleaved"', 'pairs = "neox"'))
    assert report.first_divergence.stage == "target.L0.q_raw"


def test_unmapped_tensors_are_reported(case, tmp_path):
    nodes = Nodes(case)
    nodes.extra = [(0, f"ffn_clamp-{i}", "CLAMP", np.zeros((5, 4), np.float32)) for i in range(2)]
    assert judged(case, tmp_path, nodes).extra == ["0:unmapped: ffn_clamp-{n} (CLAMP)"]


def test_a_rule_that_meets_nothing_leaves_its_stage_unseen(case, tmp_path):
    report = judged(case, tmp_path, Nodes(case), rules=edited(tmp_path, 'name = "ffn_norm-{layer}"', 'name = "no_norm-{layer}"'))
    assert report.verdict == "parity"
    assert set(report.unseen) == {f"{step}:target.L{layer}.xn_mlp" for step in (0, 1) for layer in (0, 1)}
    assert "0:unmapped: ffn_norm-{n} (MUL)" in report.extra


def test_under_plain_f32_the_report_says_quantised_activations(case, tmp_path):
    report = judged(case, tmp_path, Nodes(case), "f32")
    assert report.verdict == "divergence"
    first = report.first_divergence
    assert first.stage == "target.L0.q_raw"
    assert "quantised activations, not a bug: the input rounded to Q8_1 blocks" in first.explanations[0]["text"]
    assert "--arithmetic llama.cpp-cpu" in first.explanations[0]["text"]
    assert any(note.startswith("quantised activations: the first") for note in report.notes)


@pytest.mark.slow
def test_a_real_mistake_among_them_is_not_called_rounding(case, tmp_path):
    nodes = Nodes(case)
    nodes.made = [(s, n, op, v * 1.01 if (s, n, op) == (0, "Vcur-0", "MUL_MAT") else v) for s, n, op, v in nodes.made]
    report = judged(case, tmp_path, nodes, "f32")
    assert not any(note.startswith("quantised activations") for note in report.notes)


@pytest.mark.parametrize("fault", ["norm.eps:factor=10", "attention.scale:factor=1.01"])
def test_faults_are_seen_through_the_engines_arithmetic(case, judged_numpy, fault):
    assert judged_numpy(case, "llama.cpp-cpu").verdict == "parity"
    assert judged_numpy(case, "llama.cpp-cpu", fault, name="faulty").verdict == "divergence"


@pytest.fixture
def judged_numpy(dumped):
    def judge(case: Case, arithmetic: str, fault: str | None = None, name: str = "dump") -> Report:
        return compare_dump(case, open_dump(dumped(case, arithmetic, fault, name)), arithmetics.named(arithmetic), mode="local")

    return judge


def test_the_rolled_oracle_rounds_as_the_engine_does(case, dumped):
    report = compare_dump(case, open_dump(dumped(case, "llama.cpp-cpu")), GGML, mode="rolled", members=4)
    assert report.verdict == "parity" and not report.consequences


def test_absent_it_is_refused_with_what_to_do(case, tmp_path, monkeypatch):
    monkeypatch.setattr(adapters.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"llama-cpp-python is not installed: pip install 'dflash-parity-lab\[llama\]'"):
        candidates.execute(candidates.parse("llama.cpp"), case, tmp_path / "dump", None)
    entry = next(e for e in survey() if e["name"] == "llama.cpp")
    assert not entry["ready"] and "pip install" in entry["about"]


def test_it_takes_no_fault_and_only_adapters_take_a_mapping(case, tmp_path):
    with pytest.raises(UsageError, match=r"llama.cpp cannot be edited from outside"):
        candidates.execute(candidates.parse("llama.cpp"), case, tmp_path / "dump", "norm.eps:factor=10")
    with pytest.raises(UsageError, match="--mapping: only an adapter has one"):
        candidates.parse("module:callable", mapping="m.toml")


def test_it_declares_its_arithmetic():
    assert candidates.declared(candidates.parse("llama.cpp"), None).name == "llama.cpp-cpu"
    assert candidates.declared(candidates.parse("llama.cpp"), "f32").name == "f32"


class OtherLayout:
    """A library whose tensors begin elsewhere."""

    def __getattr__(self, name):
        def function(*args):
            if name == "ggml_op_desc":
                return b"MUL_MAT"
            tensor = Tensor()
            tensor.ne[:] = [5, 7, 1, 2]
            tensor.src[0] = tensor.src[1] = Pointer(Tensor())
            return Pointer(tensor) if name != "ggml_init" else 1

        function.restype = function.argtypes = None
        setattr(self, name, function)
        return function


def test_a_library_with_another_layout_is_refused():
    with pytest.raises(CandidateError, match="lays its tensors out otherwise"):
        Ggml(OtherLayout())
