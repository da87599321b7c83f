"""Planted mistakes: ``KIND[:key=value,…]`` becomes a `Fault`, an edit of one call of a forward (DESIGN sections 3 and 7).

Values may be arithmetic expressions in ``h`` (head) and ``r`` (row); ranges are ``2-13``.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.readings import Edit, Fault, Stage
from oracle.recipes import ROPE_STYLES, Rope, Visible
from oracle.weights import Weight


class FaultError(ValueError):
    """A fault that does not exist, or a value it cannot take."""


@dataclass(frozen=True)
class Kind:
    """One kind of fault: ``stage`` it acts on by default, ``defaults`` of its own keys, ``make`` from them to an edit."""

    name: str
    stage: str
    defaults: dict[str, str]
    make: Callable[[dict[str, str]], Edit]
    about: str


_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv, ast.Mod: operator.mod,
}  # fmt: skip


def evaluate(text: str, **names: Any) -> Any:
    """A small arithmetic expression over ``names`` (numbers, + - * / // %). `FaultError` for anything else."""
    if len(text) > 200:
        raise FaultError(f"expression of {len(text)} characters: at most 200")
    try:
        return _value(ast.parse(text, mode="eval").body, names)
    except (SyntaxError, KeyError, TypeError, ZeroDivisionError, RecursionError):
        raise FaultError(f"{text!r} is not an arithmetic expression in {', '.join(names) or 'numbers'}") from None


def _value(node: ast.expr, names: dict[str, Any]) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.Name):
        return names[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, names)
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_value(node.left, names), _value(node.right, names))
    raise TypeError


def indices(text: str) -> tuple[int, ...]:
    """``3``, ``2-13`` or ``0+4+6-8`` as indices. `FaultError` for anything else."""
    out: list[int] = []
    for part in text.split("+"):
        first, dash, last = part.partition("-")
        ends = (first, last) if dash else (first, first)
        if not all(e.isascii() and e.isdigit() and len(e) <= 6 for e in ends) or int(ends[0]) > int(ends[1]):
            raise FaultError(f"{text!r} is not a range: expected 3, 2-13 or 0+4+6-8, below a million")
        out.extend(range(int(ends[0]), int(ends[1]) + 1))
    return tuple(out)


def _number(options: dict[str, str], key: str, **names: Any) -> float:
    value = float(evaluate(options[key], **names))
    if not math.isfinite(value):
        raise FaultError(f"{key}={options[key]} is not a finite number")
    return value


def _integer(options: dict[str, str], key: str) -> int:
    value = _number(options, key)
    if value != int(value) or abs(value) >= 2**31:
        raise FaultError(f"{key}={options[key]} is not a whole number below 2^31")
    return int(value)


def _rope_position(options: dict[str, str]) -> Edit:
    _number(options, "offset", h=1, r=1)

    def edit(stage: Stage) -> Stage:
        x, pos, recipe = stage.args
        rows, heads = np.arange(x.data.shape[0])[:, None], np.arange(x.data.shape[1])[None, :]
        with np.errstate(divide="ignore", invalid="ignore"):
            offset = np.broadcast_to(evaluate(options["offset"], h=heads, r=rows), x.data.shape[:2])
        if not (np.abs(offset) < 2**31).all():
            raise FaultError(f"offset={options['offset']} leaves the range of positions at some row or head")
        base = np.asarray(pos, np.int64).reshape(len(x.data), -1)
        return replace(stage, args=(x, base + np.asarray(offset, np.int64), recipe))

    return edit


def _recipe(change: Callable[[Rope], Rope]) -> Edit:
    def edit(stage: Stage) -> Stage:
        x, pos, recipe = stage.args
        return replace(stage, args=(x, pos, change(recipe)))

    return edit


def _rope_theta(options: dict[str, str]) -> Edit:
    factor = _number(options, "factor")
    return _recipe(lambda recipe: replace(recipe, theta=recipe.theta * factor))


def _rope_style(options: dict[str, str]) -> Edit:
    style = options["style"]
    if style not in (*ROPE_STYLES, "other"):
        raise FaultError(f"style={style}: expected one of {', '.join(ROPE_STYLES)} or other")
    others = dict(zip(ROPE_STYLES, reversed(ROPE_STYLES), strict=True))
    return _recipe(lambda recipe: replace(recipe, style=others[recipe.style] if style == "other" else style))


