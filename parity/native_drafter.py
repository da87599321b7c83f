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

HEAD_KEYS = ("draft_vocab", "conv_taps", "selector_rank", "markov", "confidence")


def fused_config(drafter: Drafter) -> dict[str, object]:
    """The drafter's geometry and dialect as the library's key=value configuration."""
    g, d = drafter.geometry, drafter.dialect
    if d.sinks:
        raise UsageError("sinks: not a part of the library's fused drafter; use --entry op")
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
    return config | _heads(drafter)


def _heads(drafter: Drafter) -> dict[str, object]:
    """What ABI 1.1 adds: the parts of DFlash 2 and DSpark that this drafter has."""
    g, d = drafter.geometry, drafter.dialect
    config: dict[str, object] = {}
    if d.anchor_layout != "fill_in":
        config["anchor_layout"] = d.anchor_layout
    if g.draft_vocab is not None:
        config["draft_vocab"] = g.draft_vocab
    if d.conv:
        config |= {"conv_taps": g.conv_kernel, "conv_groups": g.hidden // g.conv_group}
    if d.selector:
        return config | {"selector_rank": g.selector_rank, "selector_top_k": g.selector_top_k}
    if d.markov != "none":
        config |= {"markov": d.markov, "markov_rank": g.markov_rank}
    return config if d.confidence == "none" else config | {"confidence": d.confidence}


def fused_weights(drafter: Drafter, embedding: Weight, head: Weight) -> dict[str, Stored | NDArray[np.int64]]:
    """Every parameter that the configuration has a place for, by its role name."""
    from dataclasses import fields

    w, d = drafter.weights, drafter.dialect
    named: dict[str, Weight | None] = {"fc": w.fc, "hidden_norm": w.hidden_norm, "norm": w.norm, "embedding": embedding}
    named |= {"head": w.head or head, "tap_norm": w.tap_norm if d.tap_norm else None}
    for i, layer in enumerate(w.layers):
        kept = (f.name for f in fields(layer) if d.conv or "_conv_" not in f.name)
        named |= {f"layers.{i}.{name}": getattr(layer, name) for name in kept}
    if d.selector and w.selector is not None:
        named |= {f"selector.{f.name}": getattr(w.selector, f.name) for f in fields(w.selector)}
    elif d.markov != "none" and w.markov is not None:
        named |= {f"markov.{f.name}": getattr(w.markov, f.name) for f in fields(w.markov)}
    if d.confidence != "none" and not d.selector:
        named |= {"confidence": w.confidence, "confidence_bias": w.confidence_bias}
    present = {name: weight for name, weight in named.items() if weight is not None}
    made: dict[str, Stored | NDArray[np.int64]] = {
        name: bias_vector(weight) if name.endswith("_bias") else stored(weight) for name, weight in present.items()
    }
    return made if w.target_ids is None else made | {"target_ids": np.ascontiguousarray(w.target_ids, np.int64)}


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
    config = known(fused_config(model.drafter), context.abi)
    drafter = context.drafter(config, fused_weights(model.drafter, model.embedding, model.head))
    _check_described(config, drafter.describe())
    for index, s in enumerate(case.steps):
        step[0] = index
        if s.kind == "append":
            drafter.append(s.array, s.at)
        else:
            drafter.propose(s.array.astype(np.int32), s.at)


def known(config: dict[str, object], abi: tuple[int, int]) -> dict[str, object]:
    """The configuration for a library of this ABI; `UsageError` for what a fused drafter of ABI 1.0 cannot be asked for."""
    if abi >= (1, 1):
        return config
    # Without heads the layout only says which picks are drafts, which no stage shows.
    config = {key: value for key, value in config.items() if key != "anchor_layout"}
    newer = [key for key in HEAD_KEYS if key in config]
    newer += [f"window_rule={config['window_rule']}"] if config["window_rule"] in HISTORY_RULES else []
    if newer:
        found = ".".join(map(str, abi))
        raise UsageError(
            f"{', '.join(newer)}: not in a fused drafter of ABI {found}; rebuild the library against dlab.h 1.1, or use --entry op"
        )
    return config


def _check_described(config: dict[str, object], described: dict[str, str]) -> None:
    """What is really in force in the library must be what was asked for (window, sink, rule …)."""
    for key, asked in config.items():
        if key not in described:
            raise CandidateError(f"the library does not say which {key} is in force")
        said = described[key]
        if isinstance(asked, float) or (isinstance(asked, int) and not isinstance(asked, bool)):
            same = float(said) == float(np.float64(asked))
        else:
            same = said.replace(" ", "") == (",".join(map(str, asked)) if isinstance(asked, list) else str(asked))
        if not same:
            raise CandidateError(f"the library has {key}={said} in force, asked was {asked}")
