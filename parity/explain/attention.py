"""Attention: which cells were seen (causal, window, sink, stale or missing cells), the scale, the map of query to kv heads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from oracle.recipes import WINDOW_RULES, Visible
from oracle.tensor import Tensor
from parity.explain.base import Hypothesis, Suspect, rounder, with_args, with_params


@dataclass(frozen=True, eq=False)
class Without(Visible):
    """Visibility less some cells."""

    missing: NDArray[np.bool_] | None = None

    def matrix(self) -> NDArray[np.bool_]:
        seen = super().matrix()
        return seen if self.missing is None else seen & ~self.missing[None, :]


@dataclass(frozen=True, eq=False)
class With(Visible):
    """Visibility and some cells more."""

    added: NDArray[np.bool_] | None = None

    def matrix(self) -> NDArray[np.bool_]:
        seen = super().matrix()
        return seen if self.added is None else seen | self.added[None, :]


def with_cell(v: Visible, added: NDArray[np.bool_]) -> With:
    return With(v.rule, v.causal, v.window, v.q_pos, v.k_pos, v.block_start, added)


def without(v: Visible, missing: NDArray[np.bool_]) -> Without:
    return Without(v.rule, v.causal, v.window, v.q_pos, v.k_pos, v.block_start, missing)


def hypotheses(s: Suspect) -> Iterator[Hypothesis]:
    yield from _masks(s)
    yield from _scales(s)
    yield from _heads(s)
    yield from _cells(s)


def _masks(s: Suspect) -> Iterator[Hypothesis]:
    v: Visible = s.stage.params["visible"]
    kind = "bidirectional" if v.causal else "causal"
    yield Hypothesis("attention.causal", f"the block read as {kind}", with_params(s.stage, visible=replace(v, causal=not v.causal)))
    if v.window is not None and v.rule != "none":
        widths = [v.window + d for d in (-2, -1, 1, 2)] + [v.window // 2, v.window * 2, v.window // 4, v.window * 16]
        for width in dict.fromkeys(w for w in widths if w >= 1 and w != v.window):
            yield Hypothesis(
                "attention.window", f"window {width} in place of {v.window}", with_params(s.stage, visible=replace(v, window=width))
            )
        for rule in WINDOW_RULES:
            if rule not in (v.rule, "SINK_RING"):
                text = "no window at all" if rule == "none" else f"window rule {rule} in place of {v.rule}"
                yield Hypothesis("attention.window", text, with_params(s.stage, visible=replace(v, rule=rule)))
    context = np.arange(len(v.k_pos)) < v.block_start
    if context.any() and not context.all():
        yield Hypothesis("attention.cells", "no context cell seen", with_params(s.stage, visible=without(v, context)))
        yield Hypothesis("attention.cells", "no block cell seen", with_params(s.stage, visible=without(v, ~context)))
    gaps = np.flatnonzero(np.diff(v.k_pos[: v.block_start]) > 1)
    if len(gaps):
        sink = np.arange(len(v.k_pos)) <= gaps[0]
        yield Hypothesis("attention.sink", f"the {int(sink.sum())} sink cells not seen", with_params(s.stage, visible=without(v, sink)))


def _scales(s: Suspect) -> Iterator[Hypothesis]:
    scale, dim = s.stage.params["scale"], s.stage.args[0].data.shape[-1]
    for factor, text in (
        (1 / scale, "no scale at all"),
        (scale, "the scale applied twice"),
        (dim**-0.5 / scale, f"scale {dim}^-1/2"),
        (2.0, "the scale doubled"),
        (0.5, "the scale halved"),
        (2**0.5, "the scale times sqrt 2"),
        (0.5**0.5, "the scale over sqrt 2"),
    ):
        if abs(factor - 1) > 1e-9:
            yield Hypothesis("attention.scale", text, with_params(s.stage, scale=scale * factor))
    found = _fit_scale(s)
    for ratio, fitted in rounder(found / scale) if found is not None else []:
        text = f"scale {scale * ratio:.6g} in place of {scale:.6g} ({ratio:.6g} times)"
        yield Hypothesis("attention.scale", text, with_params(s.stage, scale=scale * ratio), None, fitted)


def _fit_scale(s: Suspect) -> float | None:
    """The scale that brings one row and head nearest, by Newton steps on its logarithm."""
    from oracle.kit import EXACT

    q, k, v = (a.data for a in s.stage.args)
    row, head = int(s.rows[0]), int(s.heads[0]) if s.heads is not None else 0
    group = q.shape[1] // k.shape[1]
    visible: Visible = s.stage.params["visible"]
    one = replace(visible, q_pos=visible.q_pos[row : row + 1]) if type(visible) is Visible else None
    if one is None:
        return None
    scale = float(s.stage.params["scale"])

    def out(at: float) -> NDArray[np.float64]:
        kv = slice(head // group, head // group + 1)
        return np.asarray(s.stage.op.formula(EXACT, q[row : row + 1, head : head + 1], k[:, kv], v[:, kv], visible=one, scale=at))

    target = s.c[row, head]
    for _ in range(30):
        y, step = out(scale), scale * 1e-6
        slope = (out(scale + step) - y)[0, 0] / step
        energy = float(slope @ slope)
        if energy == 0:
            return None
        scale = float(np.clip(scale + float(slope @ (target - y[0, 0])) / energy, scale / 2, scale * 2))
    return scale if np.isfinite(scale) and scale > 0 else None


def _heads(s: Suspect) -> Iterator[Hypothesis]:
    q, k, v = s.stage.args
    group = q.data.shape[1] // k.data.shape[1]
    if group > 1 and k.data.shape[1] > 1:
        index = np.arange(q.data.shape[1]) % k.data.shape[1]
        wide = [Tensor(t.data[:, index], t.axes) for t in (k, v)]
        yield Hypothesis("attention.gqa", "query head h read kv head h mod kv_heads, not h // group", with_args(s.stage, q, *wide))
        yield Hypothesis(
            "attention.gqa",
            "every query head read kv head 0",
            with_args(s.stage, q, *(Tensor(t.data[:, index * 0], t.axes) for t in (k, v))),
        )
    same = Tensor(k.data, k.axes)
    yield Hypothesis("attention.values", "keys read in place of values", with_args(s.stage, q, k, same))


def _cells(s: Suspect) -> Iterator[Hypothesis]:
    """One cell missing or, among the unseen, one seen too many: the cell whose absence (presence) fits the outputs best."""
    v: Visible = s.stage.params["visible"]
    missing, extra = _best_cells(s)
    for cell in missing:
        text = f"cell {cell} (position {int(v.k_pos[cell])}) not seen"
        yield Hypothesis("attention.cell", text, with_params(s.stage, visible=without(v, np.arange(len(v.k_pos)) == cell)))
    for cell in extra:
        text = f"cell {cell} (position {int(v.k_pos[cell])}) seen, though it is not visible"
        yield Hypothesis("attention.cell", text, with_params(s.stage, visible=with_cell(v, np.arange(len(v.k_pos)) == cell)))


def _best_cells(s: Suspect) -> tuple[list[int], list[int]]:
    """Without cell j the output is ``(o - p_j v_j) / (1 - p_j)``, with an unseen one ``(o + e_j v_j) / (1 + e_j)``: the nearest of each."""
    q, k, values = (a.data for a in s.stage.args)
    seen, scale = s.stage.params["visible"].matrix(), s.stage.params["scale"]
    group = q.shape[1] // k.shape[1]
    cost = np.zeros((2, len(k)))
    for head in s.heads if s.heads is not None else range(q.shape[1]):
        kv = head // group
        for row in s.rows:
            scores = k[:, kv] @ q[row, head] * scale
            weight = np.exp(scores - scores[seen[row]].max(initial=-np.inf))
            p = weight / weight[seen[row]].sum()
            o, v = s.y.data[row, head], values[:, kv]
            with np.errstate(all="ignore"):
                for kind, sign in enumerate((-1.0, 1.0)):
                    changed = (o + sign * p[:, None] * v) / (1 + sign * p[:, None])
                    cost[kind] += np.where(
                        seen[row] == (sign < 0), np.square(changed - s.c[row, head]).sum(1), np.square(o - s.c[row, head]).sum()
                    )
    missing, extra = ([int(c.argmin())] if np.isfinite(c).any() else [] for c in cost)
    return missing, extra
