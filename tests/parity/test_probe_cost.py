"""`parity probe cost`: the Laguna chapter's tables through the command line, a claimed line that they refute, and tables that are none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from oracle.speculation.costs import claim
from parity.cli import main

WIDTHS = [2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16]
MS = [80, 83, 85, 89, 92, 97, 101, 106, 109, 116, 127]
ACCEPTED = [0.84, 1.52, 2.21, 2.55, 2.90, 3.06, 3.33, 3.33, 3.42, 3.52, 3.55]
HOST = [33, 33, 34, 37, 36, 37, 37, 36, 38, 40, 38]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = zip(WIDTHS, MS, ACCEPTED, HOST, strict=True)
    (tmp_path / "a.csv").write_text("width,ms,accepted,host_ms,remark\n" + "".join(",".join(map(str, r)) + ",x\n" for r in rows))
    return tmp_path / "a.csv"


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as status:
        main(["probe", "cost", *args])
    return int(status.value.code or 0)


def test_the_line_its_doubts_and_what_it_pays(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(table), "--classic", "32.07") == 0
    out = capsys.readouterr().out
    assert out.startswith("FIT: 72.19 + 3.548 per row - 11 points")
    assert "sum of squares 16.3" in out and "largest residual 1.95" in out
    assert "without it" in out and "breaks even at 3.30 accepted" in out and "fastest at width 8: 31.38 tokens per second" in out
    assert run(str(table), "--json", "-") == 0
    body = json.loads(capsys.readouterr().out)
    assert body["schema"] == "dflash-parity-cost/1" and abs(body["fit"]["per_row"] - 3.548) < 1e-3 and len(body["fit"]["left_out"]) == 11


def test_a_claimed_line_is_judged_by_the_points(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(table), "--claim", "72,3.55") == 0
    assert capsys.readouterr().out.startswith("PARITY: 72 + 3.55 per row")
    assert run(str(table), "--claim", "77,3.1") == 1
    out = capsys.readouterr().out
    assert out.startswith("DIVERGENCE: 77 + 3.1 per row is not what these points say") and "sum of squares 74.8" in out
    assert "misses its narrowest point by -3.2" in out


def test_a_point_that_carries_the_line_and_widths_that_never_pay_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text("width\tms\taccepted\n2\t80\t0.1\n3\t83.5\t0.1\n4\t87.2\t0.1\n5\t90.4\t0.1\n16\t300\t0.2\n")
    assert run(str(tmp_path / "t.csv"), "--classic", "30") == 0
    out = capsys.readouterr().out
    assert "without width 16 the line is" in out and "this point carries it" in out and "no width pays" in out


def test_claims_hold_as_often_as_they_should() -> None:
    """True lines of noisy points are refused in about one case of twenty, a line 3 standard errors off nearly always."""
    rng = np.random.default_rng(5)
    made = [72 + 3.5 * np.array(WIDTHS) + rng.normal(0, 1, len(WIDTHS)) for _ in range(400)]
    refused = sum(not claim(WIDTHS, list(y), 72, 3.5).holds for y in made)
    assert 8 <= refused <= 35
    assert sum(not claim(WIDTHS, list(y), 74, 3.6).holds for y in made) > 390
    exact = [72 + 3.5 * w for w in WIDTHS]
    assert claim(WIDTHS, exact, 72, 3.5).holds and not claim(WIDTHS, exact, 72.001, 3.5).holds


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no column width and no ms"),
        ("width,time\n1,2\n", "no column ms; the header names columns: width (rows of the verify window)"),
        ("width,ms\n1,2\n2,3\n", "expected a time for each of at least 3 different widths"),
        ("width,ms\n1,2\n2,x\n", "t.csv:3: ms: expected a number, found 'x'"),
        ("width,ms\n1.5,2\n", "t.csv:2: width: expected a whole number of rows, found '1.5'"),
        ("width,ms\n1,2,3\n", "t.csv:2: 3 values for 2 columns"),
        ("width,ms\n1,nan\n", "t.csv:2: ms: expected a number"),
        ("width,ms\n" + "9" * (1 << 20), "more than 1048576 bytes"),
    ],
)
def test_a_file_that_is_no_table_is_refused_by_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, told: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    assert run(str(tmp_path / "t.csv")) == 2
    err = capsys.readouterr().err
    assert told in err and "Traceback" not in err


def test_bad_usage(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(table), "--claim", "77") == 2 and "expected two numbers" in capsys.readouterr().err
    assert run(str(tmp_path / "none.csv")) == 2 and "cannot be read" in capsys.readouterr().err
