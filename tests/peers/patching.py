"""An engine's model with one module patched wrong: what its dump says then, and the patches."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from dumps import Dump, DumpWriter, open_dump
from oracle import arithmetic as arithmetics
from oracle.readings import Noise
from parity.adapters.mapping import shipped
from parity.case import Case
from parity.judge import Judge
from parity.local import Local
from parity.models import run


def dumped(adapter: ModuleType, engine: str, case: Case, model: Any, folder: Path) -> Dump:
    """What ``adapter`` records of ``case`` in ``model``."""
    with DumpWriter(folder / "dump", case.describe(), {}) as writer:
        adapter.record(case, model, shipped(engine, case.family, case.role), writer)
    return open_dump(folder / "dump")


def first_divergence(case: Case, dump: Dump, arithmetic: str) -> str:
    """The stage that diverges first; what explains it is not asked."""
    A = arithmetics.named(arithmetic)
    tape = Local(dump, A, Judge(A, 100_000), explained=0)
    run(case, Noise(A), tape)
    return tape.divergences[0].stage


def _found(model: Any, path: str) -> tuple[Any, str]:
    """The module that ``path`` is a part of, and the part's name; numbers count in lists."""
    module = model
    *modules, name = path.split(".")
    for part in modules:
        module = module[int(part)] if part.isdecimal() else getattr(module, part)
    return module, name


def scaled(path: str, factor: float = 1.01) -> Any:
    """A weight or a number times a factor, in a model of PyTorch or MLX."""

    def patch(model: Any) -> None:
        module, name = _found(model, path)
        value = getattr(module, name)
        if hasattr(value, "data"):
            value.data *= factor
        else:
            setattr(module, name, value * factor)

    return patch


def replaced(path: str, value: Any) -> Any:
    """Something else in its place."""

    def patch(model: Any) -> None:
        setattr(*_found(model, path), value)

    return patch
