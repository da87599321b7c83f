"""Importing Strata's recordings: the stage directory with its paged pools, and the prompt-against-window gate of its tap captures."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dumps import DumpError, open_dump
from dumps.importers import read_tap_records
from oracle import arithmetic as arithmetics
from oracle.artifacts import make_artifact
from oracle.kit import EXACT
from oracle.ops.rope import formula
from oracle.readings import Rounded
from parity.case import Case
from parity.cli import cli
from parity.comparing import compare_dump
from parity.errors import UsageError
from parity.importers import Imported, import_recording
from parity.making import drafter_case
from parity.models import open_case_model, run
from parity.report import Report

STRATA = arithmetics.named("strata")
PAGE, PROMPT, BLOCK = 4, 11, 5


@pytest.fixture(scope="module")
def case(tmp_path_factory) -> Case:
    """A prompt, a block, a commit of three rows, and the block that is recorded (cycle 1)."""
    files = make_artifact("qwen38-flash-next", "tiny", "bf16", tmp_path_factory.mktemp("strata"), seed=3)
    return drafter_case(*files, appends=(8, PROMPT - 8), accepts=(2,), block=BLOCK, seed=1)


@pytest.fixture(scope="module")
def stages(case: Case) -> dict[tuple[int, str], np.ndarray]:
    found = {}

    def tape(stage, value, reading):
        found[stage.key] = np.asarray(value.data)
        return value

    run(case, Rounded(STRATA), tape)
    return found


class Recorder:
    """The files the engine writes for the last block of the case; ``put`` replaces one."""

    def __init__(self, folder: Path, case: Case, stages) -> None:
        self.folder, self.case, self.stages = folder, case, stages
        folder.mkdir()
        self.step = len(case.steps) - 1
        self.anchor, self.rows = case.steps[self.step].at, len(case.steps[self.step].array)
        ids = case.steps[self.step].array
        self.plain("meta", self.anchor, self.rows, int(ids[0]), int(ids[1]), PAGE)
        self.plain("pool_meta", self.anchor - 1, (self.anchor - 1) // PAGE, 0)
        self.put("tapsin", self.stages[self.step - 1, "draft.taps"])
        self.put("ctx", self.stages[self.step - 1, "draft.ctx"])
        self.put("ctx_b0", self.stages[0, "draft.ctx"])
        self.put("ctx_b8", self.stages[1, "draft.ctx"])
        self.put("emb", self.of("embed"))
        for layer in range(self.layers):
            self.layer(layer)
        self.put("final_norm", self.of("final_norm"))
        self.put("head_logits", self.of("logits"))
        self.put("head_picks", self.of("pick").astype(np.int32).view(np.float32))
        self.words("head_act_q8", q8_1(self.of("final_norm")))

    @property
    def layers(self) -> int:
        return sum(path.endswith("h_mlp") for step, path in self.stages if step == self.step)

    def of(self, name: str, layer: int | None = None) -> np.ndarray:
        return self.stages[self.step, f"draft.{'' if layer is None else f'L{layer}.'}{name}"]

    def layer(self, n: int) -> None:
        end = self.anchor + self.rows
        pages = -(-end // PAGE)
        table = {"xn": "xn", "qraw": "q_raw", "qnormed": "q_norm", "q": "q_rope", "k": "k_rope", "v": "v", "attn": "attn"}
        for name, stage in (table | {"h_attn": "h_attn", "h_mlp": "h_mlp"}).items():
            self.put(f"{name}{n}", self.of(stage, n))
        record = np.array([[end - 1, end, end // PAGE, end]] * self.rows, np.int32)
        self.put(f"steps{n}", record.view(np.float32))
        self.put(f"pt{n}", np.arange(pages, dtype=np.int32).view(np.float32))
        for kind in "kv":
            self.put(f"{kind}pool{n}", paged(self.cells(kind, n), pages))

    def cells(self, kind: str, layer: int) -> np.ndarray:
        return self.of(f"{kind}_cells", layer).astype(np.float16).astype(np.float32)

    def put(self, name: str, values: np.ndarray) -> None:
        flat = np.ascontiguousarray(values, np.float32).ravel()
        (self.folder / f"{name}.bin").write_bytes(struct.pack("<I", flat.size) + flat.tobytes())

    def words(self, name: str, raw: bytes) -> None:
        (self.folder / f"{name}.bin").write_bytes(struct.pack("<I", len(raw) // 4) + raw)

    def plain(self, name: str, *values: int) -> None:
        (self.folder / f"{name}.bin").write_bytes(struct.pack(f"<{len(values)}I", *values))

    def imported(self, tmp_path: Path) -> Imported:
        return import_recording("strata", self.folder, self.case, tmp_path / "dump")


def paged(cells: np.ndarray, pages: int) -> np.ndarray:
    """[cell, head, dim] as [page][head][slot][dim]; the last page's spare slots hold anything."""
    spare = np.full((pages * PAGE - len(cells), *cells.shape[1:]), 0.25, np.float32)
    return np.concatenate([cells, spare]).reshape(pages, PAGE, *cells.shape[1:]).transpose(0, 2, 1, 3)


