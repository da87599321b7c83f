"""Somebody's own engine, compiled by the emulator's CMake function, as a candidate: a race or a hazard is the verdict, with both lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parity.cli import main
from tests.emu.conftest import ENGINE, line


def run(library: Path, report: Path, schedule: str) -> int:
    options = ["--family", "qwen3", "--weights", "f32", "--context", "3", "--entry", "op", "--members", "2", "--quiet"]
    with pytest.raises(SystemExit) as ended:
        main(["run", *options, "--candidate", str(library), "--schedule", schedule, "--json", str(report)])
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    ("mistake", "marks"),
    [("", ()), ("race", ("engine.read", "engine.write")), ("hazard", ("engine.copy", "engine.rewrite"))],
)
def test_a_finding_is_the_verdict_and_names_both_lines(
    planted_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    mistake: str,
    marks: tuple[str, ...],
) -> None:
    """Where the copies run at once and threads in order, the values are right: only the finding tells."""
    monkeypatch.setenv("ENGINE_MISTAKE", mistake)
    status = run(planted_path, tmp_path / "report.json", "eager")
    said = capsys.readouterr().out
    report = json.loads((tmp_path / "report.json").read_text())
    assert status == (1 if mistake else 0), said
    assert report["verdict"] == (mistake or "parity")
    assert report["candidate"]["where"] == "emulated"
    assert said.startswith((mistake or "parity").upper()) and all(line(m, ENGINE) in said for m in marks)
    if mistake:
        assert set(report["findings"][0]["places"]) == {line(m, ENGINE) for m in marks}
