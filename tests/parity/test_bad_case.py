"""Case folders come from elsewhere: whatever is wrong with one is one clear line and exit status 2."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from oracle.artifacts import ArtifactError, make_artifact
from oracle.drafters.dialect import DialectError
from parity import render
from parity.case import load
from parity.errors import UsageError
from parity.making import drafter_case
from tests.parity.conftest import SMALL


@pytest.fixture(scope="session")
def saved(drafter, tmp_path_factory):
    return drafter.save(tmp_path_factory.mktemp("saved") / "case")


def edited(saved, folder, change):
    """A copy of the case whose parsed case.json went through ``change``."""
    body = json.loads((saved / "case.json").read_text())
    folder.mkdir(exist_ok=True)
    (folder / "case.json").write_text(json.dumps(change(body)))
    (folder / "inputs.safetensors").write_bytes((saved / "inputs.safetensors").read_bytes())
    return folder


def with_step(index, **changes):
    def change(body):
        body["steps"][index] |= changes
        return body

    return change


BAD = {
    "not an object": (lambda b: [b], "format"),
    "another format": (lambda b: b | {"format": "recipe"}, "format"),
    "another version": (lambda b: b | {"version": 99}, "version"),
    "no steps": (lambda b: b | {"steps": []}, "steps"),
    "too many steps": (lambda b: b | {"steps": b["steps"] * 3000}, "steps"),
    "steps of another type": (lambda b: b | {"steps": [1]}, "steps"),
    "an unknown kind": (with_step(0, kind="dance"), "step 0"),
    "a negative position": (with_step(1, at=-1), "step 1"),
    "a position that is no number": (with_step(1, at="seven"), "step 1"),
    "rows that do not match the inputs": (with_step(0, rows=3), "step 0"),
    "ids where features belong": (with_step(2, kind="append"), "step 2"),
    "a step without its array": (lambda b: b | {"steps": [*b["steps"], {"kind": "propose", "at": 20, "rows": 4}]}, "step.5"),
    "a model that is no text": (lambda b: b | {"model": 7}, "model"),
    "a model that is not there": (lambda b: b | {"model": "/nowhere/draft.gguf"}, "nowhere"),
    "a role that does not exist": (lambda b: b | {"role": "spectator"}, "role"),
    "a family of another model": (lambda b: b | {"family": "muse-glimmer"}, "drafter"),
    "a dialect that is no object": (lambda b: b | {"dialect": ["window"]}, "dialect"),
    "an unknown dialect switch": (lambda b: b | {"dialect": {"flux": "1"}}, "flux"),
    "another artifact": (lambda b: b | {"identity": dict.fromkeys(b["identity"], "0" * 64)}, "changed"),
    "nothing to borrow from": (lambda b: b | {"borrowed": None}, "borrow"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_case_is_refused_with_what_is_wrong(saved, tmp_path, what):
    change, said = BAD[what]
    with pytest.raises((UsageError, ArtifactError, DialectError), match="(?i)" + said) as refused:
        load(edited(saved, tmp_path / "case", change))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"format": NaN}', b"null"])
def test_rubbish_for_a_case_is_refused(saved, tmp_path, content):
    (tmp_path / "case.json").write_bytes(content)
    with pytest.raises(UsageError):
        load(tmp_path)


def test_inputs_that_are_absent_cut_or_of_another_type_are_refused(saved, tmp_path):
    folder = edited(saved, tmp_path / "case", lambda b: b)
    whole = (folder / "inputs.safetensors").read_bytes()
    for content in (whole[:-5], whole[:9], b"", b"\xff" * 64):
        (folder / "inputs.safetensors").write_bytes(content)
        with pytest.raises(UsageError, match=r"inputs\.safetensors"):
            load(folder)
    save_file({f"step.{i}": np.zeros((4, 4)) for i in range(5)}, folder / "inputs.safetensors")
    with pytest.raises(UsageError, match="step 0"):
        load(folder)
    (folder / "inputs.safetensors").unlink()
    with pytest.raises(UsageError, match=r"inputs\.safetensors"):
        load(folder)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bytes_of_a_case_are_refused_or_read_never_worse(saved, tmp_path, data):
    text = bytearray((saved / "case.json").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at] = data.draw(st.integers(0, 255))
    folder = tmp_path / "fuzzed"
    folder.mkdir(exist_ok=True)
    (folder / "case.json").write_bytes(bytes(text))
    (folder / "inputs.safetensors").write_bytes((saved / "inputs.safetensors").read_bytes())
    try:
        load(folder)
    except (UsageError, ArtifactError, DialectError) as refused:
        assert str(refused)


def test_a_default_window_is_loud_and_in_every_report(tmp_path, caplog, dumped):
    from dumps import open_dump
    from oracle.arithmetic import named
    from parity.comparing import compare_dump

    made = make_artifact("muse-glimmer", "tiny", "f32", tmp_path / "muse", seed=8, **SMALL, window=None)
    with caplog.at_level(logging.WARNING):
        case = drafter_case(made[0], made[1], family="muse-glimmer", context=5)
    assert any("2048" in r.message for r in caplog.records)
    report = compare_dump(case, open_dump(dumped(case)), named("f32"), mode="local")
    assert report.geometry["window"] == 2048 and report.geometry["window_source"] == "default"
    assert "window 2048 (window_source: default)" in render.text(report)
    assert report.to_json()["geometry"]["window_source"] == "default"