def q8_1(x: np.ndarray) -> bytes:
    blocks = x.reshape(-1, 32).astype(np.float32)
    d = np.abs(blocks).max(1) / 127
    q = np.rint(blocks / d[:, None]).astype(np.int8)
    made = [struct.pack("<ee", d[i], d[i] * q[i].astype(int).sum()) + q[i].tobytes() for i in range(len(blocks))]
    return b"".join(made)


@pytest.fixture
def recorder(case, stages, tmp_path) -> Recorder:
    return Recorder(tmp_path / "stages", case, stages)


def check_healthy(report: Report) -> None:
    """No divergence, but for context cells: their keys before f16 are not in the directory, so one may fall to the other side."""
    for d in report.divergences:
        assert d.stage.endswith("_cells") and abs(d.candidate - d.oracle) <= 2.0**-10 * abs(d.oracle), (d.stage, d.candidate, d.oracle)


def test_a_healthy_directory_is_the_block_and_its_context(recorder, case, tmp_path):
    done = recorder.imported(tmp_path)
    assert not done.findings and not done.unmapped
    assert {
        (0, "draft.ctx"),
        (1, "draft.ctx"),
        (recorder.step - 1, "draft.taps"),
        (recorder.step, "draft.L1.v_cells"),
    } <= done.placed.keys()
    report = compare_dump(case, open_dump(tmp_path / "dump"), STRATA, mode="local")
    check_healthy(report)
    assert {s.dtype for s in report.stages if s.stage.endswith("_cells")} == {"f16"}
    assert any(line.startswith(f"{recorder.step}:draft.L{{n}}.mlp_up") for line in done.missing)


def test_the_oldest_names_and_meta_are_read(recorder, tmp_path):
    for name in [p.stem for p in recorder.folder.iterdir()]:
        if name not in ("meta", "emb", "xn0", "qraw0", "qnormed0", "q0", "k0", "v0", "attn0", "h_attn0", "h_mlp0", "final_norm"):
            (recorder.folder / f"{name}.bin").unlink()
    for new, old in (("qraw0", "q_raw"), ("qnormed0", "q_normed")):
        (recorder.folder / f"{new}.bin").rename(recorder.folder / f"{old}.bin")
    recorder.plain("meta", recorder.anchor, recorder.rows)
    done = recorder.imported(tmp_path)
    assert {path for _, path in done.placed} >= {"draft.L0.q_raw", "draft.L0.q_norm"} and not done.findings
    assert f"{recorder.step}:draft.L{{n}}.xn (4 layers)" in done.missing


