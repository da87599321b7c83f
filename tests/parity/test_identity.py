"""What must be the same before anything is compared: artifacts, geometry, and where weights and experts ran."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dumps import Dump, DumpWriter, open_dump
from parity.cli import cli, main
from parity.diffing import NO_CLAIM, difference, headline
from parity.errors import IdentityMismatch, UsageError
from parity.identity import check_identity, moved, parse_placement


def dump(path: Path, case: object, provenance: dict[str, object], pick: int = 3, value: float = 1.0) -> Dump:
    with DumpWriter(path, case, provenance) as writer:
        writer.put(0, "target.logits", np.full((1, 4), value, np.float32))
        writer.put(0, "target.pick", np.array([pick], np.int32), dtype="i32")
    return open_dump(path)


def placed(size: object) -> dict[str, object]:
    return {"placement": {"expert_cache": size}}


def test_a_dump_that_travelled_is_known_by_its_artifacts_hashes(target, tmp_path):
    described = target.describe()
    here = described | {"identity": {f"/elsewhere/{i}": sha for i, sha in enumerate(described["identity"].values())}}
    check_identity(target, dump(tmp_path / "a", here, {}))
    other = described | {"identity": dict.fromkeys(here["identity"], "0" * 64)}
    with pytest.raises(IdentityMismatch, match="which no file of this case has: another artifact"):
        check_identity(target, dump(tmp_path / "b", other, {}))


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"layers": 3}, "its engine ran with layers 3, this case has 2: another geometry"),
    ],
)
def test_another_geometry_is_refused(target, tmp_path, said, says):
    check_identity(target, dump(tmp_path / "right", target.describe(), {"geometry": {"layers": 2}}))
    with pytest.raises(IdentityMismatch, match=says):
        check_identity(target, dump(tmp_path / "wrong", target.describe(), {"geometry": said}))


@pytest.mark.parametrize(
    ("said", "says"),
    [({"windows": 3}, "expected an object with names of .* found windows"), ([3], r"expected an object .* found \[3\]")],
)
def test_what_is_no_geometry_is_bad_input_and_no_verdict(target, tmp_path, said, says):
    with pytest.raises(UsageError, match=says) as caught:
        check_identity(target, dump(tmp_path / "wrong", target.describe(), {"geometry": said}))
    assert not isinstance(caught.value, IdentityMismatch)


def test_another_dialect_is_refused(drafter, tmp_path):
    with pytest.raises(IdentityMismatch, match=r"has dialect .* not the same run"):
        check_identity(replace(drafter, dialect={"window": "3"}), dump(tmp_path / "a", drafter.describe(), {}))


def test_a_placement_is_plain_values(target, tmp_path):
    with pytest.raises(UsageError, match=r"provenance.placement: expected an object of names and plain values"):
        check_identity(target, dump(tmp_path / "a", target.describe(), {"placement": {"experts": [1, 2]}}))


@pytest.mark.parametrize(("a", "b"), [(placed(4283), placed(4100)), (placed(4283), {}), ({}, placed(4283))])
def test_two_runs_of_other_placements_are_not_compared(tmp_path, a, b):
    """One cache is 1 GiB smaller because a drafter came along: near ties of the target may flip with no mistake anywhere."""
    pair = dump(tmp_path / "a", {}, a), dump(tmp_path / "b", {}, b, pick=2)
    with pytest.raises(IdentityMismatch, match=r"placed their weights differently .* no claim about tokens is made"):
        difference(*pair)
    found = difference(*pair, across_placements=True)
    assert [s.verdict for s in found.stages] == ["same", NO_CLAIM] and found.exit_status == 0
    assert "nothing is claimed of choices across placements (expert_cache" in headline(found)


def test_values_across_placements_are_compared_all_the_same(tmp_path):
    pair = dump(tmp_path / "a", {}, placed(1)), dump(tmp_path / "b", {}, placed(2), pick=2, value=2.0)
    assert [s.verdict for s in difference(*pair, across_placements=True).stages] == ["different", NO_CLAIM]


def test_one_placement_is_compared_token_by_token(tmp_path):
    pair = dump(tmp_path / "a", {}, placed(4283)), dump(tmp_path / "b", {}, placed("4283"), pick=2)
    assert [s.verdict for s in difference(*pair).stages] == ["same", "different"]


def test_placements_in_words():
    assert parse_placement("expert_cache=4283, head = cpu") == {"expert_cache": "4283", "head": "cpu"}
    assert moved({"a": "1"}, {"a": "1", "b": "2"}) == "b unsaid against 2"
    with pytest.raises(UsageError, match="expected KEY=VALUE"):
        parse_placement("4283")


def test_logits_of_other_placements_are_not_classified(tmp_path):
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", np.eye(4, dtype=np.float32))
    files = [str(tmp_path / "a.npy"), str(tmp_path / "b.npy")]
    same = CliRunner().invoke(cli, ["ties", *files, "--placement-a", "expert_cache=1", "--placement-b", "expert_cache=1"])
    assert same.exception is None, same.output
    other = CliRunner().invoke(cli, ["ties", *files, "--placement-a", "expert_cache=1", "--placement-b", "expert_cache=2"])
    assert isinstance(other.exception, IdentityMismatch) and "expert_cache 1 against 2" in str(other.exception)


@pytest.mark.parametrize("json_out", [None, "-", "FILE"])
def test_a_command_ends_with_the_mismatch_as_its_verdict(tmp_path, capsys, json_out):
    """Exit status 1, the verdict first on stdout, or as JSON where it is asked for."""
    dump(tmp_path / "a", {"family": "llama"}, {})
    dump(tmp_path / "b", {"family": "laguna"}, {})
    file = tmp_path / "verdict.json"
    options = [] if json_out is None else ["--json", str(file) if json_out == "FILE" else json_out]
    with pytest.raises(SystemExit) as ended:
        main(["diff", str(tmp_path / "a"), str(tmp_path / "b"), *options])
    out = capsys.readouterr().out
    said = json.loads(out if json_out == "-" else file.read_text()) if json_out else {"verdict": "identity-mismatch", "exit_status": 1}
    assert (ended.value.code, said["exit_status"], said["verdict"]) == (1, 1, "identity-mismatch")
    assert json_out == "-" or (out.startswith("IDENTITY-MISMATCH") and "differs from that of" in out)
