"""A case: all that is needed to reproduce a run (DESIGN section 2), as a folder that a worker process reads.

``case.json`` holds the model's paths with their SHA-256, the dialect and the ordered steps; ``inputs.safetensors`` the arrays.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.errors import IdentityMismatch, UsageError

CASE_FORMAT, CASE_VERSION = "dflash-parity-case", 1
MAX_CASE_BYTES, MAX_STEPS = 4 << 20, 4096
KINDS = {"append": ("features",), "propose": ("ids",), "window": ("ids",)}


@dataclass(frozen=True, eq=False)
class Step:
    """One step of a case.

    ``append``: ``array`` float32 features [row, taps * target hidden] at positions ``at …``. ``propose``: int64 block ids [row]
    at ``at …``. ``window``: int64 token ids [row], after everything before (``at`` = the rows kept before them).
    """

    kind: str
    array: NDArray[Any]
    at: int

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind, "at": self.at, "rows": len(self.array)}


def append(features: Any, start: int) -> Step:
    return Step("append", np.ascontiguousarray(features, np.float32), int(start))


def propose(ids: Any, position: int) -> Step:
    return Step("propose", np.ascontiguousarray(ids, np.int64), int(position))


def window(ids: Any, at: int) -> Step:
    return Step("window", np.ascontiguousarray(ids, np.int64), int(at))


@dataclass(frozen=True, eq=False)
class Case:
    """``role``: drafter or target. ``model``: its file or folder; ``borrowed``: whose embedding and head a drafter borrows.

    ``identity``: path -> SHA-256 of every artifact file, checked before a run. ``notes``: free text facts for reports.
    """

    name: str
    family: str
    role: str
    model: Path
    steps: tuple[Step, ...]
    borrowed: Path | None = None
    dialect: dict[str, str] = field(default_factory=dict)
    seed: int | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None

    @cached_property
    def identity(self) -> dict[str, str]:
        """SHA-256 of each file of the model and of what it borrows from."""
        from parity.models import open_case_model

        return open_case_model(self).identity

    def describe(self) -> dict[str, Any]:
        """The JSON form: what a dump and a report carry."""
        return {
            "name": self.name,
            "family": self.family,
            "role": self.role,
            "model": str(self.model),
            "borrowed": None if self.borrowed is None else str(self.borrowed),
            "dialect": self.dialect,
            "seed": self.seed,
            "identity": self.identity,
            "notes": self.notes,
            "steps": [s.describe() for s in self.steps],
        }

    def save(self, folder: Path) -> Path:
        """Write the case; paths to artifacts become absolute. Returns the folder."""
        from safetensors.numpy import save_file

        folder.mkdir(parents=True, exist_ok=True)
        whole = replace(self, model=self.model.resolve(), borrowed=self.borrowed.resolve() if self.borrowed else None)
        arrays = {f"step.{i}": s.array for i, s in enumerate(self.steps)}
        save_file(arrays, folder / "inputs.safetensors")
        text = {"format": CASE_FORMAT, "version": CASE_VERSION, **whole.describe()}
        (folder / "case.json").write_text(json.dumps(text, indent=1))
        return folder


def load(folder: Path) -> Case:
    """Read a case folder. `UsageError` names what is wrong with it, and where."""
    from safetensors import SafetensorError, safe_open

    file = folder / "case.json"
    try:
        if file.stat().st_size > MAX_CASE_BYTES:
            raise UsageError(f"{file}: larger than {MAX_CASE_BYTES} bytes: not a case")
        raw = json.loads(file.read_text())
    except OSError as e:
        raise UsageError(f"{file}: cannot be read: {e.strerror}; expected a case folder as `parity case make` writes it") from None
    except (ValueError, RecursionError) as e:
        raise UsageError(f"{file}: not JSON ({e})") from None
    if not isinstance(raw, dict) or raw.get("format") != CASE_FORMAT or raw.get("version") != CASE_VERSION:
        raise UsageError(f"{file}: expected format {CASE_FORMAT!r} version {CASE_VERSION}")
    steps = _steps(file, raw)
    try:
        with safe_open(folder / "inputs.safetensors", framework="numpy") as arrays:
            made = tuple(_step(file, i, s, arrays) for i, s in enumerate(steps))
    except (OSError, SafetensorError) as e:
        raise UsageError(f"{folder / 'inputs.safetensors'}: {e}") from None
    case = Case(
        _text(file, raw, "name"),
        _text(file, raw, "family"),
        _text(file, raw, "role"),
        _artifact(folder, _text(file, raw, "model")),
        made,
        _artifact(folder, raw["borrowed"]) if isinstance(raw.get("borrowed"), str) else None,
        _strings(file, raw, "dialect"),
        raw.get("seed") if isinstance(raw.get("seed"), int) else None,
        _notes(raw),
        folder,
    )
    if case.role not in ("drafter", "target"):
        raise UsageError(f"{file}: role {case.role!r}: expected drafter or target")
    _check_identity(case, _strings(file, raw, "identity"))
    return case


def _artifact(folder: Path, text: str) -> Path:
    """Where an artifact is: a path as given, or relative to the case's folder (a case that travels)."""
    return Path(text) if Path(text).is_absolute() else (folder / text).resolve()


def _check_identity(case: Case, recorded: dict[str, str]) -> None:
    for path, sha in case.identity.items():
        if path in recorded and recorded[path] != sha:
            raise IdentityMismatch(f"{path}: SHA-256 is {sha}, the case was made with {recorded[path]}: the artifact has changed")


def _text(file: Path, raw: dict[str, Any], key: str) -> str:
    if not isinstance(raw.get(key), str):
        raise UsageError(f"{file}: {key}: expected a string, found {raw.get(key)!r}")
    return str(raw[key])


def _strings(file: Path, raw: dict[str, Any], key: str) -> dict[str, str]:
    value = raw.get(key)
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise UsageError(f"{file}: {key}: expected an object of strings")
    return {str(k): str(v) for k, v in value.items()}


def _notes(raw: dict[str, Any]) -> dict[str, Any]:
    value = raw.get("notes")
    return value if isinstance(value, dict) else {}


def _steps(file: Path, raw: dict[str, Any]) -> list[dict[str, Any]]:
    steps = raw.get("steps")
    if not isinstance(steps, list) or not 0 < len(steps) <= MAX_STEPS or not all(isinstance(s, dict) for s in steps):
        raise UsageError(f"{file}: steps: expected a list of 1 to {MAX_STEPS} objects")
    return steps


def _step(file: Path, index: int, raw: dict[str, Any], arrays: Any) -> Step:
    kind, at, name = raw.get("kind"), raw.get("at"), f"step.{index}"
    if kind not in KINDS or not isinstance(at, int) or at < 0:
        raise UsageError(f"{file}: step {index}: expected a kind of {', '.join(KINDS)} and a position, found {kind!r} at {at!r}")
    if name not in arrays.keys():  # noqa: SIM118
        raise UsageError(f"{file}: step {index}: inputs.safetensors has no {name}")
    array = arrays.get_tensor(name)
    want = (np.float32, 2) if kind == "append" else (np.int64, 1)
    if array.dtype != want[0] or array.ndim != want[1] or len(array) != raw.get("rows"):
        wanted = f"{np.dtype(want[0]).name} with {want[1]} axes and {raw.get('rows')} rows"
        raise UsageError(f"{file}: step {index}: {kind} needs {wanted}, found {array.dtype} {array.shape}")
    return Step(kind, array, at)
