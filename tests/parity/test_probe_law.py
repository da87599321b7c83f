"""`parity probe law`: rules that claim to be lossless are, naive ones break at a named token, and anyone's rule can be judged."""

from __future__ import annotations

import json
from typing import Any

import pytest

from oracle.speculation.coins import draw
from oracle.speculation.verification import RULES, Verified
from parity.cli import main


def first_wins(coins: Any, drafts: Any, q: Any, p: Any) -> Verified:
    """Accepts every draft, whatever the target says."""
    return Verified(len(drafts), draw(p[len(drafts)], coins.uniform()))


def raises(coins: Any, drafts: Any, q: Any, p: Any) -> Verified:
    raise IndexError("row 9")


EXACT = RULES["leviathan"].verify
NUMBER = 3


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as status:
        main(["probe", "law", *args])
    return int(status.value.code or 0)


def test_every_named_rule_is_what_it_claims(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json", "-") == 0
    body = json.loads(capsys.readouterr().out)
    assert body["verdict"] == "parity" and {r["rule"] for r in body["rules"]} == set(RULES)
    for r in body["rules"]:
        assert r["lossless"] is RULES[r["rule"]].lossless, r
        assert (r["first"] is None) is r["lossless"]


def test_a_rule_of_one_s_own_is_judged(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--rule", f"{__name__}:EXACT") == 0
    assert run("--rule", f"{__name__}:first_wins", "--seed", "2") == 1
    out = capsys.readouterr().out
    assert f"DIVERGENCE: {__name__}:first_wins is said to be lossless and is not" in out and "first at token 0: token" in out


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ("nothing", "expected all, module:attribute, or one of greedy"),
        ("no.such.module:x", "No module named"),
        (f"{__name__}:absent", "has no attribute"),
        (f"{__name__}:NUMBER", "expected a rule or a function"),
        (f"{__name__}:raises", "IndexError: row 9"),
    ],
)
def test_what_is_no_rule_is_refused(rule: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--rule", rule) == 2
    assert told in capsys.readouterr().err
