"""Seeded values for every tensor of a model: uneven on purpose, so that a mistake in any convention shows.

The values of a tensor depend on the seed and on its role alone, not on container, file format or order; quantised
files of one seed are therefore encodings of the same model. Only the release size draws random blocks instead.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oracle.artifacts import blocks
from oracle.artifacts.roles import Role
from oracle.artifacts.writers import PlannedTensor

Array = NDArray[np.float64]

CHUNK_VALUES = 1 << 22
SMALL_ROW_FACTOR = 1e-2


@dataclass(frozen=True)
class Recipe:
    """How to draw: ``seed``; ``weights``: the format of matrices; ``norms``: that of vectors.

    ``random``: matrices are drawn as random blocks, without encoding. ``small_row``: a row of the embedding.
    """

    seed: int
    weights: str
    norms: str = "f32"
    random: bool = False
    small_row: int | None = None

    def stored(self, part: str) -> str:
        """The format of a role; ``q4_k`` mixes in q5_k and q6_k as the released files do (`specs/muse-glimmer.md` 4.1)."""
        if part.endswith(("norm", "bias", "sinks")):
            return self.norms
        if self.weights == "q4_k":
            return {"v": "q6_k", "down": "q6_k", "head": "q5_k"}.get(part, "q4_k")
        return self.weights


def values_of(seed: int, key: str, shape: tuple[int, ...], small_row: int | None = None) -> Array:
    """Seeded float64 values of the role ``key`` (``3.q``, ``norm``, ``embedding`` ...), in its logical shape.

    Norm weights are positive and wide around 1, rows of a matrix differ in size up to four times, a few columns stand
    out, rows of an embedding differ in norm and ``small_row`` is a hundred times smaller.
    """
    rng = np.random.default_rng([seed, zlib.crc32(key.encode())])
    part = key.rsplit(".", 1)[-1]
    if part.endswith("norm"):
        return np.exp(rng.normal(0.0, 0.35, shape)) * rng.uniform(0.7, 1.4)
    if part.endswith("bias"):
        return rng.normal(0.05, 0.2, shape)
    if part == "sinks":
        return rng.normal(0.5, 1.0, shape)
    width = shape[-1]
    rows = int(np.prod(shape[:-1]))
    matrix = rng.standard_normal((rows, width)) * np.exp2(rng.uniform(-1.0, 1.0, (rows, 1)))
    matrix[:, rng.choice(width, max(1, width // 64), replace=False)] *= 3.0
    if part in ("embedding", "head"):
        matrix *= 0.5 if part == "embedding" else 1.5 / np.sqrt(width)
        if small_row is not None:
            matrix[small_row] *= SMALL_ROW_FACTOR
    else:
        matrix *= 0.9 / np.sqrt(width)
    return matrix.reshape(shape)


def plan(
    recipe: Recipe, roles: dict[str, Role], permuted: dict[str, int] | None = None, added: dict[str, float] | None = None
) -> list[PlannedTensor]:
    """One planned tensor per role. ``permuted``: role suffix -> heads whose rows go from half to interleaved pairs.

    ``added``: role suffix -> what is added to every value, -1 for norms that are stored centred.
    """
    planned = []
    for key, role in roles.items():
        part = key.rsplit(".", 1)[-1]
        heads = (permuted or {}).get(part)
        stored = recipe.stored(part)
        more = (added or {}).get(part, 0.0)
        drawn = recipe.random and len(role.flat) > 1
        produce = _random(recipe, key, role, stored) if drawn else _encoded(recipe, key, role, stored, heads, more)
        planned.append(PlannedTensor(role.name, role.flat, stored, produce))
    return planned


def _encoded(
    recipe: Recipe, key: str, role: Role, stored: str, heads: int | None, more: float
) -> Callable[[], Iterator[NDArray[np.uint8]]]:
    def produce() -> Iterator[NDArray[np.uint8]]:
        small = recipe.small_row if key == "embedding" else None
        values = values_of(recipe.seed, key, role.shape, small).reshape(-1, role.flat[-1]) + more
        if heads is not None:
            values = interleave(values, heads)
        step = max(1, CHUNK_VALUES // values.shape[1])
        for start in range(0, len(values), step):
            yield blocks.encode(values[start : start + step], stored)

    return produce


def _random(recipe: Recipe, key: str, role: Role, stored: str) -> Callable[[], Iterator[NDArray[np.uint8]]]:
    def produce() -> Iterator[NDArray[np.uint8]]:
        rng = np.random.default_rng([recipe.seed, zlib.crc32(key.encode())])
        rows, width = role.flat
        std = 0.5 if key == "embedding" else 1.0 / np.sqrt(width)
        step = max(1, CHUNK_VALUES // width)
        for start in range(0, rows, step):
            yield blocks.random_blocks(rng, stored, min(step, rows - start), width, float(std))

    return produce


def interleave(rows: Array, heads: int) -> Array:
    """Rows [heads * dim, in] reordered so that pair i of a head is rows 2i, 2i+1 instead of i, i + dim/2."""
    width = rows.shape[-1]
    return rows.reshape(heads, 2, -1, width).swapaxes(1, 2).reshape(-1, width)
