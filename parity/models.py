"""Opening a case's model and walking its steps in any reading."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from oracle.models import Drafter, DrafterContext, Target, open_drafter, open_target
from oracle.readings import Reading, Shapes
from oracle.tape import Record, Tape
from oracle.weights import Weight
from parity.case import Case, Step
from parity.errors import UsageError

if TYPE_CHECKING:
    from oracle.artifacts import Borrowed, Identity


@dataclass(frozen=True, eq=False)
class CaseModel:
    """A case's opened model: the drafter with what it borrows, or the target."""

    drafter: Drafter | None
    target: Target | None
    embedding: Weight
    head: Weight
    identity: dict[str, str] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    hazards: tuple[str, ...] = ()

    @property
    def geometry(self) -> dict[str, Any]:
        """The effective geometry and dialect, as every report carries them."""
        if self.drafter is None:
            assert self.target is not None
            return _object(asdict(self.target.geometry))
        d = asdict(self.drafter.dialect)
        own = {"dialect": d, "sink": d["sink"], "window": d["window"], "dtypes": self.dtypes}
        return _object(asdict(self.drafter.geometry) | own)


def _object(value: dict[str, Any]) -> dict[str, Any]:
    return {k: _plain(v) for k, v in value.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return _object(value)
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value.item() if isinstance(value, np.generic) else value


_CACHE: dict[tuple[Any, ...], CaseModel] = {}


def open_case_model(case: Case) -> CaseModel:
    """Open the artifacts of a case; one process opens the same model once. Raises `ArtifactError`, `DialectError`, `UsageError`."""
    files = (_stamp(case.model), case.borrowed and _stamp(case.borrowed))
    key = (str(case.model), str(case.borrowed), case.role, case.family, tuple(sorted(case.dialect.items())), files)
    if key not in _CACHE:
        _CACHE[key] = _open(case)
    return _CACHE[key]


def _stamp(model: Path) -> tuple[tuple[str, int, int], ...]:
    """Name, time and size of a model's files: written anew under the same name it is another model."""
    files = sorted(model.iterdir()) if model.is_dir() else [model] if model.exists() else []
    stats = [(f.name, f.stat()) for f in files]
    return tuple((name, s.st_mtime_ns, s.st_size) for name, s in stats)


def _open(case: Case) -> CaseModel:
    from oracle.artifacts import open_borrowed
    from oracle.artifacts.dtypes import pair_dtypes, pair_hazards

    if case.role == "target":
        target = open_target(case.model, case.dialect)
        return CaseModel(None, target, target.embedding, target.head, _hashes(case.model, target.identity))
    drafter = open_drafter(case.model, case.dialect, case.family)
    if case.borrowed is None:
        raise UsageError(f"case {case.name}: a drafter borrows its target's embedding and head: name a file that holds them (--borrowed)")
    borrowed = open_borrowed(case.borrowed)
    whole = whole_target(case.borrowed)
    _check_pair(case, drafter, borrowed, whole)
    hashes = _hashes(case.model, drafter.identity) | _hashes(case.borrowed, borrowed.identity)
    dtypes = pair_dtypes(drafter.weights, borrowed.embedding, whole.weights if whole else None)
    return CaseModel(drafter, None, borrowed.embedding, borrowed.head, hashes, dtypes, tuple(pair_hazards(dtypes)))


def _check_pair(case: Case, drafter: Drafter, borrowed: Borrowed, target: Target | None) -> None:
    """`UsageError` where what the case borrows from is not this drafter's target."""
    from oracle.artifacts.pairing import mismatches

    found = mismatches(drafter.dialect.family, drafter.geometry, borrowed.embedding, target.geometry if target else None)
    if borrowed.head.width != drafter.geometry.hidden and not found:
        found = [f"its head is {borrowed.head.width} wide, the drafter's hidden width is {drafter.geometry.hidden}"]
    if found:
        raise UsageError(f"{case.borrowed}: not the target of {case.model}: {'; '.join(found)}")


def rope_style(case: Case) -> str | None:
    """How the oracle pairs the rotated dims of a head in the case's model."""
    model = open_case_model(case)
    if model.drafter is not None:
        return model.drafter.dialect.rope.style
    return None if model.target is None else model.target.geometry.rope.style


def whole_target(path: Path) -> Target | None:
    """The target at ``path``, or None where the file holds only what a drafter borrows, or a family that is not known."""
    from oracle.artifacts import ArtifactError

    try:
        return open_target(path)
    except ArtifactError:
        return None


def _hashes(root: Path, identity: Identity | None) -> dict[str, str]:
    """SHA-256 by a name that survives a move: the file's own, or folder/file."""
    if identity is None:
        return {}
    return {f.path.name if f.path == root else f"{root.name}/{f.path.name}": f.sha256 for f in identity.files}


class Run:
    """One pass over a case's steps in a reading; ``tape`` sees every stage of every step."""

    def __init__(self, case: Case, model: CaseModel, reading: Reading, tape: Tape) -> None:
        self.case, self.model, self.reading, self.tape = case, model, reading, tape
        self.context: DrafterContext | None = model.drafter.new_context(reading, tape) if model.drafter else None
        self.state: Any = model.target.new_state() if model.target else None

    def steps(self) -> Iterator[tuple[int, Any]]:
        """Run the steps in order, yielding (index, what the step returned)."""
        for index, step in enumerate(self.case.steps):
            yield index, self._one(index, step)

    def all(self) -> None:
        for _ in self.steps():
            pass

    def _one(self, index: int, step: Step) -> Any:
        if self.context is not None and self.model.drafter is not None:
            if step.kind == "append":
                self.context.append(step.array, step.at, step=index)
                return None
            if step.kind == "propose":
                return self.model.drafter.propose(self.context, step.array, self.model.embedding, self.model.head, step.at, step=index)
        elif step.kind == "window" and self.model.target is not None:
            out = self.model.target.window(step.array, self.state.keep(step.at), tape=self.tape, reading=self.reading, step=index)
            self.state = out.state
            return out
        raise UsageError(f"case {self.case.name}: step {index}: a {self.case.role} has no {step.kind} step")


def run(case: Case, reading: Reading, tape: Tape) -> None:
    """All steps of the case in the reading."""
    Run(case, open_case_model(case), reading, tape).all()


def declared_stages(case: Case) -> list[tuple[tuple[int, str], tuple[str, ...], tuple[int, ...]]]:
    """Every stage the case has, in causal order: ((step, path), axes, shape). Nothing is computed."""
    seen: list[tuple[tuple[int, str], tuple[str, ...], tuple[int, ...]]] = []

    def tape(stage: Any, value: Any, reading: Any) -> Any:
        seen.append((stage.key, value.axes, value.data.shape))
        return value

    run(case, Shapes(), tape)
    return seen


Progress = Callable[[str], None]
__all__ = ["CaseModel", "Progress", "Record", "Run", "declared_stages", "open_case_model", "run"]
