"""Opened models: a drafter or a target with its weights, ready to be read in any reading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from oracle.drafters import forward
from oracle.drafters.dialect import Dialect, DialectError, Geometry
from oracle.drafters.weights import DrafterWeights
from oracle.readings import Exact, Reading
from oracle.tape import Machine, Tape, passing
from oracle.targets import module
from oracle.targets.weights import TargetGeometry, TargetWeights
from oracle.tensor import Array
from oracle.weights import Weight

if TYPE_CHECKING:
    from oracle.artifacts import Identity

ROW = ("row", "dim")


@dataclass(frozen=True, eq=False)
class Drafter:
    """A DFlash drafter: geometry, dialect, weights and the identity of its files."""

    geometry: Geometry
    dialect: Dialect
    weights: DrafterWeights
    identity: Identity | None = None

    @property
    def tap_ids(self) -> tuple[int, ...]:
        """Zero-based target layers whose outputs are the features, in the order of the concatenation."""
        return self.geometry.tap_ids

    def new_context(self, reading: Reading | None = None, tape: Tape = passing) -> DrafterContext:
        """An empty context for this drafter, in the reading (default: the oracle)."""
        return DrafterContext(self, reading or Exact(), tape)

    def propose(
        self,
        context: DrafterContext,
        block_ids: Sequence[int] | Any,
        embedding: Weight,
        head: Weight,
        position: int | None = None,
        tape: Tape | None = None,
        step: int = 0,
    ) -> forward.Block:
        """One block: ids [row] at ``position`` (default: right after the context). A ring evicts at the end.

        Raises `forward.ContextError` for a block inside the context and ValueError for ids outside the embedding.
        """
        ids = np.asarray(block_ids, np.int64)
        at = context.length if position is None else position
        m = Machine(context.reading, context.tape if tape is None else tape, step=step).at("draft")
        return forward.propose(m, self.weights, self.geometry, self.dialect, context.cells, ids, at, embedding, head)


class DrafterContext:
    """The committed rows of one sequence: ``append`` commits, ``truncate`` forgets, ``length`` counts."""

    def __init__(self, drafter: Drafter, reading: Reading, tape: Tape) -> None:
        self.drafter, self.reading, self.tape = drafter, reading, tape
        self.cells = forward.Context()

    @property
    def length(self) -> int:
        return self.cells.length

    def append(self, features: Any, start: int, tape: Tape | None = None, step: int = 0) -> None:
        """Commit rows at positions ``start …`` from features [row, taps * target hidden]. Raises `forward.ContextError`."""
        m = Machine(self.reading, self.tape if tape is None else tape, step=step).at("draft")
        d = self.drafter
        forward.append(m, d.weights, d.geometry, d.dialect, self.cells, self.reading.lift(features, ROW), start)

    def truncate(self, length: int) -> None:
        self.cells.truncate(length)


@dataclass(frozen=True)
class WindowResult:
    """``logits [row, vocab]`` float64, ``features [row, taps * dim]`` float64, ``pick [row]``, and the state after the window."""

    logits: Array
    features: Array
    pick: Array
    state: Any


@dataclass(frozen=True, eq=False)
class Target:
    """A target model: geometry, weights and the identity of its files."""

    geometry: TargetGeometry
    weights: TargetWeights
    identity: Identity | None = None

    @property
    def embedding(self) -> Weight:
        return self.weights.embedding

    @property
    def head(self) -> Weight:
        return self.weights.head

    def new_state(self) -> Any:
        """The state before the first token; it has ``length`` and ``keep(n)``, the state after its first n tokens."""
        return module(self.geometry.family).State()

    def window(
        self,
        token_ids: Sequence[int] | Any,
        state: Any = None,
        taps: Sequence[int] = (),
        tape: Tape | None = None,
        reading: Reading | None = None,
        step: int = 0,
    ) -> WindowResult:
        """Process tokens [row] after ``state`` (never mutated); ``taps``: zero-based layers whose outputs become features.

        Raises ValueError for ids the model cannot embed and for taps that are not distinct layers.
        """
        ids = np.asarray(token_ids, np.int64)
        layers = self.geometry.layers
        if len(set(taps)) != len(taps) or any(not 0 <= t < layers for t in taps):
            raise ValueError(f"taps {list(taps)}: expected distinct layers from 0 to {layers - 1}, the last of this target")
        m = Machine(reading or Exact(), passing if tape is None else tape, step=step).at("target")
        window = module(self.geometry.family).window
        out = window(m, self.weights, self.geometry, ids, self.new_state() if state is None else state, taps)
        features = np.concatenate([t.data for t in out.taps], 1) if out.taps else np.empty((len(ids), 0))
        return WindowResult(out.logits.data, features, out.pick.data, out.state)


def open_drafter(path: str | Path, dialect: dict[str, str] | None = None, family: str | None = None) -> Drafter:
    """Open a drafter file or folder: validated, memory-mapped. Raises `ArtifactError` and `DialectError`."""
    from oracle.artifacts import open_drafter_files

    files = open_drafter_files(Path(path), family, _mask(dialect))
    resolved = files.dialect.override(dialect or {})
    geometry = files.geometry
    if resolved.sinks and all(layer.sinks is None for layer in files.weights.layers):
        raise DialectError("dialect sinks=on: this checkpoint has no attention sinks")
    if dialect and "window" in dialect:
        geometry = replace(geometry, window=resolved.window, window_source="dialect")
    return Drafter(geometry, resolved, files.weights, files.identity)


def _mask(dialect: dict[str, str] | None) -> int | None:
    """The mask token that a dialect gives in place of the file's, or None."""
    text = (dialect or {}).get("mask_token_id")
    if text is not None and not text.isdecimal():
        raise DialectError(f"dialect mask_token_id={text!r}: expected a token id")
    return None if text is None else int(text)


def open_target(path: str | Path, dialect: dict[str, str] | None = None) -> Target:
    """Open a target file or folder: validated, memory-mapped. Raises `ArtifactError` and `DialectError`."""
    from oracle.artifacts import open_target_files

    files = open_target_files(Path(path))
    if dialect:
        raise DialectError(f"dialect switch {next(iter(dialect))!r}: a {files.geometry.family} target has no switches")
    return Target(files.geometry, files.weights, files.identity)
