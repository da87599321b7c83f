"""docs/loader-rules.md is honest: every rule it lists has its test, and every refusal that is tested is listed."""

from __future__ import annotations

import importlib
import re

import pytest

from tests.artifacts import loader_rules
from tests.artifacts.loader_rules import DOCUMENT, GROUPS, RUNNING, SINGLE, Group, table


@pytest.mark.parametrize("group", GROUPS, ids=lambda g: g.heading)
def test_every_rule_of_a_group_is_a_case_of_its_test_and_the_other_way_round(group: Group) -> None:
    section = DOCUMENT.read_text().split(f"## {group.heading}\n")[1].split("\n## ")[0]
    listed = {line.split(" | ")[0].removeprefix("| ") for line in section.splitlines() if line.startswith("| ") and " | " in line}
    assert listed - {"rule"} == {loader_rules._cell(case) for case in table(group)}, "run python -m tests.artifacts.loader_rules"


def test_every_test_that_the_document_names_exists() -> None:
    named = re.findall(r"tests/(\w+)/(\w+)\.py::(\w+)", DOCUMENT.read_text())
    assert len(named) == len(GROUPS) + len(SINGLE) + len(RUNNING)
    for folder, module, test in named:
        found = getattr(importlib.import_module(f"tests.{folder}.{module}"), test, None)
        assert callable(found), f"{folder}/{module}::{test}"


def test_a_table_that_is_gone_is_noticed() -> None:
    with pytest.raises(LookupError, match="is not parametrised with one table"):
        table(GROUPS[0]._replace(test="test_that_was_removed"))