def fault_f16_as_bf16(r: Recorder) -> None:
    words = np.ascontiguousarray(paged(r.cells("k", 1), -(-(r.anchor + r.rows) // PAGE))).astype(np.float16).view(np.uint16)
    r.put("kpool1", (words.astype(np.uint32) << 16).view(np.float32))


def fault_stale_cell(r: Recorder) -> None:
    cells = r.cells("v", 0)
    cells[r.anchor + 1] = cells[0]
    r.put("vpool0", paged(cells, -(-len(cells) // PAGE)))


def fault_pool_f32(r: Recorder) -> None:
    r.put("kpool0", paged(r.of("k_cells", 0).astype(np.float32) * np.float32(1.0001), -(-(r.anchor + r.rows) // PAGE)))


def fault_pages(r: Recorder) -> None:
    pages = -(-(r.anchor + r.rows) // PAGE)
    r.put("pt1", np.roll(np.arange(pages, dtype=np.int32), 1).view(np.float32))


def fault_steps(r: Recorder) -> None:
    r.put("steps0", np.full((r.rows, 4), r.anchor + r.rows - 1, np.int32).view(np.float32))


def fault_steps_converted(r: Recorder) -> None:
    end = r.anchor + r.rows
    r.put("steps0", np.array([[end - 1, end, end // PAGE, end]] * r.rows, np.float32))


def fault_mask_row(r: Recorder) -> None:
    rows = r.of("embed").astype(np.float32).copy()
    rows[3, 0] += 1
    r.put("emb", rows)


def fault_anchor_row(r: Recorder) -> None:
    r.put("emb", np.repeat(r.of("embed")[1:2], r.rows, 0))


def fault_nan(r: Recorder) -> None:
    rows = r.of("h_mlp", 0).astype(np.float32).copy()
    rows[2, 3] = np.nan
    r.put("h_mlp0", rows)


def fault_q8(r: Recorder) -> None:
    r.words("head_act_q8", q8_1(np.roll(r.of("final_norm"), 1, 0)))


def fault_token(r: Recorder) -> None:
    ids = r.case.steps[r.step].array
    r.plain("meta", r.anchor, r.rows, int(ids[0]) + 1, int(ids[1]), PAGE)


def fault_pool_meta(r: Recorder) -> None:
    r.plain("pool_meta", r.anchor, r.anchor // PAGE, 0)


def fault_context(r: Recorder) -> None:
    rows = r.stages[1, "draft.ctx"]
    r.put("ctx_b7", np.concatenate([rows[:1] * 2, rows]))


FAULTS = {
    fault_f16_as_bf16: "kpool1: its f16 words were widened as if they were bf16",
    fault_stale_cell: "vpool0: cell {cell}, head 0 is not row 1 of v0 in f16",
    fault_pool_f32: "kpool0: expected f16 values widened to f32",
    fault_pages: "pt1: expected the pages in order, found [",
    fault_steps: "steps0: row 0 is [{last}, {last}, {last}, {last}], expected",
    fault_steps_converted: "its integers were converted to floats, not copied",
    fault_mask_row: "emb: expected the same mask row in rows 1 to 4, found others in rows [3]",
    fault_anchor_row: "emb: row 0 is the mask's",
    fault_nan: "h_mlp0: 1 of its values are not finite",
    fault_q8: "head_act_q8: row 0 is not final_norm",
    fault_token: "meta: the anchor is token",
    fault_pool_meta: "pool_meta: expected the last context row in cell",
    fault_context: "position 7 differs from what another file",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
def test_every_mistake_of_a_recording_is_named(fault, recorder, tmp_path):
    fault(recorder)
    text = FAULTS[fault].format(cell=recorder.anchor + 1, last=recorder.anchor + recorder.rows - 1)
    found = recorder.imported(tmp_path).findings
    assert any(text in line for line in found), found


def test_pools_whose_words_were_misread_are_read_again_and_then_agree(recorder, case, tmp_path):
    fault_f16_as_bf16(recorder)
    done = recorder.imported(tmp_path)
    assert len(done.findings) == 1
    check_healthy(compare_dump(case, open_dump(tmp_path / "dump"), STRATA, mode="local"))


def test_the_staging_race_of_the_positions_is_found_in_an_imported_directory(recorder, case, stages, tmp_path):
    """`specs/qwen38-flash-next.md` 8.3: query row 0's head h is rotated to P + h // 2."""
    q = recorder.of("q_rope", 1).astype(np.float64).copy()
    heads = q.shape[1]
    raw = recorder.of("q_norm", 1)[:1].astype(np.float64)
    rope = open_case_model(case).drafter.dialect.rope
    offsets = np.array([[min(h // 2, recorder.rows - 1) for h in range(heads)]])
    q[0] = formula(EXACT, raw, recorder.anchor + offsets, rope)[0]
    recorder.put("q1", q)
    recorder.imported(tmp_path)
    report = compare_dump(case, open_dump(tmp_path / "dump"), STRATA, mode="local")
    first = next(d for d in report.divergences if not d.stage.endswith("_cells"))
    assert (first.stage, first.row) == ("draft.L1.q_rope", 0)


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("meta", b"", "expected 5 u32"),
        ("meta", struct.pack("<5I", 14, 5, 0, 0, 0), "expected pages of 1 to"),
        ("xn0", struct.pack("<I", 7) + bytes(8), "expected a u32 count and as many values, found 7 in a file of 2"),
        ("xn0", bytes(7), "found 7 bytes; truncated"),
        ("xn0", b"", "an empty file"),
    ],
)
def test_broken_files_are_refused(name, data, says, recorder, tmp_path):
    (recorder.folder / f"{name}.bin").write_bytes(data)
    with pytest.raises(DumpError, match=says):
        recorder.imported(tmp_path)


def test_another_block_another_shape_and_another_folder_are_refused(recorder, case, tmp_path):
    recorder.put("xn0", np.zeros(10))
    with pytest.raises(UsageError, match=r"xn0.bin: has 10 values, draft.L0.xn has \[5, "):
        recorder.imported(tmp_path)
    recorder.plain("meta", recorder.anchor + 1, recorder.rows, 0, 0, PAGE)
    with pytest.raises(UsageError, match="holds a block of 5 rows at 15; the case's blocks: 5 rows at 11, 5 rows at 14"):
        import_recording("strata", recorder.folder, case, tmp_path / "other")
    (recorder.folder / "meta.bin").unlink()
    with pytest.raises(DumpError, match=r"expected meta\.bin"):
        import_recording("strata", recorder.folder, case, tmp_path / "third")


def test_a_file_that_is_no_stage_is_named(recorder, tmp_path):
    recorder.put("secret0", np.zeros(3))
    assert recorder.imported(tmp_path).unmapped == ["secret0"]


def record(source: int, position: int, taps: np.ndarray, flag: int = 0) -> bytes:
    n, rows, width = taps.shape
    return struct.pack("<7I", 0x31504644, source, position, rows, n, width, flag) + np.ascontiguousarray(taps, np.float32).tobytes()


@pytest.fixture
def paths(tmp_path) -> tuple[Path, Path, np.ndarray]:
    """Run A: prompt 0..7, its last token in a window. Run B: prompt 0..8 and a window; both slightly apart."""
    rng = np.random.default_rng(2)
    taps = rng.standard_normal((5, 12, 64)).astype(np.float32)
    near = taps + 0.03 * rng.standard_normal(taps.shape).astype(np.float32)
    (tmp_path / "a").write_bytes(record(0, 0, taps[:, :7], 1) + record(1, 7, near[:, 7:8]))
    (tmp_path / "b").write_bytes(record(0, 0, taps[:, :5], 1) + record(0, 5, taps[:, 5:8], 1) + record(1, 8, near[:, 8:10]))
    return tmp_path / "a", tmp_path / "b", near


def gate(a: Path, b: Path):
    return CliRunner().invoke(cli, ["import", "strata-taps", str(a), "--against", str(b)], standalone_mode=False)


def test_the_gate_compares_the_window_path_with_the_prompt_path(paths):
    result = gate(*paths[:2])
    assert result.return_value == 0 and "5 of 5 taps agree" in result.output


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda taps: taps[[0, 2, 1, 3, 4], 7:8], "position 7, tap 1: cosine -?0.* it is the prompt path's tap 2"),
        (lambda taps: taps[:, 6:7], "position 7, tap 0: .* it is the prompt path's position 6"),
        (lambda taps: taps[:, 7:8] * 1.25, "position 7, tap 0: cosine 0.99.*, relative 0\\.2"),
        (lambda taps: taps[:, 7:8] * np.nan, "position 7, tap 0: .* not finite"),
    ],
)
def test_wrong_wiring_fails_the_gate_and_is_named(wrong, says, paths):
    a, b, near = paths
    a.write_bytes(record(1, 7, wrong(near)))
    result = gate(a, b)
    assert result.return_value == 1 and re.search(says, result.output), result.output


def test_a_gate_without_a_common_position_is_no_pass(paths):
    a, b, near = paths
    a.write_bytes(record(1, 11, near[:, 11:12]))
    assert isinstance(gate(a, b).exception, UsageError)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"x", "expected a header of 28 bytes, found 1"),
        (bytes(28), "expected the magic"),
        (struct.pack("<7I", 0x31504644, 2, 0, 1, 1, 1, 0), "expected source 0"),
        (struct.pack("<7I", 0x31504644, 0, 0, 1, 65, 1, 0), "within limits"),
        (struct.pack("<7I", 0x31504644, 0, 0, 1, 1, 2, 0) + bytes(4), "expected 8 bytes of values, found 4; truncated"),
        (record(0, 0, np.zeros((1, 1, 2))) + record(0, 0, np.zeros((1, 1, 3))), "expected 1 taps of 2 as in the records before"),
    ],
)
def test_broken_tap_records_are_refused(data, says, tmp_path):
    (tmp_path / "t").write_bytes(data)
    with pytest.raises(DumpError, match=says):
        read_tap_records(tmp_path / "t")
