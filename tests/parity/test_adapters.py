"""Adapters as a person meets them: what is missing, what it is called, what it declares."""

from __future__ import annotations

from importlib import util
from pathlib import Path

import pytest

from oracle import arithmetic as arithmetics
from parity import candidates
from parity.adapters import ADAPTERS
from parity.backends import survey
from parity.errors import UsageError

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_engine_that_is_not_installed_says_how_to_get_it(name, monkeypatch):
    monkeypatch.setattr(util, "find_spec", lambda package: None)
    adapter = ADAPTERS[name]
    with pytest.raises(UsageError, match=rf"candidate {name}: the Python package {adapter.distribution} is not installed: pip install"):
        adapter.run(None, Path("dump"))
    assert f"{adapter.extra} = [" in (ROOT / "pyproject.toml").read_text()
    assert not next(entry for entry in survey() if entry["name"] == name)["ready"]


@pytest.mark.parametrize("name", ADAPTERS)
def test_what_it_declares_can_be_named(name):
    assert candidates.parse(name).kind == "adapter"
    assert arithmetics.named(ADAPTERS[name].arithmetic) == candidates.declared(candidates.parse(name), None)
