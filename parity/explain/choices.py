"""Choices that no tie explains: another rule of selection that makes exactly the candidate's choices, from its own recorded scores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.kit import EXACT
from oracle.ops.argmax import first_argmax
from oracle.ops.index_scores import complete
from oracle.ops.select import biased, largest
from oracle.readings import Stage
from oracle.tensor import Array
from parity.explain import Explanation
from parity.explain.world import World


def explanations(stage: Stage, picked: Array, scores: Array | None, world: World) -> list[Explanation]:
    """Rules under which every row's choice is the candidate's. ``picked`` [row], [row, rank] or [row, cell]; ``scores``: its own.

    A selection of experts counts as a set; where more than one rule fits, the others are ties.
    """
    source = {"argmax": _argmax, "choose": _argmax, "select": _select, "select_cells": _cells}.get(stage.op.name)
    if source is None:
        return []
    found: list[Explanation] = []
    with np.errstate(all="ignore"):
        for kind, text, made in source(stage, scores, world):
            if np.shape(made) == picked.shape and _same(stage, np.asarray(made), picked):
                found.append(Explanation(kind, text, 0.0, bool(found)))
    return found[:5]


def _same(stage: Stage, made: Array, picked: Array) -> bool:
    if stage.op.name == "select":
        return bool(np.array_equal(np.sort(made, 1), np.sort(picked, 1)))
    return bool(np.array_equal(made, picked))


Rule = tuple[str, str, Any]


def _argmax(stage: Stage, scores: Array | None, world: World) -> Iterator[Rule]:
    if scores is None:
        return
    ids = stage.args[1].data if stage.op.name == "choose" else np.broadcast_to(np.arange(scores.shape[-1]), scores.shape)

    def taken(index: NDArray[np.int64]) -> Array:
        return np.asarray(np.take_along_axis(ids, index[:, None], 1)[:, 0], float)

    best = first_argmax(scores)
    order = np.argsort(-scores, axis=-1, kind="stable")
    last = scores.shape[-1] - 1 - first_argmax(scores[:, ::-1])
    yield "choice.ties", "ties go to the highest index, not the lowest", taken(last)
    if scores.shape[-1] > 1:
        yield "choice.next", "the second largest", taken(order[:, 1])
        yield "choice.excluded", f"the best id of the first row ({best[0]}) is left out", taken(_without(scores, int(best[0])))
    yield "choice.smallest", "the smallest", taken(scores.argmin(-1))
    yield "choice.magnitude", "the largest magnitude, the sign left out", taken(np.abs(scores).argmax(-1))
    for shift in (-1, 1):
        yield "choice.row", f"the choice of the row {-shift:+d} from it", np.roll(taken(best), shift)
        yield "choice.index", f"the index {shift:+d}", taken(best) + shift
    yield "choice.row", "the first row's choice in every row", np.full(len(best), taken(best)[0])
    yield "choice.row", "the last row's choice in every row", np.full(len(best), taken(best)[-1])
    for dtype, values in (("f16", scores.astype(np.float16)), ("bf16", _bf16(scores))):
        yield "choice.rounded", f"scores rounded to {dtype} before they are compared", taken(first_argmax(values))
    mask = _mask_id(world)
    if mask is not None and mask < scores.shape[-1]:
        yield "choice.excluded", f"the mask token ({mask}) is left out", taken(_without(scores, mask))


def _without(scores: Array, index: int) -> NDArray[np.int64]:
    return first_argmax(np.where(np.arange(scores.shape[-1]) == index, -np.inf, scores))


def _bf16(x: Array) -> Array:
    from oracle.floats import BF16

    return BF16.round(x)


def _mask_id(world: World) -> int | None:
    if world.case is None or world.case.role != "drafter":
        return None
    from parity.models import open_case_model

    drafter = open_case_model(world.case).drafter
    return None if drafter is None else int(drafter.geometry.mask_token_id)


def _select(stage: Stage, scores: Array | None, world: World) -> Iterator[Rule]:
    own = stage.args[0].data
    bias, k = stage.args[1] if len(stage.args) > 1 else None, stage.params["k"]
    keys = biased(EXACT, own, bias)
    if bias is not None:
        yield "router.bias", "the selection bias left out", largest(own, k)
        yield "router.bias", "the selection bias subtracted", largest(own - bias.array(), k)
        yield "router.bias", "the selection bias applied twice", largest(own + 2 * bias.array(), k)
        yield "router.bias", "scores times the bias, not added", largest(own * bias.array(), k)
        yield "router.bias", "selected by the bias alone", largest(np.broadcast_to(bias.array(), own.shape), k)
    yield "router.smallest", "the experts of smallest score", largest(-keys, k)
    yield "router.top_k", "the ranks 1 to k, without the best", largest(keys, k + 1)[:, 1:]
    yield "router.row", "the first row's experts in every row", np.broadcast_to(largest(keys, k)[:1], (len(keys), k))
    yield "router.row", "the experts of the row before", np.roll(largest(keys, k), 1, 0)
    yield "router.row", "the experts of the row after", np.roll(largest(keys, k), -1, 0)
    for shift in (-1, 1):
        yield "router.expert", f"expert numbers {shift:+d}", (largest(keys, k) + shift) % keys.shape[1]
    logits = world.recorded(stage.step, stage.path.rpartition(".")[0] + ".router_logits")
    if bias is not None and logits is not None and logits.shape == own.shape:
        yield "router.bias", "the selection bias added to the logits, not to the scores", largest(logits + bias.array(), k)
    for groups in (2, 4, 8):
        if keys.shape[1] % groups == 0 and keys.shape[1] // groups >= 2:
            yield from _grouped(keys, groups, k)


def _grouped(keys: Array, groups: int, k: int) -> Iterator[Rule]:
    """Group-limited selection: the best groups first (by the sum of their two best), then the experts of those."""
    parts = keys.reshape(len(keys), groups, -1)
    rank = np.sort(parts, -1)[..., -2:].sum(-1)
    for kept in range(1, groups):
        if kept * parts.shape[-1] >= k:
            inside = np.zeros((len(keys), groups), bool)
            np.put_along_axis(inside, largest(rank, kept), True, -1)
            limited = np.where(inside[..., None], parts, -np.inf).reshape(keys.shape)
            yield "router.groups", f"limited to the best {kept} of {groups} groups of experts", largest(limited, k)


def _cells(stage: Stage, scores: Array | None, world: World) -> Iterator[Rule]:
    own, pos, cells, *_ = stage.args
    ratio, budget = stage.params["ratio"], stage.params["budget"]

    def made(values: Array, at: Any = pos, width: int = ratio, most: int = budget) -> Array:
        return np.asarray(stage.op.formula(EXACT, values, at, cells, ratio=width, budget=most))

    for text, most in (("half the budget", budget // 2), ("twice the budget", budget * 2), ("one block fewer", budget - ratio)):
        if most >= ratio:
            yield "index.budget", text, made(own.data, most=most)
    yield "index.budget", "one block more", made(own.data, most=budget + ratio)
    position = np.asarray(pos, np.int64)
    everything = np.asarray(np.arange(cells)[None] <= position[:, None], float)
    yield "index.dense", "every cell up to the row: nothing is selected", everything
    tail = np.asarray(np.arange(cells)[None] >= ((position + 1) // ratio * ratio)[:, None]) & (everything > 0)
    yield "index.tail", "the incomplete block left out", made(own.data) * ~tail
    yield (
        "index.tail",
        "only the row itself of the incomplete block",
        np.where(tail, np.arange(cells)[None] == position[:, None], made(own.data)),
    )
    open_blocks = complete(position, own.data.shape[1], ratio)
    yield "index.smallest", "the blocks of smallest score", made(np.where(open_blocks, -own.data, -np.inf))
    recent = np.broadcast_to(np.arange(own.data.shape[1], dtype=float), own.data.shape)
    yield "index.recent", "the most recent blocks, whatever their scores", made(recent)
    yield "index.recent", "the first blocks, whatever their scores", made(-recent)
    yield "index.row", "the first row's blocks in every row", made(np.broadcast_to(own.data[:1], own.data.shape))
