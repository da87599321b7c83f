"""Attention: which cells were seen (causal, window, sink, stale or missing cells), the scale, the map of query to kv heads, a cap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from oracle.block_dot import narrowed
from oracle.kit import EXACT
from oracle.readings import values as arrays
from oracle.recipes import WINDOW_RULES, Visible
from oracle.tensor import Array, Tensor
from parity.explain.base import Hypothesis, Suspect, become, mapped, rounder, spans, with_arg, with_args, with_params
from parity.explain.fitting import Seen, restricted
from parity.explain.softmax_sums import flipped_cells, pairs, sinks_of, suffix_start

MAX_CELLS, MAX_ROWS_FITTED = 4, 4
CAPS = (20.0, 30.0, 50.0)


@dataclass(frozen=True, eq=False)
class Turned(Visible):
    """Visibility with some cells always or never seen: ``added`` and ``missing``, bool [cell]."""

    missing: NDArray[np.bool_] | None = None
    added: NDArray[np.bool_] | None = None

    def matrix(self) -> NDArray[np.bool_]:
        seen = super().matrix()
        if self.missing is not None:
            seen = seen & ~self.missing[None, :]
        return seen if self.added is None else seen | self.added[None, :]


def _turned(v: Visible, missing: NDArray[np.bool_] | None, added: NDArray[np.bool_] | None) -> Visible | Seen:
    if type(v) is Visible:
        return Turned(v.rule, v.causal, v.window, v.q_pos, v.k_pos, v.block_start, missing, added)
    seen = v.matrix()
    seen = seen if missing is None else seen & ~missing[None, :]
    return Seen(seen if added is None else seen | added[None, :])


def with_cell(v: Visible, added: NDArray[np.bool_]) -> Visible | Seen:
    return _turned(v, None, added)


def without(v: Visible, missing: NDArray[np.bool_]) -> Visible | Seen:
    return _turned(v, missing, None)


def hypotheses(s: Suspect) -> Iterator[Hypothesis]:
    yield from _stored(s)
    v = s.stage.params["visible"]
    if isinstance(v, Visible):
        yield from _masks(s, v)
        yield from _windows(s, v)
    yield from _scales(s)
    yield from _heads(s)
    yield from _forms(s)
    yield from _cells(s)


def _stored(s: Suspect) -> Iterator[Hypothesis]:
    """Queries and probabilities rounded before their products, as engines do that keep keys and values in 16 bits."""
    if s.stage.op.name != "attention":
        return
    q, k, v = s.stage.args
    for store in ("f16", "bf16") if s.stage.params.get("probabilities", "f32") == "f32" else ():
        text = f"quantised activations, not a bug: queries and probabilities rounded to {store} before their products"
        text += " (--arithmetic llama.cpp-cpu)" if store == "f16" else f" (--arithmetic …,probabilities={store},use=*.attn:{store})"
        call = with_params(with_args(s.stage, narrowed(store, q), k, v), probabilities=store)
        yield Hypothesis("attention.activations", text, call, parameters={"use": store, "probabilities": store})


def _masks(s: Suspect, v: Visible) -> Iterator[Hypothesis]:
    kind = "bidirectional" if v.causal else "causal"
    yield Hypothesis("attention.causal", f"the block read as {kind}", with_params(s.stage, visible=replace(v, causal=not v.causal)))
    delta, seen = v.q_pos[:, None] - v.k_pos[None, :], v.matrix()
    for text, matrix in (
        ("a row does not see itself", seen & (delta != 0)),
        ("every row sees what the first row sees", np.broadcast_to(seen[:1], seen.shape)),
        ("every row sees what the last row sees", np.broadcast_to(seen[-1:], seen.shape)),
        ("one cell more than causal: the next row is seen", seen | (delta == -1)),
        ("no mask at all: every cell is seen", np.ones_like(seen)),
    ):
        yield Hypothesis("attention.mask", text, with_params(s.stage, visible=Seen(np.asarray(matrix))), general=True)
    context = np.arange(len(v.k_pos)) < v.block_start
    if context.any() and not context.all():
        yield Hypothesis("attention.cells", "no context cell seen", with_params(s.stage, visible=without(v, context)))
        yield Hypothesis("attention.cells", "no block cell seen", with_params(s.stage, visible=without(v, ~context)))
        last = np.arange(len(v.k_pos)) == v.block_start - 1
        yield Hypothesis("attention.cells", "the last context cell not seen", with_params(s.stage, visible=without(v, last)))
    gaps = np.flatnonzero(np.diff(v.k_pos[: v.block_start]) > 1)
    if len(gaps):
        sink = np.arange(len(v.k_pos)) <= gaps[0]
        yield Hypothesis("attention.sink", f"the {int(sink.sum())} sink cells not seen", with_params(s.stage, visible=without(v, sink)))


def _windows(s: Suspect, v: Visible) -> Iterator[Hypothesis]:
    """Another width (solved from the first cell each row saw), another rule, none."""
    if v.window is not None and v.rule not in ("none", "SINK_RING"):
        widths = [*_solved_widths(s, v), *(v.window + d for d in (-1, 1, -2, 2)), v.window // 2, v.window * 2]
        everything = _width_of_all(v)
        for width in dict.fromkeys(w for w in widths if 1 <= w < everything and w != v.window):
            yield _window(s, v, replace(v, window=width), f"window {width} in place of {v.window}", width)
        if everything > v.window:
            text = f"a window of {everything} or wider (such as {v.window * 16}), or none at all, in place of {v.window}"
            yield _window(s, v, replace(v, window=everything), text, everything)
    for rule in WINDOW_RULES:
        if rule not in (v.rule, "SINK_RING", "none") and v.window is not None:
            yield _window(s, v, replace(v, rule=rule), f"window rule {rule} in place of {v.rule}", v.window)
    if v.window is None or v.rule in ("none", "SINK_RING"):
        for rule in ("W_LE", "W_LT", "W_ANCHOR"):
            for width in _solved_widths(s, replace(v, rule=rule, window=1)):
                text = f"a window of {width} ({rule}), though the layer has none"
                yield _window(s, v, replace(v, rule=rule, window=width), text, width)


def _window(s: Suspect, v: Visible, wrong: Visible, text: str, width: int | None) -> Hypothesis:
    """``details``: the first row whose visible cells change, which is where it shows."""
    changed = np.flatnonzero((v.matrix() != wrong.matrix()).any(1))
    details = (f"row {changed[0]} is the first whose cells change; {len(changed)} of {len(v.q_pos)} rows show it",) if len(changed) else ()
    p = {"window": width, "declared": v.window, "rule": wrong.rule, "rows": changed[:512].tolist()}
    kind = "attention.window" if wrong.rule == v.rule else "attention.rule"
    return Hypothesis(kind, text, with_params(s.stage, visible=wrong), parameters=p, details=details)


def _width_of_all(v: Visible) -> int:
    """The least width under which every row sees every cell of the context."""
    anchor = v.rule in ("W_ANCHOR", "W_RING")
    reach = int((v.q_pos[0] if anchor else v.q_pos.max(initial=0)) - v.k_pos.min(initial=0))
    return reach if v.rule in ("W_LE", "W_ANCHOR") else reach + 1


def _solved_widths(s: Suspect, v: Visible) -> list[int]:
    """Widths under the rule that would start each diverging row at the context cell it really started at."""
    if not v.block_start:
        return []
    rows = s.rows[:: max(len(s.rows) // MAX_ROWS_FITTED, 1)]
    widths: list[int] = []
    for one in pairs(s, rows):
        start = suffix_start(one, 0, v.block_start)
        if start is None:
            continue
        anchor = v.rule in ("W_ANCHOR", "W_RING")
        origin = int(v.q_pos[0]) if anchor else int(v.q_pos[one.row])
        # A start behind every context cell stands for a window that ends before them.
        first = int(v.k_pos[start]) if start < len(v.k_pos) else int(v.k_pos[-1]) + 1
        reach = origin - first
        widths.append(reach if v.rule in ("W_LE", "W_ANCHOR") else reach + 1)
    return sorted(set(widths), key=lambda w: -widths.count(w))[:3]


def _scales(s: Suspect) -> Iterator[Hypothesis]:
    scale, dim = s.stage.params["scale"], s.stage.args[0].data.shape[-1]
    for factor, text in (
        (1 / scale, "no scale at all"),
        (scale, "the scale applied twice"),
        (dim**-0.5 / scale, f"scale {dim}^-1/2"),
        (1 / dim / scale, f"scale 1/{dim}"),
        (2.0, "the scale doubled"),
        (0.5, "the scale halved"),
        (2**0.5, "the scale times sqrt 2"),
        (0.5**0.5, "the scale over sqrt 2"),
    ):
        if abs(factor - 1) > 1e-9:
            p = {"scale": scale * factor, "declared": scale}
            yield Hypothesis("attention.scale", text, with_params(s.stage, scale=scale * factor), parameters=p)
    found = _fit_scale(s)
    for ratio, _ in rounder(found / scale) if found is not None else []:
        text = f"scale {scale * ratio:.6g} in place of {scale:.6g} ({ratio:.6g} times)"
        p = {"scale": scale * ratio, "declared": scale}
        yield Hypothesis("attention.scale", text, with_params(s.stage, scale=scale * ratio), None, True, parameters=p)


def _fit_scale(s: Suspect) -> float | None:
    """The scale that brings a few rows nearest in all diverging heads, by Newton steps on its logarithm."""
    part = restricted(s.stage, s.rows[:MAX_ROWS_FITTED])
    if part is None:
        return None
    q, k, v, *sinks = arrays(part.args)
    target, scale = s.c[s.rows[:MAX_ROWS_FITTED]], float(s.stage.params["scale"])
    heads = s.heads if s.heads is not None else slice(None)

    def out(at: float) -> Array:
        return np.asarray(part.op.formula(EXACT, q, k, v, *sinks, visible=part.params["visible"], scale=at))[:, heads]

    for _ in range(12):
        y, step = out(scale), scale * 1e-6
        slope = (out(scale + step) - y) / step
        energy = float((slope * slope).sum())
        if energy == 0:
            return None
        moved = float(np.clip(scale + float((slope * (target[:, heads] - y)).sum()) / energy, scale / 2, scale * 2))
        done = abs(moved - scale) <= 1e-9 * scale
        scale = moved
        if done:
            break
    return scale if np.isfinite(scale) and scale > 0 else None


def _heads(s: Suspect) -> Iterator[Hypothesis]:
    q, k, v, *sinks = s.stage.args
    heads, kv_heads = q.data.shape[1], k.data.shape[1]
    group = heads // kv_heads
    maps = []
    if group > 1 and kv_heads > 1:
        maps.append((np.arange(heads) % kv_heads, "query head h read kv head h mod kv_heads, not h // group"))
        maps.append((np.zeros(heads, int), "every query head read kv head 0"))
    if kv_heads > 1:
        solved = _solved_map(s)
        if not np.array_equal(solved, np.arange(heads) // group):
            wrong = np.flatnonzero(solved != np.arange(heads) // group)
            text = ", ".join(f"query heads {spans(wrong[solved[wrong] == g])} read kv head {g}" for g in np.unique(solved[wrong]))
            maps.append((solved, text))
    for index, text in maps:
        wide = [Tensor(t.data[:, index], t.axes) for t in (k, v)]
        p = {"kv_head": index.tolist()}
        yield Hypothesis("attention.gqa", text, with_args(s.stage, q, *wide, *sinks), fallback=len(text) > 60, parameters=p)
    yield Hypothesis("attention.values", "keys read in place of values", with_arg(s.stage, 2, Tensor(k.data, k.axes)))
    yield Hypothesis("attention.values", "values read in place of keys", with_arg(s.stage, 1, Tensor(v.data, v.axes)))


def _solved_map(s: Suspect) -> NDArray[np.intp]:
    """The kv head whose cells give each diverging query head's output best, int [head]."""
    part = restricted(s.stage, s.rows[:2])
    q, k, v, *sinks = arrays(s.stage.args)
    heads, kv_heads = q.shape[1], k.shape[1]
    found = np.arange(heads) // (heads // kv_heads)
    if part is None or s.heads is None:
        return np.asarray(found)
    few = part.args[0].data
    costs = []
    for g in range(kv_heads):
        one = (k[:, [g]], v[:, [g]])
        out = part.op.formula(EXACT, few, *one, *sinks, **part.params)
        costs.append(np.square(out - s.c[s.rows[:2]]).sum((0, 2)))
    found[s.heads] = np.argmin(costs, 0)[s.heads]
    return np.asarray(found)


