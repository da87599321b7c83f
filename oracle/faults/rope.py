"""Mistakes of rotary embeddings: position, theta, pairing, width, factors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from oracle.faults.grammar import Options, evaluate
from oracle.faults.kind import Kind, Plant, args, need
from oracle.readings import FaultError, Stage
from oracle.recipes import ROPE_STYLES, Rope

OPS = ("rope",)


def _position(o: Options) -> Plant:
    o.number("offset", h=1, r=1)

    def edit(stage: Stage) -> Stage:
        x, pos, recipe = stage.args
        rows, heads = np.arange(x.data.shape[0])[:, None], np.arange(x.data.shape[1])[None, :]
        with np.errstate(divide="ignore", invalid="ignore"):
            offset = np.broadcast_to(evaluate(o["offset"], h=heads, r=rows), x.data.shape[:2])
        if not (np.abs(offset) < 2**31).all():
            raise FaultError(f"offset={o['offset']} leaves the range of positions at some row or head")
        base = np.asarray(pos, np.int64).reshape(len(x.data), -1)
        return args(stage, x, base + np.asarray(offset, np.int64), recipe)

    return Plant(edit)


def _recipe(change: Callable[[Rope], Rope]) -> Plant:
    def edit(stage: Stage) -> Stage:
        x, pos, recipe = stage.args
        return args(stage, x, pos, change(recipe))

    return Plant(edit)


def _theta(o: Options) -> Plant:
    factor = o.number("factor")
    return _recipe(lambda r: replace(r, theta=r.theta * factor))


def _style(o: Options) -> Plant:
    style = o.choice("style", *ROPE_STYLES, "other")
    others = dict(zip(ROPE_STYLES, reversed(ROPE_STYLES), strict=True))
    return _recipe(lambda r: replace(r, style=others[r.style] if style == "other" else style))


def _partial(o: Options) -> Plant:
    width = o.choice("width", "half", "whole")

    def edit(stage: Stage) -> Stage:
        x, pos, recipe = stage.args
        dim = recipe.dim // 4 * 2 if width == "half" else x.data.shape[-1] // 2 * 2
        need(dim not in (0, recipe.dim), "no other rotary width")
        factors = None if recipe.factors is None else (recipe.factors * 2)[: dim // 2]
        return args(stage, x, pos, replace(recipe, dim=dim, factors=factors))

    return Plant(edit)


def _attention_factor(o: Options) -> Plant:
    factor = o.number("factor")

    def change(r: Rope) -> Rope:
        need(factor != 1 or r.attention_factor != 1, "no attention factor")
        return replace(r, attention_factor=1.0 if factor == 1 else r.attention_factor * factor)

    return _recipe(change)


def _factors(_: Options) -> Plant:
    def change(r: Rope) -> Rope:
        need(r.factors is not None, "no frequency factor")
        return replace(r, factors=None)

    return _recipe(change)


def _missing(_: Options) -> Plant:
    def edit(stage: Stage) -> Stage:
        x, pos, recipe = stage.args
        return args(stage, x, np.zeros_like(np.asarray(pos)), recipe)

    return Plant(edit)


KINDS = (
    Kind(
        "rope.position",
        OPS,
        "*.q_rope",
        {"offset": "1"},
        _position,
        "rotated by pos + offset (an expression in h and r)",
        ("K8",),
        "offset",
        ("offset=1", "offset=-1", "offset=h//2+1", "offset=r"),
        {"rope position": "offset=1"},
    ),
    Kind(
        "rope.theta",
        OPS,
        "*_rope",
        {"factor": "1.001"},
        _theta,
        "theta times factor",
        ("K9", "K34"),
        "factor",
        ("factor=50", "factor=0.01", "factor=1.01", "factor=1.0001"),
        {"rope theta": "factor=1.01"},
    ),
    Kind(
        "rope.style",
        OPS,
        "*_rope",
        {"style": "other"},
        _style,
        "pairs as halves and as neighbours confused",
        ("K7",),
        knobs={"rope style": ""},
    ),
    Kind(
        "rope.partial",
        OPS,
        "*_rope",
        {"width": "half"},
        _partial,
        "half of the rotary width rotated, or the whole head",
        ("K9",),
        "width",
        ("width=half", "width=whole"),
        {"rotary width": "width=half"},
    ),
    Kind(
        "rope.attention_factor",
        OPS,
        "*_rope",
        {"factor": "1"},
        _attention_factor,
        "cos and sin without YaRN's attention factor (factor=1), or with it times factor",
        ("K9",),
        "factor",
        ("factor=1", "factor=1.1"),
        {"rope attention factor": ""},
        ("values.scale",),
    ),
    Kind(
        "rope.factors", OPS, "*_rope", {}, _factors, "the frequency factors of Llama 3 left out", ("K9", "K34"), knobs={"rope factors": ""}
    ),
    Kind(
        "rope.missing",
        OPS,
        "*.ctx.k_rope",
        {},
        _missing,
        "not rotated at all, as rows injected past the cache's transform",
        ("K28",),
        alike=("rope.position",),
    ),
)
