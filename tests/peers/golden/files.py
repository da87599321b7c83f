"""Golden files: what a peer gave, with the versions that gave it, as JSON under ``tests/golden``."""

from __future__ import annotations

import json
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "golden"


def write(name: str, script: str, packages: tuple[str, ...], contents: dict[str, Any]) -> Path:
    """Write ``tests/golden/<name>.json``. Floats keep all their digits, so the file gives back the very same float64."""
    versions = {p: metadata.version(p) for p in ("numpy", *packages)} | {"python": platform.python_version()}
    header = {"made_by": f"python -m {script}", "versions": versions, "arithmetic": "float64, torch on the CPU"}
    lines = [f'"{key}": {json.dumps(value)}' for key, value in (header | contents).items()]
    path = FOLDER / f"{name}.json"
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return path


def read(name: str) -> dict[str, Any]:
    """The contents of ``tests/golden/<name>.json``."""
    return dict(json.loads((FOLDER / f"{name}.json").read_text()))
