"""Recipes passed to operations instead of results, so that a fault or an explanation can edit them.

`Rope`: `specs/dflash-generic.md` section 9. `Visible`: section 5 of the same file (the sets shown there are tests).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.tensor import Array

ROPE_STYLES = ("neox", "interleaved")
WINDOW_RULES = ("none", "W_LT", "W_LT_left", "W_LE", "W_LT_ctx", "W_ANCHOR", "W_RING", "SINK_RING")


@dataclass(frozen=True)
class Rope:
    """Rotary embedding: ``theta``, pairing ``style``, rotary width ``dim`` (the first ``dim`` entries of a head rotate).

    ``factors``: one divisor per pair (Llama 3 ``rope_freqs``); ``attention_factor`` multiplies cos and sin (YaRN).
    """

    theta: float
    dim: int
    style: str = "neox"
    factors: tuple[float, ...] | None = None
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        if self.style not in ROPE_STYLES:
            raise ValueError(f"rope style {self.style!r}: expected one of {', '.join(ROPE_STYLES)}")
        if self.dim < 2 or self.dim % 2:
            raise ValueError(f"rope width {self.dim}: expected an even number of at least 2")

    def inv_freq(self) -> Array:
        """Angular frequency of each pair, ``theta^(-2i/dim) / factor_i``, float64 [dim/2]."""
        freq = self.theta ** (-np.arange(0, self.dim, 2, dtype=np.float64) / self.dim)
        return freq if self.factors is None else freq / np.asarray(self.factors, np.float64)

    def angles(self, pos: Array) -> Array:
        """Angles of positions float64 [row, head or 1, 1]: ``pos * f`` [row, head or 1, pair]."""
        return np.asarray(pos * self.inv_freq())


@dataclass(frozen=True)
class Yarn:
    """What the factors of a YaRN rope are made of (`specs/laguna.md` 1.4): ``original`` positions stretched by ``factor``; pairs that
    turn more than about ``fast`` times in them are left alone, those that turn less than about ``slow`` times stretched whole."""

    factor: float
    original: int
    fast: float = 32.0
    slow: float = 1.0


@dataclass(frozen=True, eq=False)
class Visible:
    """Which cells each query row may see.

    ``q_pos`` int64 [row], ``k_pos`` int64 [cell]: absolute positions. ``block_start``: index of the first cell that
    belongs to the block itself (cells before it are context). ``rule`` is one of `WINDOW_RULES`; ``window`` its width.
    ``held`` bool [cell]: cells that a rotating cache still has, or None for all.
    """

    rule: str
    causal: bool
    window: int | None
    q_pos: NDArray[np.int64]
    k_pos: NDArray[np.int64]
    block_start: int
    held: NDArray[np.bool_] | None = field(default=None, kw_only=True)

    def matrix(self) -> NDArray[np.bool_]:
        """Visibility as bool [row, cell]."""
        delta = self.q_pos[:, None] - self.k_pos[None, :]
        seen = delta >= 0 if self.causal else np.ones_like(delta, bool)
        if self.held is not None:
            seen = seen & self.held
        if self.rule in ("none", "SINK_RING"):
            return seen
        if self.window is None:
            raise ValueError(f"window rule {self.rule} needs a window width")
        context = np.arange(len(self.k_pos)) < self.block_start
        return np.asarray(seen & self._inside(delta, context, self.window), bool)

    def _inside(self, delta: NDArray[np.int64], context: NDArray[np.bool_], w: int) -> NDArray[np.bool_]:
        """The window's own condition, delta = query - key position [row, cell]."""
        if self.rule == "W_LT":
            return np.asarray(np.abs(delta) < w)
        if self.rule == "W_LT_left":
            return np.asarray(delta < w)
        if self.rule == "W_LE":
            return np.asarray(np.abs(delta) <= w)
        if self.rule == "W_LT_ctx":
            return np.asarray((delta < w) | ~context)
        anchor = self.q_pos[0] if len(self.q_pos) else 0
        keep = self.k_pos >= anchor - (w if self.rule == "W_ANCHOR" else w - 1)
        return np.asarray(keep[None, :] | ~context)


def undecided_rows(visible: Any) -> NDArray[np.bool_] | None:
    """Rows [row] whose visible cells were chosen and could be others, or None."""
    found: NDArray[np.bool_] | None = getattr(visible, "undecided", None)
    return found
