"""The fused entry: a library's own drafter driven through a case's steps, its dump callback recording the stages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oracle.drafters.dialect import HISTORY_RULES
from oracle.models import Drafter
from oracle.weights import Weight
from parity.case import Case
from parity.errors import CandidateError, UsageError
from parity.models import declared_stages, open_case_model
from parity.native_reading import bias_vector, stored
from parity.recording import Sink

if TYPE_CHECKING:
    from native import Context, Stored


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


def run_fused(case: Case, context: Context, writer: Sink) -> None:
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
