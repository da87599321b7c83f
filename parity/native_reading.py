"""The `Native` reading: every operation of a forward carried out by a compiled library, op by op, and the fused drafter.

Weights go by pointer in their stored form; outputs are fresh; axes come from the operation's own declaration.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oracle.drafters.dialect import HISTORY_RULES
from oracle.kit import Kit
from oracle.models import Drafter
from oracle.ops.expert_linear import by_expert, inputs
from oracle.readings import Stage, values
from oracle.tensor import Axes, Tensor
from oracle.weights import Weight
from parity.case import Case
from parity.errors import CandidateError, UsageError
from parity.models import declared_stages, open_case_model

if TYPE_CHECKING:
    from dumps import DumpWriter
    from native import Context, Stored

STRUCTURAL = ("given", "cells", "join", "to_target")
# A few numbers per row, for which libraries have no entry: float32 on the host.
HOST = ("select", "expert_weights", "dynamic_conv", "selector_scores", "choose", "markov_state", "markov_output")


def stored(w: Weight) -> Stored:
    """A weight as the library takes it: its stored bytes, format and shape, flattened to [rows, in]."""
    from native import Stored

    return Stored(np.ascontiguousarray(w.raw), w.stored, (w.row_count, w.width) if len(w.shape) > 1 else w.shape)


def bias_vector(w: Weight) -> Stored:
    """A bias [head, dim] or [dim] as one row."""
    from native import Stored

    flat = np.ascontiguousarray(w.array().reshape(1, -1), "<f4")
    return Stored(flat.view(np.uint8), "f32", (flat.size,))


def _flat(x: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(x.reshape(len(x), -1), np.float32)


class Native:
    """A reading whose operations run in ``context`` of a native library (float32)."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.kit = Kit(np.float32)
        self._stored: dict[int, tuple[Weight, Stored]] = {}

    def lift(self, data: Any, axes: Axes) -> Tensor:
        return Tensor(np.asarray(data, np.float32), axes)

    def weight(self, w: Weight) -> Stored:
        """The same `Stored` for the same weight, so that a big one is described once."""
        if id(w) not in self._stored:
            self._stored[id(w)] = (w, stored(w))
        return self._stored[id(w)][1]

    def bias(self, w: Weight) -> Stored:
        """A bias, once."""
        if id(w) not in self._stored:
            self._stored[id(w)] = (w, bias_vector(w))
        return self._stored[id(w)][1]

    def apply(self, stage: Stage) -> Tensor:
        if stage.op.name in (*STRUCTURAL, *HOST):
            return Tensor(stage.op.formula(self.kit, *values(stage.args), **stage.params), stage.op.axes(*stage.args, **stage.params))
        bind = BINDINGS.get(stage.op.name)
        if bind is None:
            raise UsageError(f"{stage.path}: the lab does not bind operation {stage.op.name} to native libraries")
        out = bind(self, *values(stage.args), **stage.params)
        shape = stage.op.shape(*stage.args, **stage.params)
        return Tensor(out.reshape(shape), stage.op.axes(*stage.args, **stage.params))


def _rms_norm(n: Native, x: Any, w: Weight | None, *, eps: float, offset: float = 0.0, groups: int = 1) -> NDArray[Any]:
    rows = np.ascontiguousarray(x.reshape(-1, x.shape[-1]), np.float32)
    return n.context.rms_norm(rows, None if w is None else n.weight(w), eps, offset, groups)


def _linear(n: Native, x: Any, w: Weight, bias: Weight | None = None) -> NDArray[Any]:
    return n.context.linear(_flat(x), n.weight(w), None if bias is None else n.bias(bias))


def _rope(n: Native, x: Any, pos: Any, recipe: Any) -> NDArray[Any]:
    """Libraries take one position per row; positions per head (a fault, an explanation) go head by head."""
    pos = np.ascontiguousarray(pos, np.int64)
    args = (recipe.inv_freq(), recipe.dim, recipe.style, recipe.attention_factor)
    x = np.ascontiguousarray(x, np.float32)
    if pos.ndim == 1:
        return n.context.rope(x, pos, *args)
    heads = [n.context.rope(np.ascontiguousarray(x[:, h : h + 1]), np.ascontiguousarray(pos[:, h]), *args) for h in range(x.shape[1])]
    return np.concatenate(heads, 1)


def _attention(n: Native, q: Any, k: Any, v: Any, *, visible: Any, scale: float) -> NDArray[Any]:
    q, k, v = (np.ascontiguousarray(t, np.float32) for t in (q, k, v))
    return n.context.attention(q, k, v, visible.matrix(), scale)


def _argmax(n: Native, x: Any) -> NDArray[Any]:
    return n.context.top2(np.ascontiguousarray(x, np.float32))[0][:, 0].astype(np.float32)


def _sigmoid(n: Native, x: Any) -> NDArray[Any]:
    """A gate of ones."""
    return n.context.gate(np.ones((*x.shape, 1), np.float32), _flat(x), "sigmoid")


def _expert_linear(n: Native, x: Any, selected: Any, experts: tuple[Weight, ...]) -> NDArray[Any]:
    out = np.empty((*selected.shape, experts[0].row_count), np.float32)
    for expert, at in by_expert(selected, len(experts)):
        out[at] = n.context.linear(_flat(inputs(x, at)), n.weight(experts[expert]))
    return out


def _expert_sum(n: Native, y: Any, weights: Any) -> NDArray[Any]:
    """Fused multiply-adds on the host, rank by rank: the product in double is exact, the sum is rounded once."""
    total = np.zeros((y.shape[0], *y.shape[2:]), np.float32)
    for rank in range(weights.shape[1]):
        total = (total + weights[:, rank, None].astype(np.float64) * y[:, rank]).astype(np.float32)
    return total


