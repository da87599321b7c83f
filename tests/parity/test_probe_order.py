"""`parity probe order`: every declared order is found as it is declared, and what kernels do otherwise is named."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import native
from native.sources import HEADER, PACKAGE
from oracle import summation
from oracle.arithmetic import named
from parity import candidates
from parity.cage import Limits
from parity.cli import main
from parity.errors import CandidateError
from parity.ordering import gauge, inside, judging, kernels, naming
from parity.ordering.leaves import Leaves, Place, exact_weight
from parity.ordering.probe import probe
from parity.ordering.revealing import IrregularError, Masks, Revealer
from tests.oracle.test_trees import ORDERS

Answers = dict[str, Any]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    built = tmp_path_factory.mktemp("ordering") / "libordering.so"
    include = [f"-I{HEADER.parent}", f"-I{PACKAGE / 'example'}"]
    source = Path(__file__).with_name("ordering_kernels.c")
    flags = ["-std=c11", "-O1", "-ffp-contract=off", "-w", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, *include, str(source), "-o", str(built), "-lm"], check=True, capture_output=True, text=True)
    return built


def answered(kernel: kernels.Kernel, options: inside.Options) -> list[Answers]:
    """The answers as they arrive from a worker."""
    found: list[Answers] = json.loads(json.dumps(inside.answers(kernel, options)))
    return found


@pytest.fixture
def answers(library: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answers]:
    """The answers of one of the kernels of `ordering_kernels.c`, asked in this process."""

    def ask(kernel: str, width: int = 37, block: int = 5, outputs: int = 3) -> Answers:
        monkeypatch.setenv("KERNEL", kernel)
        with native.open_library(library).context(1) as context:
            (found,) = answered(kernels.of_library(context), inside.Options(("f32",), (width,), outputs, block))
        return found

    return ask


def findings(answers: Answers, arithmetic: str | None = None, handshake: dict[str, str] | None = None) -> list[str]:
    declared = judging.declarations(candidates.parse("x.so"), arithmetic, handshake or {})
    return [f"{f.kind}: {f.text}" for f in judging.judge(answers, declared)]


@settings(max_examples=60, deadline=None)
@given(ORDERS, st.integers(2, 70))
def test_the_numpy_candidate_of_an_order_has_its_tree(order: str, width: int):
    kernel = kernels.of_arithmetic(named(f"f32,order={order}"))
    leaves = Leaves(kernel, "f32", width, 1)
    # Rows of a NumPy product do not know of each other.
    many = Place(128, tuple(range(128)), 0)
    revealer = Revealer(lambda v: leaves.ask(v, many), width, Masks(1.5 * 2.0**90, 2.0**40, 1 << 20))
    tree = revealer.tree()
    assert tree == summation.tree(order, width) and revealer.agrees(tree)
    assert summation.tree(naming.name(tree), width) == tree, "its name is one of an order with the same tree"


@pytest.mark.parametrize("preset", ["f32", "f32-pairwise", "f32-blocked", "bf16", "f64"])
def test_a_numpy_candidate_is_what_it_declares(preset: str):
    candidate = candidates.parse(preset)
    kernel = kernels.of_arithmetic(None if preset == "f64" else named(preset))
    (found,) = answered(kernel, inside.Options(("f32",), (37,), 2, 2))
    wrong = [f for f in judging.judge(found, judging.declarations(candidate, None, {})) if f.kind != "rows"]
    assert wrong == [] and found["order"]["result"]["bits"] == {"bf16": 8, "f64": 53}.get(preset, 24)
    if preset != "f64":
        # BLAS takes another order for one row than for several.
        assert found["rows"][0]["same"] and not found["rows"][0]["differing"] and found["order"]["fused"] == "no"


def test_the_cpu_library_sums_every_format_as_declared():
    formats = ("f32", "bf16", "f16", "q8_0", "q4_0", "q4_1", "q5_0", "q4_k", "q5_k", "q6_k")
    report = probe(candidates.parse("cpu"), weights=formats, widths=(512,), outputs=2, block=3)
    assert report.verdict == "parity", report.findings
    assert [k["weights"] for k in report.kernels] == list(formats)
    fingerprint = summation.tree("blocked:256", 512).fingerprint()
    for k in report.kernels:
        assert (k["order"]["name"], k["order"]["fused"], k["input_bits"], k["order"]["fingerprint"]) == (
            "blocked:256",
            "yes",
            24,
            fingerprint,
        )
        assert k["order"]["additions"] == [{"bits": 24, "rounding": "nearest, ties to even", "inside": None, "count": 510}]
        assert [r["same"] for r in k["rows"]] == [True, True] and not any(r["differing"] for r in k["rows"])


@pytest.mark.parametrize("stored", ["q8_0", "q4_0", "q4_1", "q5_0", "q4_k", "q5_k", "q6_k", "bf16"])
def test_small_whole_numbers_are_weights_of_every_format(stored: str):
    values = np.random.default_rng(3).integers(0, 8, (3, 512))
    np.testing.assert_array_equal(exact_weight(values, stored).array(), values)


KERNELS = {
    "sequential": ("sequential", "no", 24, "nearest, ties to even"),
    "fma": ("sequential", "yes", 24, "nearest, ties to even"),
    "pairwise": ("pairwise", "no", 24, "nearest, ties to even"),
    "reversed": ("", "no", 24, "nearest, ties to even"),
    "double": ("sequential", "yes", 53, "nearest, ties to even"),
    "f16 accumulator": ("sequential", "unseen", 11, "nearest, ties to even"),
    "bf16 accumulator": ("sequential", "unseen", 8, "nearest, ties to even"),
    "cut accumulator": ("sequential", "no", 24, "toward zero"),
    "matrix unit": ("fused:8", "no", 24, "toward zero"),
    "matrix unit without spare bits": ("fused:4", "no", 24, "toward zero, each addend before it is added"),
    "wide matrix unit": ("fused:4", "no", 24, "nearest, ties to even"),
    "bf16 inputs": ("sequential", "unseen", 24, "nearest, ties to even"),
    "f16 inputs": ("sequential", "unseen", 24, "nearest, ties to even"),
    "bf16 result": ("sequential", "no", 24, "nearest, ties to even"),
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_order_products_and_accumulators_of_compiled_kernels(answers: Callable[..., Answers], kernel: str):
    found = answers(kernel)
    order = found["order"]
    (addition,) = order["additions"]
    assert (order["name"], order["fused"], addition["bits"], addition["rounding"]) == KERNELS[kernel]
    assert [r["same"] for r in found["rows"]] == [True] * 4


def test_fused_sums_tell_how_their_addends_are_aligned(answers: Callable[..., Answers]):
    kept = {"matrix unit": 26, "matrix unit without spare bits": 24, "wide matrix unit": 48}
    assert {k: answers(k)["order"]["additions"][0]["inside"] for k in kept} == kept


def rounded(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32).astype(np.float64)


def exact_parts(v: np.ndarray) -> np.ndarray:
    """Fours added exactly, their sums one after the other."""
    return summation.total(rounded(np.stack([v[:, k : k + 4].sum(1) for k in range(0, v.shape[1], 4)], 1)).astype(np.float32), "sequential")


def exact_steps(v: np.ndarray) -> np.ndarray:
    """Four at a time and the sum so far, one rounding."""
    total = np.zeros(len(v))
    for k in range(0, v.shape[1], 4):
        total = rounded(total + v[:, k : k + 4].sum(1))
    return total


def parts_exactly(v: np.ndarray) -> np.ndarray:
    """Chains of five, their sums added exactly."""
    parts = [summation.total(v[:, k : k + 5].astype(np.float32), "sequential") for k in range(0, v.shape[1], 5)]
    return np.stack(parts, 1).astype(np.float64).sum(1)


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (exact_parts, "(((0 1 2 3) (4 5 6 7)) (8 9 10))"),
        (exact_steps, "(((0 1 2 3) 4 5 6 7) 8 9 10)"),
        (parts_exactly, "(((((0 1) 2) 3) 4) ((((5 6) 7) 8) 9) 10)"),
    ],
)
def test_sums_that_lose_nothing_are_nodes_of_all_their_addends(kernel: Callable[[np.ndarray], np.ndarray], text: str):
    revealer = Revealer(lambda v: kernel(v).astype(np.float64), 11, Masks(1.5 * 2.0**30, 1.0, 1 << 22))
    assert revealer.tree().text() == text


def test_results_that_fit_no_tree_are_refused():
    def drifting(v: np.ndarray) -> np.ndarray:
        return v.sum(1) * 1.37

    with pytest.raises(IrregularError, match="no number of units"):
        Revealer(drifting, 11, Masks(1.5 * 2.0**30, 1.0, 1 << 22)).tree()

    def twofold(v: np.ndarray) -> np.ndarray:
        halves = [summation.total(x.astype(np.float32), "sequential") for x in (v, v[:, ::-1])]
        return np.where(np.abs(v).argmax(1) % 2, *halves).astype(np.float64)

    with pytest.raises(IrregularError, match="where they meet"):
        Revealer(twofold, 11, Masks(1.5 * 2.0**60, 1.0, 1 << 22)).tree()


def test_a_narrow_accumulator_in_a_part_of_the_sum_only(answers: Callable[..., Answers]):
    found = answers("f16 in chunks", width=40)
    assert found["order"]["name"] == "blocked:8"
    assert [(a["bits"], a["count"]) for a in found["order"]["additions"]] == [(11, 35), (24, 3)]
    assert findings(found) == ["accumulator: 35 of 38 additions have a narrow accumulator: f16, 11 significant bits"]


SAID = {"order": "sequential", "fma": "0"}
FOUND = {
    "sequential": [],
    "fma": ["fma: adds products unrounded (FMA), the library declares fma=0"],
    "pairwise": ["order: adds in the order pairwise, the library declares sequential"],
    "reversed": ["order: adds in the order chain(35, 36, 34..0/-1), the library declares sequential"],
    "double": [
        "order: adds in double, the library declares sequential in f32 (order=f64 says so)",
        "fma: adds products unrounded (FMA), the library declares fma=0",
    ],
    "f16 accumulator": ["accumulator: 35 of 35 additions have a narrow accumulator: f16, 11 significant bits"],
    "bf16 accumulator": ["accumulator: 35 of 35 additions have a narrow accumulator: bf16, 8 significant bits"],
    "cut accumulator": ["rounding: 35 of 35 additions do not round to nearest: toward zero"],
    "bf16 inputs": ["inputs: rounds its inputs to 8 significant bits, arithmetic f32 declares f32 (24)"],
    "q8 inputs": ["inputs: rounds blocks of 32 inputs to a common scale, arithmetic f32 declares f32 inputs"],
    "bf16 result": ["result: the result has 8 significant bits, f32 has 24"],
    "not repeatable": ["repeat: the same rows and weights give other bits when they are multiplied again: the order is not fixed"],
    "last column reversed": ["columns: output features 2 sum the same weights to other bits than feature 0: another order"],
}


@pytest.mark.parametrize("kernel", FOUND)
def test_what_differs_from_the_declaration_is_named(answers: Callable[..., Answers], kernel: str):
    assert findings(answers(kernel, width=160 if kernel == "q8 inputs" else 37), handshake=SAID) == FOUND[kernel]


def test_a_declaration_that_fits_silences_the_findings(answers: Callable[..., Answers]):
    assert findings(answers("double"), "f32,order=f64,fma=1") == []
    assert findings(answers("pairwise"), "f32,order=pairwise") == []
    assert findings(answers("bf16 inputs"), "f32,use=bf16") == []
    assert findings(answers("bf16 result"), "f32,store=bf16") == []
    assert findings(answers("sequential"), "f32,order=f64") == ["accumulator: adds with 24 bits, --arithmetic declares sums in double"]


ROWS = {
    "pairwise alone": ("M = 2-5: adds in the order sequential, a single row in pairwise", {2, 3, 4, 5}),
    "split from four rows": ("M = 4-5: adds in the order blocked:10, a single row in sequential", {4, 5}),
    "row 2 reversed": ("M = 3-5: adds in the order chain(35, 36, 34..0/-1), a single row in sequential; rows 2 of M = 3", {3, 4, 5}),
    "fma from four rows": ("M = 4-5: rows 0-3 of M = 4 differ from single rows", {4, 5}),
    "f16 from four rows": ("M = 4-5: rows 0-3 of M = 4 differ from single rows", {4, 5}),
}


@pytest.mark.parametrize("kernel", ROWS)
def test_rows_that_are_summed_in_another_way_when_there_are_more_of_them(answers: Callable[..., Answers], kernel: str):
    text, wide = ROWS[kernel]
    found = answers(kernel)
    rows = [f for f in findings(found) if f.startswith("rows: ")]
    assert len(rows) == 1 and rows[0].startswith(f"rows: {text}"), rows
    assert {r["m"] for r in found["rows"] if r["differing"]} == wide
    if kernel == "fma from four rows":
        assert "other fused" in rows[0]
    if kernel == "f16 from four rows":
        assert "other additions and result" in rows[0]
        assert "accumulator: M = 4: 35 of 35 additions have a narrow accumulator: f16, 11 significant bits" in findings(found)


def test_a_kernel_that_loses_nothing_has_no_order():
    def exact(values: np.ndarray) -> np.ndarray:
        return values.sum(1) * (np.abs(values).max(1) > 0)

    span = gauge.Range(-3, 3)
    assert gauge.survey(exact, 9, span).bits is None


def test_one_scale_for_the_whole_row_leaves_nothing_to_find(answers: Callable[..., Answers]):
    found = answers("q8 inputs", width=32)
    assert "there is no order to find" in found["irregular"]


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as status:
        main(["probe", "order", *args])
    return int(status.value.code or 0)


def test_the_command_line_says_what_was_found(library: Path, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv("KERNEL", "pairwise alone")
    out = tmp_path / "order.json"
    small = ["--width", "19", "--outputs", "2", "--block", "2"]
    assert run("--candidate", str(library), *small, "--json", str(out)) == 1
    text = capsys.readouterr().out
    assert text.startswith("DIVERGENCE: order: f32 x 19: adds in the order pairwise, the library declares sequential - example-engine")
    assert "M = 2: adds in the order sequential, a single row in pairwise" in text
    report = json.loads(out.read_text())
    assert report["schema"] == "dflash-parity-order/1" and report["exit_status"] == 1
    assert [f["kind"] for f in report["findings"]] == ["order", "rows"]
    monkeypatch.setenv("KERNEL", "sequential")
    assert run("--candidate", str(library), *small, "--quiet") == 0
    assert (
        capsys.readouterr().out.startswith("PARITY: ")
        and run("--candidate", str(library), *small, "--arithmetic", "f32,order=lanes:4") == 1
    )
    monkeypatch.setenv("KERNEL", "q8 inputs")
    assert run("--candidate", str(library), "--width", "32", "--block", "1", "--arithmetic", "f32,use=q8_0", "--outputs", "1") == 3


def test_a_kernel_that_dies_is_exit_status_4(library: Path, monkeypatch, capsys):
    monkeypatch.setenv("KERNEL", "dies")
    assert run("--candidate", str(library), "--width", "9", "--block", "4", "--outputs", "1") == 4
    assert "SIGABRT" in capsys.readouterr().err
    with pytest.raises(CandidateError, match=r"within 0\.01 s"):
        probe(candidates.parse("cpu"), limits=Limits(0.01))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--candidate", "llama.cpp"], "wrap the engine's product as dlab_linear"),
        (["--weights", "q4_k", "--width", "100"], "expected a multiple"),
        (["--weights", "q9"], "q9"),
        (["--width", "1"], "expected 2 to 65536 products"),
        (["--op", "expert_linear", "--candidate", "f32"], "NumPy candidate"),
        (["--arithmetic", "f32,order=zigzag"], "zigzag"),
    ],
)
def test_bad_usage_is_one_line(args: list[str], message: str, capsys):
    assert run(*args) == 2
    assert message in capsys.readouterr().err


def test_a_product_by_name_is_probed_too():
    report = probe(candidates.parse("cpu"), widths=(300,), outputs=2, block=2, operation="expert_linear")
    assert report.verdict == "parity" and report.kernels[0]["order"]["name"] == "blocked:256"


def test_weights_that_a_library_does_not_take_are_named(library: Path, monkeypatch):
    monkeypatch.setenv("KERNEL", "sequential")
    report = probe(candidates.parse(str(library)), weights=("f32", "bf16"), widths=(9,), outputs=1, block=1)
    assert report.verdict == "inconclusive" and report.notes == ["bf16 x 9: not probed: linear: w must be a dense f32 matrix"]