def _norm_eps(options: dict[str, str]) -> Edit:
    factor = _number(options, "factor")
    return lambda stage: replace(stage, params=stage.params | {"eps": stage.params["eps"] * factor})


def _norm_offset(options: dict[str, str]) -> Edit:
    return lambda stage: replace(stage, params=stage.params | {"offset": _number(options, "offset")})


def _linear_scale(options: dict[str, str]) -> Edit:
    factor = _number(options, "factor")

    def edit(stage: Stage) -> Stage:
        x, w, *rest = stage.args
        return replace(stage, args=(x, Weight.of(w.array() * factor, w.axes, "f32", w.name), *rest))

    return edit


def _attention_scale(options: dict[str, str]) -> Edit:
    factor = _number(options, "factor")
    return lambda stage: replace(stage, params=stage.params | {"scale": stage.params["scale"] * factor})


def _visible(change: Callable[[Visible], Visible]) -> Edit:
    return lambda stage: replace(stage, params=stage.params | {"visible": change(stage.params["visible"])})


def _window(options: dict[str, str]) -> Edit:
    delta = _integer(options, "delta")
    return _visible(lambda v: v if v.window is None else replace(v, window=max(v.window + delta, 1)))


def _causal(_: dict[str, str]) -> Edit:
    return _visible(lambda v: replace(v, causal=not v.causal))


@dataclass(frozen=True, eq=False)
class _WithoutCell(Visible):
    cell: int = 0

    def matrix(self) -> NDArray[np.bool_]:
        seen = super().matrix().copy()
        if not -seen.shape[1] <= self.cell < seen.shape[1]:
            raise FaultError(f"fault attention.cell: cell {self.cell} is not among the {seen.shape[1]} cells")
        seen[:, self.cell] = False
        return seen


def _cell(options: dict[str, str]) -> Edit:
    at = _integer(options, "cell")
    return _visible(lambda v: _WithoutCell(v.rule, v.causal, v.window, v.q_pos, v.k_pos, v.block_start, at))


KINDS = {
    k.name: k
    for k in (
        Kind("rope.position", "*.q_rope", {"offset": "1"}, _rope_position, "rotated by pos + offset (an expression in h and r)"),
        Kind("rope.theta", "*_rope", {"factor": "1.001"}, _rope_theta, "theta times factor"),
        Kind("rope.style", "*_rope", {"style": "other"}, _rope_style, "halves and neighbours confused"),
        Kind("norm.eps", "*.xn", {"factor": "10"}, _norm_eps, "eps times factor"),
        Kind("norm.offset", "*.xn", {"offset": "1"}, _norm_offset, "the weight taken as offset + w"),
        Kind("linear.scale", "*.q_raw", {"factor": "1.001"}, _linear_scale, "the weight times factor"),
        Kind("attention.scale", "*.attn", {"factor": "1.01"}, _attention_scale, "the score scale times factor"),
        Kind("attention.window", "*.attn", {"delta": "-1"}, _window, "the window off by delta"),
        Kind("attention.causal", "*.attn", {}, _causal, "causal and bidirectional confused"),
        Kind("attention.cell", "*.attn", {"cell": "0"}, _cell, "one cell not seen"),
    )
}


def parse(spec: str) -> Fault:
    """A `Fault` from its SPEC. Keys: ``stage`` (a glob), ``row``/``rows``, ``head``/``heads``, and the kind's own.

    `FaultError` names what does not fit.
    """
    name, _, tail = spec.partition(":")
    if name not in KINDS:
        raise FaultError(f"fault kind {name!r} is unknown; known: {', '.join(KINDS)}")
    kind = KINDS[name]
    options, stage, rows, heads = dict(kind.defaults), kind.stage, None, None
    for pair in filter(None, tail.split(",")):
        key, eq, value = pair.partition("=")
        if not eq or key not in {"stage", "row", "rows", "head", "heads", *kind.defaults}:
            raise FaultError(f"fault {name}: {pair!r}: expected stage, rows, heads{''.join(', ' + k for k in kind.defaults)} = value")
        if key == "stage":
            stage = value
        elif key in ("row", "rows"):
            rows = indices(value)
        elif key in ("head", "heads"):
            heads = indices(value)
        else:
            options[key] = value
    return Fault(name, stage, kind.make(options), rows, heads)
