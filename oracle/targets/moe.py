"""The routed half of a mixture of experts: router, selection, weights, the selected experts' SwiGLU MLPs, their weighted sum.

Source: `specs/laguna.md` 1.3 (14a to 14f), `specs/qwen38-flash-next.md` 1.5. Shared experts are ordinary MLPs of the family.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from oracle.tape import Machine
from oracle.tensor import Tensor
from oracle.weights import Weight

Scores = Literal["sigmoid", "softmax"]


@dataclass(frozen=True, eq=False)
class Mixture:
    """``router [expert, in]``; per expert ``gate, up [dim, in]`` and ``down [dim, in]``; ``bias [expert]`` of the selection or None."""

    router: Weight
    gate: tuple[Weight, ...]
    up: tuple[Weight, ...]
    down: tuple[Weight, ...]
    bias: Weight | None = None


def parts(packed: Weight, count: int, start: int = 0, stop: int | None = None) -> tuple[Weight, ...]:
    """The experts of a tensor ``packed [expert, out, in]``: rows ``start:stop`` of each as a `Weight` of its own, nothing copied."""
    rows = packed.row_count // count
    stop = rows if stop is None else stop
    return tuple(
        Weight(
            packed.raw[e * rows + start : e * rows + stop],
            ("dim", "in"),
            (stop - start, packed.width),
            packed.stored,
            f"{packed.name}[{e}]",
        )
        for e in range(count)
    )


def routed(m: Machine, w: Mixture, x: Tensor, *, k: int, scores: Scores, scale: float = 1.0, cap: float | None = None) -> Tensor:
    """x [row, dim] -> the weighted sum of its k selected experts [row, dim].

    ``scores``: how logits become scores; ``scale``: of the normalised weights; ``cap``: tanh cap of the logits, or None.
    """
    logits = m.linear("router_logits" if cap is None else "router", x, w.router)
    if cap is not None:
        logits = m.softcap("router_logits", logits, scale=1.0, cap=cap)
    s = m.sigmoid("router_scores", logits) if scores == "sigmoid" else m.softmax("router_scores", logits)
    selected = m.select("selected", s, w.bias, k=k)
    weights = m.expert_weights("expert_weights", s, selected, scale=scale)
    gate = m.expert_linear("expert_gate", x, selected, w.gate)
    act = m.swiglu("expert_act", gate, m.expert_linear("expert_up", x, selected, w.up))
    return m.expert_sum("expert_out", m.expert_linear("expert_down", act, selected, w.down), weights)
