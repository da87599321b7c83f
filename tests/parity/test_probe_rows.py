"""`parity probe rows`: exact candidates open the gate, a row that differs closes it, and what is remembered is keyed by what ran."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from oracle.artifacts import make_artifact
from oracle.models import open_target
from parity.cli import main
from parity.errors import UsageError
from parity.speculating import rows


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    small = {"hidden": 32, "intermediate": 32, "heads": 4, "kv_heads": 2, "head_dim": 8, "vocab": 67, "layers": 2}
    return make_artifact("llama", "tiny", "f32", tmp_path_factory.mktemp("rows"), seed=7, **small)[0]


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as status:
        main(["probe", "rows", *args])
    return int(status.value.code or 0)


def test_the_cpu_library_gives_the_bytes_of_single_rows(target: Path):
    report = rows.probe(target, "cpu", 3, contexts=(8,))
    assert report.exact and report.allowed and report.verdict == "parity"
    assert [w.width for w in report.widths] == [2, 3] and all(w.total_bytes == w.rows * 67 * 4 for w in report.widths)


def test_a_mistake_in_rows_that_only_a_window_has_closes_the_gate(target: Path, tmp_path: Path, capsys):
    memory = tmp_path / "memory.json"
    args = ["--target", str(target), "--candidate", "f32", "--block", "2", "--context", "8", "--members", "2", "--memory", str(memory)]
    planted = ["--fault", "rope.position:stage=target.L1.q_rope,rows=1,offset=2"]
    assert run(*args, *planted) == 1
    out = capsys.readouterr().out
    assert out.startswith("DIVERGENCE: width 2 after 8 rows differs from single rows at row 1") and "gate: closed" in out
    assert run(*args, *planted, "--allow-inexact") == 0, "the override opens it, loudly"
    assert "remembered" in capsys.readouterr().out
    entries = json.loads(memory.read_text())
    assert len(entries) == 1 and entries[0]["exact"] is False, "an override is never remembered"


def test_a_candidate_that_does_not_repeat_itself_is_the_control_s_finding(target: Path, monkeypatch: pytest.MonkeyPatch):
    made = iter(range(100))
    monkeypatch.setattr(rows._Arms, "_run", lambda self, steps: [np.full((len(s.array), 67), float(next(made))) for s in steps])
    report = rows.probe(target, "f32", 3, contexts=(8,))
    assert not report.exact and "not repeatable" in report.control and report.widths == [] and report.exit_status == 1


def test_flips_and_ulps_of_what_differs(target: Path, monkeypatch: pytest.MonkeyPatch):
    prompt, block_ids = rows.tokens(0, 8, 2, 67)
    base = open_target(target).window([*prompt, *block_ids]).logits[7:].astype(np.float32)

    def fake(self, steps):
        wide = len(steps) == 2
        out = [base[:1]] if wide else [base[i : i + 1] for i in range(3)]
        if wide:
            block = base[1:].copy()
            block[1, 5] = np.nextafter(block[1, 5], np.float32(9))
            block[1, 6] = block[1].max() + 1
            out.append(block)
        return out

    monkeypatch.setattr(rows._Arms, "_run", fake)
    w = rows.probe(target, "f32", 2, contexts=(8,), members=2).widths[0]
    assert w.first == 1 and w.elements == 2 and w.largest_ulps > 1000
    assert [(f.row, f.block, f.verdict) for f in w.flips] == [(1, 6, "divergence")]


def test_a_verdict_is_keyed_by_weights_geometry_widths_and_backend(target: Path, tmp_path: Path):
    t = open_target(target)
    keys = [rows.identity(t, c, n) for c, n in (("cpu", 4), ("f32", 4), ("cpu", 8))]
    assert len({json.dumps(k) for k in keys}) == 3 and all(k["weights"] and k["family"] == "llama" for k in keys)
    memory = tmp_path / "m.json"
    assert rows.remembered(memory, keys[0]) is None
    rows.remember(memory, rows.RowsReport(keys[0], [], ""))
    assert rows.remembered(memory, keys[0])["exact"] is False and rows.remembered(memory, keys[1]) is None
    memory.write_text("{}")
    with pytest.raises(UsageError, match="not a memory of row probes"):
        rows.remembered(memory, keys[0])


def test_a_width_of_one_is_nothing_to_probe(target: Path):
    report = rows.probe(target, "f64", 1, contexts=(4,))
    assert report.verdict == "inconclusive" and not report.allowed and report.exit_status == 3
