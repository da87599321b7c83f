"""A seeded GGUF of a family whose files are published as folders: the folder's model under the GGUF's names, in any format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from oracle.artifacts import blocks, convert
from oracle.artifacts.container import open_container
from oracle.artifacts.seeds import Recipe
from oracle.artifacts.writers import PlannedTensor, write_gguf


def write_as_gguf(folder: Path, goal: Path, recipe: Recipe) -> Path:
    """Write the model in ``folder`` to ``goal`` in the formats of ``recipe``; vectors, and rows that no block fits, in f32."""
    container = open_container(folder)
    files, role = convert.opened(container, None)
    made = convert.PLANS[files.identity.family, role](container, files, convert.by_role(files.weights), "gguf")
    tensors = [_recoded(key, t, recipe) for key, t in made.tensors.items()]
    write_gguf(goal, {k: v for k, v in made.keys.items() if v.value is not None}, tensors)
    return goal


def _recoded(key: str, t: PlannedTensor, recipe: Recipe) -> PlannedTensor:
    part, width = key.rsplit(".", 1)[-1], t.shape[-1]
    stored = "f32" if len(t.shape) == 1 else recipe.stored(part)
    if width % blocks.format_of(stored).values:
        stored = "f32"
    if stored == t.stored:
        return t

    def chunks() -> Iterator[NDArray[np.uint8]]:
        for raw in t.chunks():
            yield blocks.encode(blocks.decode(np.ascontiguousarray(raw).reshape(-1, raw.shape[-1]), t.stored, width), stored)

    return replace(t, stored=stored, chunks=chunks)
