"""What a target with a dense cache keeps between windows, and what one window gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from oracle.tensor import Tensor, concatenate
from oracle.transformer import Cells


@dataclass(frozen=True)
class State:
    """Keys and values of the processed tokens, per layer; immutable. ``keep(n)``: the state after the first n tokens."""

    layers: tuple[Cells, ...] = ()
    length: int = 0

    def keep(self, n: int) -> State:
        if not 0 <= n <= self.length:
            raise ValueError(f"a state of {self.length} rows cannot keep {n}")
        return State(tuple((k.rows(0, n), v.rows(0, n)) for k, v in self.layers), n)

    def past(self, layer: int) -> Cells | None:
        """Keys and values [cell, head, dim] of ``layer``, or None before the first token."""
        return self.layers[layer] if self.length else None


def extended(past: Cells | None, own: Cells) -> Cells:
    """The cells of a layer with the rows' own behind them."""
    return own if past is None else (concatenate([past[0], own[0]]), concatenate([past[1], own[1]]))


@dataclass(frozen=True)
class Output:
    """``logits [row, vocab]``, ``pick [row]``, ``taps``: the residual after each asked layer [row, dim], and the new state.

    ``state`` has ``length`` and ``keep(n)`` in every family; what else it holds is the family's own.
    """

    logits: Tensor
    pick: Tensor
    taps: tuple[Tensor, ...]
    state: Any = field(repr=False)