BINDINGS: dict[str, Callable[..., NDArray[Any]]] = {
    "rms_norm": _rms_norm,
    "linear": _linear,
    "rope": _rope,
    "attention": _attention,
    "swiglu": lambda n, gate, up: n.context.swiglu(_flat(gate), _flat(up)),
    "add": lambda n, a, b: n.context.add(_flat(a), _flat(b)),
    "gate": lambda n, x, g, *, kind: n.context.gate(np.ascontiguousarray(x if x.ndim == 3 else x[..., None], np.float32), _flat(g), kind),
    "softcap": lambda n, x, *, scale, cap: n.context.softcap(_flat(x), scale, cap or 0.0),
    "gather": lambda n, table, ids, *, scale=1.0: n.context.gather(n.weight(table), np.ascontiguousarray(ids, np.int32), scale),
    "argmax": _argmax,
    "sigmoid": _sigmoid,
    "softmax": lambda n, x: n.context.softmax(_flat(x)),
    "expert_linear": _expert_linear,
    "expert_sum": _expert_sum,
}


def fused_config(drafter: Drafter) -> dict[str, object]:
    """The drafter's geometry and dialect as the library's key=value configuration."""
    g, d = drafter.geometry, drafter.dialect
    parts = [s for s in ("conv", "selector", "markov", "confidence") if getattr(d, s) not in (False, "none")]
    if parts or drafter.weights.target_ids is not None:
        raise UsageError(f"{', '.join(parts) or 'a reduced vocabulary'}: not a part of the library's fused drafter; use --entry op")
    if d.window_rule in HISTORY_RULES:
        raise UsageError(f"window rule {d.window_rule} depends on how the context was appended, which libraries cannot know: --entry op")
    config: dict[str, object] = {
        "family": d.family,
        "hidden": g.hidden,
        "intermediate": g.intermediate,
        "layers": g.layers,
        "heads": g.heads,
        "kv_heads": g.kv_heads,
        "head_dim": g.head_dim,
        "vocab": g.vocab,
        "block_size": g.block_size,
        "mask_token_id": g.mask_token_id,
        "n_taps": len(g.tap_ids),
        "target_hidden": g.target_hidden,
        "eps": d.eps,
        "rope.theta": d.rope.theta,
        "rope.dim": d.rope.dim,
        "rope.style": d.rope.style,
        "attn_scale": d.attn_scale,
        "causal": [int(c) for c in d.causal],
        "sliding": [int(s) for s in g.sliding],
        "window_rule": d.window_rule,
        "embed_scale": d.embed_scale,
        "output_multiplier": d.output_multiplier,
        "softcap": d.softcap or 0.0,
    }
    switches = {"tap_norm": int(d.tap_norm), "ctx_layernorm": int(d.ctx_layernorm), "attn_gate": d.attn_gate}
    config |= {key: value for key, value in switches.items() if value not in (0, "none")}
    if d.window_rule != "none":
        config["window"] = d.window
    if d.window_rule == "SINK_RING":
        config["sink"] = d.sink
    return config


def fused_weights(drafter: Drafter, embedding: Weight, head: Weight) -> dict[str, Stored]:
    """Every parameter by its role name."""
    from dataclasses import fields

    w = drafter.weights
    named = {"fc": w.fc, "hidden_norm": w.hidden_norm, "norm": w.norm, "embedding": embedding, "head": head}
    if drafter.dialect.tap_norm and w.tap_norm is not None:
        named["tap_norm"] = w.tap_norm
    for i, layer in enumerate(w.layers):
        named |= {f"layers.{i}.{f.name}": getattr(layer, f.name) for f in fields(layer) if getattr(layer, f.name) is not None}
    return {name: bias_vector(weight) if name.endswith("_bias") else stored(weight) for name, weight in named.items()}


def run_fused(case: Case, context: Context, writer: DumpWriter) -> None:
    """Drive the library's fused drafter through the case; its own dump callback records the stages."""
    model = open_case_model(case)
    if model.drafter is None:
        raise UsageError(f"case {case.name}: the fused entry runs drafters only; a {case.role} runs op by op (--entry op)")
    axes = {key: names for key, names, _ in declared_stages(case)}
    step = [0]

    def dumped(stage: str, row0: int, array: NDArray[Any], dtype: str) -> None:
        # The library counts context rows by their absolute position, a dump by their place in the step.
        first = row0 - case.steps[step[0]].at if case.steps[step[0]].kind == "append" else row0
        writer.put(step[0], stage, array, first, dtype, axes.get((step[0], stage)))

    context.on_dump(dumped)
    drafter = context.drafter(fused_config(model.drafter), fused_weights(model.drafter, model.embedding, model.head))
    _check_described(model.drafter, drafter.describe())
    for index, s in enumerate(case.steps):
        step[0] = index
        if s.kind == "append":
            drafter.append(s.array, s.at)
        else:
            drafter.propose(s.array.astype(np.int32), s.at)


def _check_described(drafter: Drafter, described: dict[str, str]) -> None:
    """What is really in force in the library must be what was asked for (window, sink, rule …)."""
    for key, asked in fused_config(drafter).items():
        if key not in described:
            raise CandidateError(f"the library does not say which {key} is in force")
        said = described[key]
        if isinstance(asked, float) or (isinstance(asked, int) and not isinstance(asked, bool)):
            same = float(said) == float(np.float64(asked))
        else:
            same = said.replace(" ", "") == (",".join(map(str, asked)) if isinstance(asked, list) else str(asked))
        if not same:
            raise CandidateError(f"the library has {key}={said} in force, asked was {asked}")
