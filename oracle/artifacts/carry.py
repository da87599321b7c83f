"""Tensors to write out of weights that are open: carried bit for bit, stacked, put in another order, or shifted where that is exact."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.artifacts import blocks
from oracle.artifacts.container import ArtifactError, Container, fail, show
from oracle.artifacts.roles import Role
from oracle.artifacts.writers import PlannedTensor, Typed
from oracle.ngrams import Shards, Table
from oracle.weights import Weight

Rows = NDArray[np.uint8]
Array = NDArray[np.float64]
CHUNK_ROWS = 1 << 20


@dataclass(frozen=True)
class Written:
    """What a container is to hold: GGUF ``keys`` or a folder's ``config``; ``tensors`` by role; ``notes`` on what it cannot say.

    ``reorder``: of a weight that the loader gives in another row order, that order, by the weight's path; ``by_value``: weights whose
    stored format may differ, with the number that reading back adds to them. ``unsaid``: fields of the geometry that the container
    does not record, or records as its own choice, and that are no part of the mathematics. ``made``: endings of the paths of weights
    that a loader makes of the metadata.
    """

    tensors: dict[str, PlannedTensor]
    keys: dict[str, Typed] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    reorder: dict[str, Callable[[Rows], Rows]] = field(default_factory=dict)
    by_value: dict[str, float] = field(default_factory=dict)
    unsaid: tuple[str, ...] = ()
    made: tuple[str, ...] = ()


def carried(role: Role, w: Weight | Table, reorder: Callable[[Rows], Rows] | None = None) -> PlannedTensor:
    """``w`` under the name and shape of ``role``, its bytes as they are, the rows reordered where asked for."""

    def chunks() -> Iterator[Rows]:
        for one in w.parts if isinstance(w, Shards) else (w,):
            assert isinstance(one, Weight)
            if reorder is not None:
                yield reorder(one.raw)
                return
            for start, stop in one.spans(CHUNK_ROWS):
                yield one.stored_rows(start, stop)

    first = w.parts[0] if isinstance(w, Shards) else w
    assert isinstance(first, Weight)
    return PlannedTensor(role.name, role.flat, first.stored, chunks)


def stacked(container: Container, role: Role, groups: Sequence[Sequence[Weight]]) -> PlannedTensor:
    """The rows of every weight in turn, of every group in turn, as one tensor; they must be stored alike."""
    flat = [w for group in groups for w in group]
    formats = sorted({w.stored for w in flat})
    if len(formats) > 1:
        fail(container.path, f"tensor {show(role.name)} would hold weights of the formats {', '.join(formats)}; expected one of them")

    def chunks() -> Iterator[Rows]:
        for w in flat:
            for start, stop in w.spans(CHUNK_ROWS):
                yield w.stored_rows(start, stop)

    return PlannedTensor(role.name, role.flat, formats[0], chunks)


def vector(role: Role, values: Array, stored: str) -> PlannedTensor:
    """``values`` in the format ``stored``."""
    return PlannedTensor(role.name, role.flat, stored, lambda: iter([blocks.encode(values.reshape(1, -1), stored)]))


def exact(container: Container, role: Role, values: Array, formats: Sequence[str], check: Callable[[Array], bool]) -> PlannedTensor:
    """``values`` in the first of ``formats`` from which ``check`` finds what they stand for; `ArtifactError` where there is none."""
    for stored in formats:
        try:
            found = blocks.decode(blocks.encode(values.reshape(1, -1), stored), stored, values.size)[0]
        except ValueError:
            continue
        if check(found):
            return vector(role, values, stored)
    what = f"tensor {show(role.name)}: its values change even in {formats[-1]}"
    raise ArtifactError(f"{container.path}: {what}; the other container cannot hold them")


def shifted(container: Container, role: Role, w: Weight, by: float, formats: Sequence[str]) -> PlannedTensor:
    """The vector plus ``by``, in the first of ``formats`` that gives ``w``'s values back when ``by`` is taken off again.

    The sign of a zero is lost: 1 - 0 is 1 + 0.
    """
    values = w.array().reshape(-1)
    return exact(container, role, values + by, formats, lambda found: np.array_equal(found - by, values))
