"""Generic and Muse drafters and Llama targets in the other container.

Source: `specs/dflash-generic.md` sections 7 to 9, 11 and 18; a Llama's q and k rows go from half to interleaved pairs and back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.artifacts import muse
from oracle.artifacts.carry import Rows, Written, carried
from oracle.artifacts.container import Container, fail
from oracle.artifacts.descriptions import draft_config, draft_keys, target_config, target_keys
from oracle.artifacts.drafters import DrafterFiles
from oracle.artifacts.heads import Heads, d2t_tensor, head_roles
from oracle.artifacts.make_models import LLAMA, Model
from oracle.artifacts.roles import GGUF_LAYER, HF_LAYER, MUSE_DRAFTER, Role, drafter_roles, target_roles
from oracle.artifacts.targets import ROPE_FACTORS, TargetFiles
from oracle.artifacts.writers import PlannedTensor, Typed
from oracle.drafters.dialect import Dialect, Geometry
from oracle.weights import Weight

SHARED = {f.name for f in fields(Model)}


def plan_drafter(container: Container, files: DrafterFiles, weights: dict[str, Weight], kind: str) -> Written:
    """What the container ``kind`` is to hold of a generic or a Muse drafter."""
    g, d, family, gguf = files.geometry, files.dialect, files.identity.family, kind == "gguf"
    switches = {k: v for k in ("conv", "selector", "markov", "confidence") if (v := getattr(d, k)) not in (False, "none")}
    style = "gguf" if gguf else "hf"
    outer = MUSE_DRAFTER if family == muse.FAMILY and not gguf else None
    biased = any(key.endswith("q_bias") for key in weights)
    roles = drafter_roles(g, style, biased, outer) | head_roles(g, Heads(switches=switches), style, set())
    names, stem = (GGUF_LAYER, "blk") if gguf else (HF_LAYER, "layers")
    having = [n for n in range(g.layers) if f"{n}.sinks" in weights]
    roles |= {f"{n}.sinks": Role(f"{stem}.{n}.{names['sinks']}", (g.heads,), ("head",)) for n in having}
    if "confidence_bias" not in weights:
        roles.pop("confidence_bias", None)
    tensors = {key: carried(role, weights[key]) for key, role in roles.items()}
    ids = files.weights.target_ids
    if ids is not None:
        tensors |= {t.name: t for t in d2t_tensor(g, ids, kind)}
    model = drafter_model(g, d, biased)
    if gguf:
        return Written(tensors, keys=draft_keys(family, model) | eos_of(container, kind))
    config = draft_config(family, model, weights["norm"].stored)
    if g.target_layers is not None:
        config["num_target_layers"] = g.target_layers
    return Written(tensors, config=config | eos_of(container, kind))


def drafter_model(g: Geometry, d: Dialect, biased: bool = False) -> Model:
    """The description that `draft_keys` and `draft_config` write; what it cannot say shows when the file is read back."""
    causal = None if d.family == muse.FAMILY or d.causal == g.sliding else all(d.causal)
    given = {k: v for k, v in asdict(g).items() if k in SHARED} | {k: v for k, v in asdict(d).items() if k in SHARED and k != "window"}
    given |= {"theta": d.rope.theta, "is_causal": causal, "attention_bias": biased, "sample_from_anchor": d.anchor_layout == "predict_next"}
    return Model(**given)


def plan_llama(container: Container, files: TargetFiles, weights: dict[str, Weight], kind: str) -> Written:
    """What the container ``kind`` is to hold of a Llama target."""
    g, gguf = files.geometry, kind == "gguf"
    factors = g.rope.factors
    model = Model(**{k: v for k, v in asdict(g).items() if k in SHARED}, theta=g.rope.theta, tied=g.tied_embedding)
    step = to_pairs if gguf else to_halves
    if g.rope.dim != g.head_dim:
        fail(container.path, f"a rotary width of {g.rope.dim} in heads of {g.head_dim} has no place in a Llama's config.json")
    reorder = {f"{n}.{part}": step(heads) for n in range(g.layers) for part, heads in (("q", g.heads), ("k", g.kv_heads))}
    roles = target_roles(g, "gguf" if gguf else "hf")
    tensors = {key: carried(role, weights[key], reorder.get(key)) for key, role in roles.items()}
    if gguf:
        if factors is not None:
            tensors["rope_factors"] = _factors(factors)
        return Written(tensors, keys=target_keys(LLAMA, model) | eos_of(container, kind), reorder=reorder)
    config = target_config(model, weights["norm"].stored)
    if factors is not None:
        if len(set(factors)) > 1:
            fail(
                container.path,
                f"tensor {ROPE_FACTORS!r}: uneven factors have no place in config.json, whose rope types make theirs from parameters",
            )
        config["rope_parameters"] |= {"rope_type": "linear", "factor": factors[0]}
    return Written(tensors, config=config | eos_of(container, kind), reorder=reorder)


def _factors(factors: tuple[float, ...]) -> PlannedTensor:
    values: NDArray[Any] = np.asarray(factors, "<f4")
    return PlannedTensor(ROPE_FACTORS, (len(factors),), "f32", lambda: iter([values.view(np.uint8)[None]]))


def to_pairs(heads: int) -> Callable[[Rows], Rows]:
    """Rows [heads * dim, bytes] from half to interleaved pairs."""
    return lambda rows: rows.reshape(heads, 2, -1, rows.shape[-1]).swapaxes(1, 2).reshape(-1, rows.shape[-1])


def to_halves(heads: int) -> Callable[[Rows], Rows]:
    """Rows [heads * dim, bytes] from interleaved to half pairs."""
    return lambda rows: rows.reshape(heads, -1, 2, rows.shape[-1]).swapaxes(1, 2).reshape(-1, rows.shape[-1])


def eos_of(container: Container, kind: str) -> dict[str, Any]:
    """The source's end mark as the container ``kind`` says it; of a list the first; nothing where there is none."""
    text = container.metadata.get("text_config")
    inner = text if isinstance(text, dict) else {}
    value = container.metadata.get("tokenizer.ggml.eos_token_id", container.metadata.get("eos_token_id", inner.get("eos_token_id")))
    value = value[0] if isinstance(value, list) and value else value
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 32:
        return {}
    return {"tokenizer.ggml.eos_token_id": Typed("u32", value)} if kind == "gguf" else {"eos_token_id": value}
