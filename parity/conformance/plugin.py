"""The suite's options: ``-p parity.conformance.plugin``, because pytest reads its command line before the suite's own conftest."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--dlab-library", metavar="PATH", help="The shared library to test, or a name such as cpu.")
    parser.addoption("--dlab-arithmetic", default="f32", metavar="NAME[,KEY=VALUE…]", help="What the library declares of its rounding.")
