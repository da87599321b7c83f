"""Two streams of token ids and their target: the oracle's margin where they part."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from oracle.models import open_target
from parity.cli import cli, main
from parity.token_streams import read_ids

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from parity.cli.build import WEIGHTS, seeded

    return seeded("llama", WEIGHTS["llama"], 0, tmp_path_factory.mktemp("m"))[0]


def greedy(model: Path, count: int) -> list[int]:
    target, ids = open_target(model), list(PROMPT)
    for _ in range(count):
        ids.append(int(target.window(ids).pick[-1]))
    return ids[len(PROMPT) :]


def ties(tmp_path: Path, model: Path, a: list[int], b: list[int], *more: str) -> dict[str, object]:
    for name, ids in (("a.json", a), ("b.txt", b), ("p.txt", PROMPT)):
        (tmp_path / name).write_text(json.dumps(ids) if name.endswith("json") else " ".join(map(str, ids)))
    words = ["ties", str(tmp_path / "a.json"), str(tmp_path / "b.txt"), "--model", str(model), "--prompt", str(tmp_path / "p.txt"), *more]
    found: dict[str, object] = json.loads(CliRunner().invoke(cli, [*words, "--json", "-"], standalone_mode=False).output)
    assert CliRunner().invoke(cli, words, standalone_mode=False).return_value == found["exit_status"]
    return found


def test_the_stream_that_chose_wrong_is_named(tmp_path: Path, model: Path) -> None:
    a = greedy(model, 6)
    logits = open_target(model).window([*PROMPT, *a[:3]]).logits[-1]
    worst = int(logits.argmin())
    found = ties(tmp_path, model, a, [*a[:3], worst, 7, 7])
    assert found["verdict"] == "divergence" and found["culprit"] == "B" and found["exit_status"] == 1
    assert (found["position"], found["a"], found["b"], found["best"]) == (3, a[3], worst, a[3])
    assert found["gaps"] == [0, pytest.approx(logits.max() - logits.min())]
    found = ties(tmp_path, model, [*a[:3], worst], [*a[:3], int(np.argsort(logits)[1])])
    assert found["culprit"] == "both"


def test_a_narrow_margin_under_a_coarse_arithmetic_is_a_tie(tmp_path: Path, model: Path) -> None:
    """The same two streams: beyond doubt in f32, a tie where every value is stored in bf16."""
    a = greedy(model, 12)
    target = open_target(model)
    gaps = []
    for n in range(len(a)):
        order = np.argsort(y := target.window([*PROMPT, *a[:n]]).logits[-1])
        gaps.append((float(y[order[-1]] - y[order[-2]]), n, int(order[-2])))
    gap, at, second = min(gaps)
    b = [*a[:at], second]
    assert gap > 0 and ties(tmp_path, model, a[: at + 1], b)["culprit"] == "B"
    found = ties(tmp_path, model, a[: at + 1], b, "--arithmetic", "bf16")
    assert found["verdict"] == "tie" and found["exit_status"] == 0


def test_equal_streams_and_a_short_one(tmp_path: Path, model: Path) -> None:
    assert ties(tmp_path, model, [1, 2, 3], [1, 2, 3])["verdict"] == "same"
    found = ties(tmp_path, model, [1, 2, 3], [1, 2])
    assert found["verdict"] == "length" and found["exit_status"] == 3 and found["common"] == 2


@pytest.mark.parametrize("text", ["1 x 3", "[1, 2", "[1, -2]", "[1, 2.5]", "[true]", "1 99999999999", '{"a": 1}', "\xff"])
def test_what_is_no_list_of_ids_is_refused(tmp_path: Path, text: str) -> None:
    from parity.errors import UsageError

    (tmp_path / "a.txt").write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=r"expected (an id|token ids)"):
        read_ids(tmp_path / "a.txt")


def test_usage_is_told(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("1 2")
    (tmp_path / "b.txt").write_text("9 2")
    (tmp_path / "c.txt").write_text("1 1000000")
    a, b, c = (str(tmp_path / n) for n in ("a.txt", "b.txt", "c.txt"))
    for words, message in (
        ([a, b], "name the target with --model"),
        ([a, b, "--model", str(model)], "part at their first token and there is no prompt"),
        ([a, c, "--model", str(model)], "outside the vocabulary"),
        ([a, str(tmp_path / "no.txt"), "--model", str(model)], "cannot be read"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["ties", *words])
        err = capsys.readouterr().err
        assert ended.value.code == 2 and message in err and err.count("\n") == 1
