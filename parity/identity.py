"""What must be the same before two things are compared: artifacts, steps, dialect, geometry, and where what was computed ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parity.case import Case
from parity.errors import IdentityMismatch, UsageError
from parity.models import open_case_model

if TYPE_CHECKING:
    from dumps import Dump

Placement = dict[str, str]


def check_identity(case: Case, dump: Dump, partial: bool = False) -> None:
    """The dump must be of this case: same artifacts, steps, dialect and, where it says one, geometry. `IdentityMismatch` names the first
    difference; `UsageError` where the dump is incomplete, or says what it is in another form than it should."""
    theirs = dump.case
    _artifacts(case.identity, theirs.get("identity"), dump)
    mine = case.describe()
    for key in ("family", "role", "dialect", "steps"):
        if key in theirs and theirs[key] != mine[key]:
            raise IdentityMismatch(
                f"{dump.path}: its case has {key} {_short(theirs[key])}, this case {_short(mine[key])}: not the same run"
            )
    _geometry(case, dump)
    placement(dump)
    if not (dump.complete or partial):
        last = f"; the last stage announced is {dump.announced}" if dump.announced else ""
        raise UsageError(f"{dump.path}: the dump is incomplete (its writer never closed it){last}")


def _artifacts(mine: dict[str, str], theirs: Any, dump: Dump) -> None:
    """SHA-256 by path; where no path is common (a dump that travelled), all of them together."""
    if not isinstance(theirs, dict) or not theirs:
        return
    for path, sha in mine.items():
        if path in theirs and theirs[path] != sha:
            raise IdentityMismatch(f"{dump.path}: made with {path} of SHA-256 {theirs[path]}, this case has {sha}: another artifact")
    if not mine.keys() & theirs.keys() and set(map(str, theirs.values())) != set(mine.values()):
        other = next((p for p, sha in theirs.items() if sha not in mine.values()), next(iter(theirs)))
        raise IdentityMismatch(
            f"{dump.path}: made with {other} of SHA-256 {theirs[other]}, which no file of this case has: another artifact"
        )


def _geometry(case: Case, dump: Dump) -> None:
    """``provenance.geometry``: what an engine says it ran with, under the names that every report shows."""
    said = dump.provenance.get("geometry")
    if said is None:
        return
    mine = open_case_model(case).geometry
    if not isinstance(said, dict) or not said.keys() <= mine.keys():
        found = said if not isinstance(said, dict) else sorted(said.keys() - mine.keys())[0]
        raise UsageError(
            f"{dump.path}: provenance.geometry: expected an object with names of {', '.join(sorted(mine))}; found {_short(found)}"
        )
    for key, value in said.items():
        if value != mine[key]:
            raise IdentityMismatch(
                f"{dump.path}: its engine ran with {key} {_short(value)}, this case has {_short(mine[key])}: another geometry"
            )


def placement(dump: Dump) -> Placement:
    """``provenance.placement``: which weights or experts ran where, as an engine says it (``{"expert_cache": 4283}``); empty: unsaid."""
    return as_placement(dump.provenance.get("placement", {}), f"{dump.path}: provenance.placement")


def as_placement(said: Any, where: str) -> Placement:
    """A placement as a file says it. `UsageError` where it is not an object of plain values."""
    if not isinstance(said, dict) or not all(isinstance(v, str | int | float | bool) for v in said.values()):
        raise UsageError(f"{where}: expected an object of names and plain values, found {_short(said)}")
    return {str(key): str(value) for key, value in said.items()}


def same_files(said: Any, mine: dict[str, str], where: str) -> None:
    """SHA-256 by name, as a file says it, against those of the files that were opened, whatever their names. `IdentityMismatch` where one
    is of another file."""
    if not isinstance(said, dict) or not all(isinstance(v, str) for v in said.values()):
        raise UsageError(f"{where}: expected an object of file names and SHA-256, found {_short(said)}")
    for name, sha in said.items():
        if sha not in mine.values():
            files = ", ".join(f"{n} of {s}" for n, s in mine.items())
            raise IdentityMismatch(f"{where}: {name} of SHA-256 {sha} is not what was opened ({files}): another artifact")


def parse_placement(text: str | None) -> Placement:
    """``KEY=VALUE,…`` of ``--placement-a`` and ``--placement-b``."""
    pairs = [part.partition("=") for part in (text or "").split(",") if part]
    for key, eq, value in pairs:
        if not (key and eq and value):
            raise UsageError(f"placement {text!r}: expected KEY=VALUE,…, such as expert_cache=4283")
    return {key.strip(): value.strip() for key, _, value in pairs}


def moved(a: Placement, b: Placement) -> str:
    """What ran elsewhere in b than in a, in words; empty where nothing did as far as both say."""
    found = [
        f"{key} {a.get(key, 'unsaid')} against {b.get(key, 'unsaid')}" for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)
    ]
    return ", ".join(found)


def same_placement(a: Placement, b: Placement, where: str) -> None:
    """`IdentityMismatch` where two runs placed their weights differently: experts on another device round differently, so a choice between
    near ties may flip with no mistake anywhere, and no claim about tokens is worth making."""
    what = moved(a, b)
    if what:
        raise IdentityMismatch(
            f"{where}: the runs placed their weights differently ({what}): other devices round differently, so no claim about tokens "
            "is made; run both under one placement (a pinned expert cache)"
        )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 120 else text[:117] + "…"
