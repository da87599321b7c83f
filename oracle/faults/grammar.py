"""The values of a fault SPEC: small arithmetic expressions, ranges of indices, numbers and choices, each refused by name."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

from oracle.readings import FaultError

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


class Options(dict[str, str]):
    """The keys of one SPEC: the kind's defaults with what was given."""

    def number(self, key: str, **names: Any) -> float:
        """A finite number, in which ``names`` may occur."""
        value = float(evaluate(self[key], **names))
        if not math.isfinite(value):
            raise FaultError(f"{key}={self[key]} is not a finite number")
        return value

    def integer(self, key: str) -> int:
        """A whole number below 2^31."""
        value = self.number(key)
        if value != int(value) or abs(value) >= 2**31:
            raise FaultError(f"{key}={self[key]} is not a whole number below 2^31")
        return int(value)

    def choice(self, key: str, *known: str) -> str:
        """One of ``known``."""
        if self[key] not in known:
            raise FaultError(f"{key}={self[key]}: expected one of {', '.join(known)}")
        return self[key]