def _forms(s: Suspect) -> Iterator[Hypothesis]:
    """Scores and weights formed otherwise: a cap, cells of zeros, no normaliser, rows of K or V one cell off."""
    q, k, v = s.stage.args[:3]
    yield from _zero_cells(s)
    for t, name, index in ((k, "keys", 1), (v, "values", 2)):
        for shift in (1, -1):
            moved = Tensor(np.roll(t.data, shift, 0), t.axes)
            yield Hypothesis(
                "attention.aligned", f"the {name} {abs(shift)} cell off against the other ({-shift:+d})", with_arg(s.stage, index, moved)
            )
    part = restricted(s.stage, s.rows)
    if part is None or q.data.size * len(k.data) > 1 << 27:
        return
    for cap in CAPS:
        value = s.y.data.copy()
        seen, scale = part.params["visible"].matrix(), part.params["scale"]
        value[s.rows] = _capped(part.args[0].data, k.data, v.data, sinks_of(part), seen, scale, cap)
        yield Hypothesis("attention.softcap", f"scores capped at {cap:g}", s.stage, become(value), parameters={"cap": cap})


def _capped(q: Array, k: Array, v: Array, sinks: Array, seen: NDArray[np.bool_], scale: float, cap: float) -> Array:
    out, group = np.zeros(q.shape), q.shape[1] // k.shape[1]
    for h in range(q.shape[1]):
        scores = cap * np.tanh(q[:, h] @ k[:, h // group].T * scale / cap)
        top = scores.max(-1, keepdims=True, initial=max(sinks[h], -1e9))
        e = np.where(seen, np.exp(scores - top), 0.0)
        out[:, h] = e @ v[:, h // group] / np.maximum(e.sum(-1, keepdims=True) + np.exp(sinks[h] - top), 1e-300)
    return out


def _zero_cells(s: Suspect) -> Iterator[Hypothesis]:
    """The output times one factor per row and head: the normaliser holds more than the seen cells (``n`` cells of zeros, or a sink)."""
    q, k = s.stage.args[:2]
    sinks = np.exp(sinks_of(s.stage))
    seen, scale, group = s.stage.params["visible"].matrix(), s.stage.params["scale"], q.data.shape[1] // k.data.shape[1]
    heads = s.heads if s.heads is not None else np.arange(q.data.shape[1])
    extra: list[float] = []
    factor = np.ones(s.c.shape[:2])
    for row in s.rows:
        for head in heads:
            o, c = s.y.data[row, head], s.c[row, head]
            energy = float(o @ o)
            ratio = float(o @ c) / energy if energy else 0.0
            factor[row, head] = ratio
            total = np.exp(np.clip(k.data[seen[row], head // group] @ q.data[row, head] * scale, -700, 700)).sum() + sinks[head]
            extra.append((1 / ratio - 1) * total if ratio > 0 else np.nan)
    n = np.asarray(extra)
    if not np.isfinite(n).all() or not len(n) or n.min() <= 0:
        return
    change = mapped(lambda a: a * factor[..., None])
    count = float(np.median(n))
    if np.abs(n / count - 1).max() < 0.02:
        whole = round(count)
        if whole and abs(count / whole - 1) < 0.01:
            text = f"{whole} more cells of zeros were seen (a score of 0 each in the normaliser)"
        else:
            text = f"a sink of logit {np.log(count):.4g} in the normaliser of every head"
        yield Hypothesis("attention.normaliser", text, s.stage, change, parameters={"extra": count})
        return
    by_head = n.reshape(len(s.rows), -1)
    if len(s.rows) > 1 and (np.abs(by_head / np.median(by_head, 0) - 1).max(0) < 0.05).all():
        logits = np.log(np.median(by_head, 0))
        text = "a sink logit per head in the normaliser: " + ", ".join(f"{x:.3g}" for x in logits[:8])
        yield Hypothesis("attention.normaliser", text, s.stage, change, parameters={"logits": logits.tolist()})


def _cells(s: Suspect) -> Iterator[Hypothesis]:
    """A few cells missing or, among the unseen, seen too many: those whose turning fits the outputs best."""
    v = s.stage.params["visible"]
    flips = flipped_cells(list(pairs(s)), MAX_CELLS)
    at = np.asarray(getattr(v, "k_pos", np.arange(len(s.stage.args[1].data))))
    ever = v.matrix()[s.rows].any(0)
    index = np.arange(len(at))
    for count in range(1, len(flips) + 1):
        missing, extra = (np.isin(index, [c for c in flips[:count] if ever[c] == was]) for was in (True, False))
        pieces = []
        for cells, text in ((missing, "not seen"), (extra, "seen, though {} not visible")):
            chosen = np.flatnonzero(cells)
            if len(chosen):
                name = (
                    f"cell {chosen[0]} (position {at[chosen[0]]})"
                    if len(chosen) == 1
                    else f"cells {spans(chosen)} (positions {spans(at[chosen])})"
                )
                pieces.append(f"{name} " + text.format("it is" if len(chosen) == 1 else "they are"))
        edited = with_params(s.stage, visible=_turned(v, missing if missing.any() else None, extra if extra.any() else None))
        p = {"missing": np.flatnonzero(missing).tolist(), "extra": np.flatnonzero(extra).tolist()}
        yield Hypothesis(
            "attention.cell" if missing.any() else "attention.extra", "; ".join(pieces), edited, fallback=count > 1, parameters=p
        )
