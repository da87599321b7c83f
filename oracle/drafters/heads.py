"""From a block's logits to its drafts: the plain choice, DFlash 2's selector walk, DSpark's Markov and confidence heads.

Source: `specs/dflash-generic.md` sections 11, 12, 14 and 15. A walk goes through the drafted rows in order, each choice being what
the next row follows; the stages of block row 1 are ``draft.row1.…``, so that a candidate's own choice can be continued from.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oracle.drafters.dialect import Dialect, Geometry
from oracle.drafters.weights import DrafterWeights, MarkovWeights
from oracle.tape import Machine
from oracle.tensor import Tensor, concatenate


def draft(
    m: Machine,
    w: DrafterWeights,
    g: Geometry,
    d: Dialect,
    anchor: NDArray[np.int64],
    hidden: Tensor,
    logits: Tensor,
    pick: Tensor,
) -> tuple[Tensor, Tensor | None]:
    """Drafts [row] of the drafted rows (all but the first in fill_in), as target ids, and their confidence [row, 1] or None.

    ``anchor`` [1]: the id before the first draft. hidden [row, dim], logits [row, vocab], pick [row]: of the whole block.
    """
    first = 1 if d.anchor_layout == "fill_in" else 0
    rows = range(first, len(logits.data))
    if d.selector and rows:
        return selector_walk(m, w, g, anchor, hidden, logits, rows), None
    if (d.markov != "none" or d.confidence != "none") and rows:
        return markov_walk(m, w, d, anchor, hidden, logits, rows)
    drafts = pick.rows(first)
    return (drafts if w.target_ids is None else m.to_target("drafts", drafts, w.target_ids)), None


def selector_walk(
    m: Machine, w: DrafterWeights, g: Geometry, anchor: NDArray[np.int64], hidden: Tensor, logits: Tensor, rows: range
) -> Tensor:
    """The greedy walk over each row's best candidates, not the best path (section 14)."""
    s = w.selector
    assert s is not None
    candidates = m.select("candidates", logits, k=g.selector_top_k)
    projected = m.linear("selector_hidden", hidden, s.hidden)
    previous, chosen = m.lift(anchor, ("row",)), []
    for r in rows:
        scope, mine = m.at(f"row{r}"), candidates.rows(r, r + 1)
        scores = scope.selector_scores(
            "selector_scores", logits.rows(r, r + 1), mine, projected.rows(r, r + 1), previous, s.predecessor, s.successor
        )
        previous = scope.choose("pick", scores, mine)
        chosen.append(previous)
    return concatenate(chosen)


def markov_walk(
    m: Machine, w: DrafterWeights, d: Dialect, anchor: NDArray[np.int64], hidden: Tensor, logits: Tensor, rows: range
) -> tuple[Tensor, Tensor | None]:
    """Row by row: a bias from the token before, the choice, and how likely the target is to accept it (section 15)."""
    previous = m.lift(anchor, ("row",))
    state = m.lift(np.zeros((1, w.markov.w1.width)), ("row", "dim")) if w.markov is not None and d.markov == "rnn" else None
    chosen, confidences = [], []
    for r in rows:
        scope, h, row_logits, embedded = m.at(f"row{r}"), hidden.rows(r, r + 1), logits.rows(r, r + 1), None
        if d.markov != "none":
            assert w.markov is not None
            embedded = scope.gather("markov_embed", w.markov.w1, previous)
            out, state = markov_code(scope, w.markov, d.markov, embedded, h, state)
            row_logits = scope.add("logits", row_logits, scope.linear("markov_bias", out, w.markov.w2))
        if d.confidence != "none":
            confidences.append(confidence(scope, w, d.confidence, h, embedded))
        previous = scope.argmax("pick", row_logits)
        if w.target_ids is not None:
            previous = scope.to_target("token", previous, w.target_ids)
        chosen.append(previous)
    return concatenate(chosen), concatenate(confidences) if confidences else None


def markov_code(
    m: Machine, w: MarkovWeights, kind: str, embedded: Tensor, hidden: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """What W2 is applied to: the embedding itself, gated by the hidden row, or read out of a recurrent state; and that state."""
    if kind == "vanilla":
        return embedded, None
    if kind == "gated":
        gate = m.linear("markov_gate", m.join("markov_in", hidden, embedded), w.gate, w.gate_bias)
        return m.gate("markov_gated", embedded, gate, kind="sigmoid"), None
    joint = m.linear("markov_joint", m.join("markov_in", state, embedded, hidden), w.joint, w.joint_bias)
    return m.markov_output("markov_out", joint), m.markov_state("markov_state", state, joint)


def confidence(m: Machine, w: DrafterWeights, kind: str, hidden: Tensor, embedded: Tensor | None) -> Tensor:
    """σ(Wc [hidden ; markov embedding] + b) [row, 1]; the hidden row alone where the head does not read the embedding."""
    x = m.join("confidence_in", hidden, embedded) if kind == "markov" else hidden
    return m.sigmoid("confidence", m.linear("confidence_logit", x, w.confidence, w.confidence_bias))
