"""Rope: the position each head was really rotated by, theta, pairing style, rotary width, alone and together; solved from input and output.

A pair (a, b) as the number a + ib is turned by the angle ``p f_i``: the quotient of output and input is ``e^(i p f_i)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.ops.rope import halves
from oracle.recipes import Rope
from oracle.tensor import Array
from parity.explain.base import Hypothesis, Suspect, rounder, shortened, spans, with_args

THETAS = (1e4, 1e5, 5e5, 1e6, 5e6, 1e7)
SCALINGS = (2.0, 4.0, 8.0, 16.0, 32.0)
REACH = 4096
THETA_RANGE, GRID, FITTED_ROWS = (1e2, 1e9), 20000, 4
Positions = NDArray[np.int64]


class Float32Rope(Rope):
    """Angles formed in float32 by repeated multiplication, pair after pair, as ggml does on a CPU (``ggml_rope_cache_init``)."""

    def angles(self, pos: Array) -> Array:
        step = np.float32(self.theta) ** np.float32(-2 / self.dim)
        chain = [pos[..., 0].astype(np.float32)]
        for _ in range(1, self.dim // 2):
            chain.append(chain[-1] * step)
        found = np.stack(chain, -1)
        return np.asarray(found if self.factors is None else found / np.asarray(self.factors, np.float32), np.float64)


def hypotheses(s: Suspect) -> Iterator[Hypothesis]:
    x, pos, recipe = s.stage.args
    single = Float32Rope(recipe.theta, recipe.dim, recipe.style, recipe.factors, recipe.attention_factor)
    text = "angles formed in float32 by repeated multiplication, not a bug (--arithmetic …,angles=f32-product)"
    yield Hypothesis("rope.angles", text, with_args(s.stage, x, pos, single), parameters={"angles": "f32-product"})
    pos2 = np.broadcast_to(np.asarray(pos, np.int64).reshape(len(x.data), -1), x.data.shape[:2])
    for variant, kind, name in variants(recipe, x.data.shape[-1]):
        # A change of the recipe alone comes before the same change with another position or theta.
        if kind:
            yield Hypothesis(kind, name, with_args(s.stage, x, pos, variant))
        found = solved_positions(s, pos2, variant)
        if not np.array_equal(found, pos2):
            yield _position(s, pos2, found, variant, kind, name)
        yield from _thetas(s, pos2, variant, kind, name)
    yield from _scalings(s, recipe)


def variants(recipe: Rope, width: int) -> Iterator[tuple[Rope, str, str]]:
    """(recipe, kind, text) of the discrete mistakes in how pairs are formed, the declared recipe first."""
    yield recipe, "", ""
    other = "interleaved" if recipe.style == "neox" else "neox"
    yield replace(recipe, style=other), "rope.style", f"pairs taken as {other}, not {recipe.style}"
    for dim in dict.fromkeys((width, width // 2, width // 4, recipe.dim // 2)):
        if dim != recipe.dim and dim >= 2 and dim % 2 == 0 and recipe.factors is None:
            yield replace(recipe, dim=dim), "rope.partial", f"rotary width {dim} in place of {recipe.dim}"
    if recipe.factors is not None:
        yield replace(recipe, factors=None), "rope.factors", "the frequencies without their factors"
    if recipe.attention_factor != 1.0:
        yield replace(recipe, attention_factor=1.0), "rope.attention_factor", "cos and sin without the attention factor"


def solved_positions(s: Suspect, pos: Positions, recipe: Rope) -> Positions:
    """The positions with those of the diverging rows and heads solved, int64 [row, head]."""
    rows, heads, found = s.rows, s.heads, pos.copy()
    assert heads is not None
    found[np.ix_(rows, heads)] = effective_positions(s.stage.args[0].data[rows][:, heads], s.c[rows][:, heads], pos, recipe)
    return found


def effective_positions(x: Array, c: Array, pos: Positions, recipe: Rope) -> Positions:
    """The whole position that fits each (row, head) best, int64 [row, head]; searched well before and past the declared ones."""
    turned, start = (a + 1j * b for a, b in (halves(c, recipe), halves(x, recipe)))
    agreement = turned * np.conj(start)
    last = int(np.max(pos, initial=0))
    near = np.arange(max(-last, last - REACH), last + 257)
    candidates = np.unique(np.concatenate([near, np.arange(0, min(257, last)), -pos.ravel(), 2 * pos.ravel()]))
    phases = np.exp(-1j * candidates[:, None] * recipe.inv_freq())
    fit = np.real(np.einsum("rhi,pi->rhp", agreement, phases))
    # Where several fit alike (a narrow head cannot tell), the one nearest to the declared position is meant.
    declared = np.broadcast_to(pos[: len(x), :1] if pos.shape[0] == len(x) else pos[:1, :1], x.shape[:2])
    best = fit.max(-1, keepdims=True)
    near_best = fit >= best - 1e-7 * np.abs(best)
    distance = np.abs(candidates[None, None] - declared[..., None]).astype(float)
    return np.asarray(candidates[np.where(near_best, distance, np.inf).argmin(-1)], np.int64)


def _position(s: Suspect, pos: Positions, found: Positions, recipe: Rope, kind: str, name: str) -> Hypothesis:
    x = s.stage.args[0]
    text, details, heads = _positions(pos, found, s.rows, s.heads if s.heads is not None else np.arange(1))
    table = [{"row": int(r), "position": int(pos[r, 0]), "effective": found[r].tolist()} for r in s.rows[:64]]
    edited = with_args(s.stage, x, found, recipe)
    if kind:
        return Hypothesis(kind, f"{name}, and {text}", edited, fallback=True, parameters={"positions": table}, details=details)
    return Hypothesis("rope.position", text, edited, parameters={"positions": table, "heads": heads}, details=details)


def _positions(pos: Positions, found: Positions, rows: NDArray[np.intp], heads: NDArray[np.intp]) -> tuple[str, tuple[str, ...], list[int]]:
    """One line (``row 0: heads 2-3 at pos+1, heads 4-5 at pos+2``) and the effective position of every head of each row."""
    at = np.ix_(rows, heads)
    mine, theirs = pos[at], found[at]
    details = tuple(f"row {r}: position {pos[r, 0]}, heads rotated by {_runs(found[r])}" for r in rows[:8])
    for text, wanted in (
        ("not rotated at all", np.zeros_like(mine)),
        ("rotated twice", 2 * mine),
        ("rotated the other way", -mine),
        ("positions counted from the block's first row", mine - pos[0, 0]),
    ):
        if np.array_equal(theirs, wanted) and (mine != wanted).any():
            return text, details, heads.tolist()
    lines = []
    for row in rows[:8]:
        offsets = found[row, heads] - pos[row, heads]
        pieces = [f"heads {spans(heads[offsets == o])} at pos{int(o):+d}" for o in dict.fromkeys(offsets.tolist()) if o]
        lines.append(f"row {row}: " + ", ".join(pieces[:16]))
    merged = (
        f"every diverging row at pos{int(theirs[0, 0] - mine[0, 0]):+d}" if len(np.unique(theirs - mine)) == 1 and len(rows) > 8 else ""
    )
    return "rotated by another position; " + (merged or "; ".join(lines) + ("; …" if len(rows) > 8 else "")), details, heads.tolist()


def _runs(row: Positions) -> str:
    """``120 (heads 0-1, 14-23), 121 (heads 2-3)``."""
    return ", ".join(f"{p} (heads {spans(np.flatnonzero(row == p))})" for p in dict.fromkeys(row.tolist()))


def _thetas(s: Suspect, pos: Positions, recipe: Rope, kind: str, name: str) -> Iterator[Hypothesis]:
    """Known thetas, and the one that fits the diverging rows by least squares."""
    fitted = fitted_theta(s, pos, recipe)
    tried = [(t, False) for t in THETAS if t != recipe.theta and (fitted is None or abs(np.log(t / fitted)) < 0.05)]
    for theta, fallback in tried + (rounder(fitted) if fitted is not None else []):
        if theta == recipe.theta:
            continue
        text, p = f"theta {theta:.6g} in place of {recipe.theta:.6g}", {"theta": theta, "declared": recipe.theta}
        changed = with_args(s.stage, s.stage.args[0], s.stage.args[1], replace(recipe, theta=theta))
        if kind:
            yield Hypothesis(kind, f"{name}, and {text}", changed, fallback=True, parameters=p)
        else:
            yield Hypothesis("rope.theta", text, changed, fallback=fallback, parameters=p)


def fitted_theta(s: Suspect, pos: Positions, recipe: Rope) -> float | None:
    """The theta with the least squares over the diverging rows: a grid fine enough for their phases, then Newton's method.

    It minimises ``Σ |c - x e^(i p f)|²``, that is, maximises ``Re Σ c x* e^(-i p f)``; storage rounding averages out over the
    elements. None where the best lies outside the thetas that are searched.
    """
    agreement, p = _agreement(s, pos, recipe)
    if agreement is None or not len(p):
        return None
    share = np.arange(0, recipe.dim, 2) / recipe.dim
    factors = 1.0 if recipe.factors is None else np.asarray(recipe.factors)

    def score(logs: Array) -> Array:
        freq = np.exp(-logs[:, None] * share) / factors
        return np.asarray(np.stack([np.real(np.exp(-1j * p * f[None, :]) * agreement).sum() for f in freq]))

    low, high = np.log(THETA_RANGE[0]), np.log(THETA_RANGE[1])
    # The phase p f changes by p f share per unit of log theta; f share is at most 1 / (e log theta).
    step = max(0.5 * np.e * low / float(np.abs(p).max()), (high - low) / GRID)
    logs = np.concatenate([[np.log(recipe.theta)], np.arange(low, high, step)])
    at = _climbed(agreement, p, share, factors, float(logs[score(logs).argmax()]))
    # Climbing out of the range that is searched is no fit: where nothing turns the values, any theta is as good.
    declared = float(np.log(recipe.theta))
    return float(np.exp(at)) if min(low, declared) - 1 <= at <= max(high, declared) + 1 else None


def _agreement(s: Suspect, pos: Positions, recipe: Rope) -> tuple[Any, Array]:
    """``c x*`` summed over the diverging heads of a few rows [row, pair] and their positions [row, 1]; none where heads differ."""
    rows, heads = s.rows, s.heads
    if heads is None or recipe.dim < 4:
        return None, np.empty((0, 1))
    rows = rows[(pos[rows] == pos[rows, :1]).all(1) & (pos[rows, 0] != 0)]
    if not len(rows):
        return None, np.empty((0, 1))
    # The smallest position can be told over the widest range, the largest to the most digits.
    order = rows[np.argsort(pos[rows, 0], kind="stable")]
    rows = np.unique(np.concatenate([order[: FITTED_ROWS // 2], order[-FITTED_ROWS:]]))
    turned, start = (a + 1j * b for a, b in (halves(s.c, recipe), halves(s.stage.args[0].data, recipe)))
    return (turned * np.conj(start))[rows][:, heads].sum(1), np.asarray(pos[rows, :1], float)


def _climbed(agreement: Any, p: Array, share: Array, factors: Any, at: float) -> float:
    """Gauss-Newton on log theta: each pair's phase error is ``arg(c x* e^(-ipf))``, its slope ``p f share``."""
    for _ in range(30):
        freq = np.exp(-at * share) / factors
        rest = np.angle(agreement * np.exp(-1j * p * freq))
        slope = -p * freq * share
        weight = np.abs(agreement)
        energy = float((weight * slope**2).sum())
        if energy == 0:
            return at
        move = float((weight * slope * rest).sum()) / energy
        at += float(np.clip(move, -0.5, 0.5))
        if abs(move) < 1e-15:
            break
    return at


def _scalings(s: Suspect, recipe: Rope) -> Iterator[Hypothesis]:
    """Positions divided (or not divided) by a whole factor: linear scaling left out or made up."""
    x, pos, _ = s.stage.args
    for factor in SCALINGS:
        for by, text in ((1 / factor, f"positions divided by {factor:g}"), (factor, f"positions times {factor:g}")):
            yield Hypothesis("rope.scaling", shortened(text), with_args(s.stage, x, np.asarray(pos, float) * by, recipe))
