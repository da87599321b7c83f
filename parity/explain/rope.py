"""Rope: the position each head was really rotated by, theta, pairing style; solved from input and output.

A pair (a, b) as the number a + ib is turned by the angle ``p f_i``: the quotient of output and input is ``e^(i p f_i)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from oracle.ops.rope import halves
from oracle.recipes import Rope
from oracle.tensor import Array
from parity.explain.base import Hypothesis, Suspect, rounder, spans, with_args

THETAS = (1e4, 1e5, 5e5, 1e6, 1e7)
REACH = 4096


def effective_positions(x: Array, c: Array, pos: NDArray[np.int64], recipe: Rope) -> NDArray[np.int64]:
    """The whole position that fits each (row, head) best, int64 [row, head]; searched from 0 to well past the largest."""
    turned, start = (a + 1j * b for a, b in (halves(c, recipe), halves(x, recipe)))
    agreement = turned * np.conj(start)
    last = int(np.max(pos, initial=0))
    candidates = np.arange(max(0, last - REACH), last + 257)
    phases = np.exp(-1j * candidates[:, None] * recipe.inv_freq())
    fit = np.real(np.einsum("rhi,pi->rhp", agreement, phases))
    return np.asarray(candidates[fit.argmax(-1)], np.int64)


def hypotheses(s: Suspect) -> Iterator[Hypothesis]:
    x, pos, recipe = s.stage.args
    rows, heads = s.rows, s.heads
    assert heads is not None
    pos2 = np.broadcast_to(np.asarray(pos, np.int64).reshape(len(x.data), -1), x.data.shape[:2])
    found = pos2.copy()
    at = np.ix_(rows, heads)
    found[at] = effective_positions(x.data[rows][:, heads], s.c[rows][:, heads], pos2, recipe)[:, :]
    yield Hypothesis("rope.position", _positions(pos2, found, rows, heads), with_args(s.stage, x, found, recipe))
    other = "interleaved" if recipe.style == "neox" else "neox"
    yield Hypothesis("rope.style", f"pairs taken as {other}, not {recipe.style}", with_args(s.stage, x, pos, replace(recipe, style=other)))
    for theta, fitted in _thetas(s, pos2, recipe):
        changed = with_args(s.stage, x, pos, replace(recipe, theta=theta))
        yield Hypothesis("rope.theta", f"theta {theta:.6g} in place of {recipe.theta:.6g}", changed, None, fitted)
    for width in {recipe.dim // 2, x.data.shape[-1]} - {recipe.dim}:
        if width >= 2 and width % 2 == 0:
            yield Hypothesis(
                "rope.partial", f"rotary width {width} in place of {recipe.dim}", with_args(s.stage, x, pos, replace(recipe, dim=width))
            )
    if recipe.attention_factor != 1.0:
        plain = replace(recipe, attention_factor=1.0)
        yield Hypothesis("rope.attention_factor", "cos and sin without the attention factor", with_args(s.stage, x, pos, plain))


def _thetas(s: Suspect, pos: NDArray[np.int64], recipe: Rope) -> list[tuple[float, bool]]:
    """Known thetas, and the one that the fastest pair still unwrapped gives."""
    found = [(t, False) for t in THETAS if t != recipe.theta]
    x, c = s.stage.args[0].data, s.c
    turned, start = (a + 1j * b for a, b in (halves(c, recipe), halves(x, recipe)))
    row = int(s.rows[np.argmax(pos[s.rows].max(1))])
    p = int(pos[row].max())
    if p > 0 and recipe.dim >= 4:
        quotient = (turned[row] * np.conj(start[row])).sum(0)
        i = np.arange(1, recipe.dim // 2)
        angle = np.angle(quotient)[1:]
        slow = (p * recipe.inv_freq()[1:] < 1.5) & (angle > 1e-9)
        if slow.any():
            estimates = (angle[slow] / p) ** (-recipe.dim / (2 * i[slow]))
            found += rounder(float(np.median(estimates)))
    return found


def _positions(pos: NDArray[np.int64], found: NDArray[np.int64], rows: NDArray[np.intp], heads: NDArray[np.intp]) -> str:
    """``row 0: heads 2-3 at pos+1, heads 4-5 at pos+2``, one piece per offset."""
    lines = []
    for row in rows[:8]:
        offsets = found[row, heads] - pos[row, heads]
        pieces = [f"heads {spans(heads[offsets == o])} at pos{int(o):+d}" for o in dict.fromkeys(offsets.tolist())]
        lines.append(f"row {row}: " + ", ".join(pieces[:16]))
    return "rotated by another position; " + "; ".join(lines) + ("; …" if len(rows) > 8 else "")
