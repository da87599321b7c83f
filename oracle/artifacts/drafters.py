"""Open the files of a drafter: resolve the family, check everything, map the weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from oracle.artifacts import laguna, laguna_draft_gguf, muse, qwen3, qwen38
from oracle.artifacts.container import Container, Identity, fail, open_container, show
from oracle.artifacts.heads import GGUF_HEADS, target_ids
from oracle.artifacts.roles import drafter_weights, formats_of, rename, take
from oracle.drafters.dialect import NO_MASK, Dialect, Geometry
from oracle.drafters.weights import DrafterWeights

FAMILIES = {muse.FAMILY: muse.describe, qwen3.FAMILY: qwen3.describe, laguna.FAMILY: laguna.describe}
FAMILIES[qwen38.FAMILY] = qwen38.describe


@dataclass(frozen=True, eq=False)
class DrafterFiles:
    """A validated drafter: sizes, dialect, weights (memory-mapped) and identity."""

    geometry: Geometry
    dialect: Dialect
    weights: DrafterWeights
    identity: Identity


def open_drafter_files(path: str | Path, family: str | None = None, mask: int | None = None) -> DrafterFiles:
    """Open a drafter GGUF or SafeTensors folder; ``family`` overrides the resolution, ``mask`` the mask token of the file.

    `ArtifactError` (a `ValueError`) names the file and the key or tensor that is wrong.
    """
    container = open_container(path)
    if family is not None and family not in FAMILIES:
        fail(container.path, f"family {show(family)} is unknown; expected one of {', '.join(FAMILIES)}")
    family = family or resolve_family(container)
    tensors = rename(container, "model.") if container.kind == "safetensors" else container.tensors
    described = FAMILIES[family](container, set(tensors))
    geometry = _masked(container, described.geometry, mask)
    tensors = dict(tensors)
    ids = target_ids(container, tensors, geometry)
    weights = take(container, tensors, described.roles)
    if described.rearrange is not None:
        weights = described.rearrange(weights)
    identity = Identity(family, container.kind, container.files, formats_of(weights.values()), described.warnings)
    return DrafterFiles(geometry, described.dialect, drafter_weights(weights, geometry.layers, ids), identity)


def _masked(container: Container, g: Geometry, mask: int | None) -> Geometry:
    """The geometry with the mask token that was asked for; a file without one has no default."""
    if mask is None and g.mask_token_id == NO_MASK:
        key = "dflash.mask_token_id" if container.kind == "gguf" else "mask_token_id"
        fail(container.metadata_path, f"missing key {key}: the mask token has no default; give --dialect mask_token_id=N")
    if mask is not None and not 0 <= mask < g.vocab:
        fail(container.metadata_path, f"mask token {mask} was asked for; expected one from 0 to {g.vocab - 1}, the drafter's vocabulary")
    return g if mask is None else replace(g, mask_token_id=mask)


def resolve_family(container: Container) -> str:
    """The family of a drafter from its metadata alone; `ArtifactError` when it is not one, or when it is ambiguous."""
    return _resolve_gguf(container) if container.kind == "gguf" else _resolve_config(container)


def _resolve_gguf(container: Container) -> str:
    key = container.scalar
    if key("general.architecture") != "dflash":
        found = show(container.metadata.get("general.architecture"))
        fail(container.path, f"key general.architecture: expected 'dflash' for a drafter, found {found}")
    if laguna_draft_gguf.matches(container):
        return laguna.FAMILY
    if qwen38.is_true(key("dflash.sample_from_anchor")) and GGUF_HEADS["markov.w1"] not in container.tensors:
        return qwen38.FAMILY
    if key("dflash.block_count") == muse.LAYERS:
        if _muse_window(container):
            return muse.FAMILY
        if not key("dflash.attention.sliding_window") and _muse_sized(key("dflash.embedding_length"), key("tokenizer.ggml.mask_token_id")):
            fail(container.path, "ambiguous: muse-glimmer sizes but no sliding window; say --family muse-glimmer or --family qwen3")
    return qwen3.FAMILY


def _muse_window(container: Container) -> bool:
    """A window on all layers, nothing causal, no biases: `DESIGN.md` section 7."""
    pattern = container.metadata.get("dflash.attention.sliding_window_pattern")
    every = not isinstance(pattern, np.ndarray) or pattern.dtype != np.bool_ or bool(pattern.all())
    causal = container.scalar("dflash.attention.causal") is True
    biased = any(n.endswith(".bias") for n in container.tensors)
    return bool(container.scalar("dflash.attention.sliding_window")) and every and not causal and not biased


def _muse_sized(hidden: object, mask: object) -> bool:
    return hidden == muse.RELEASE_HIDDEN or mask == muse.RELEASE_MASK


def _resolve_config(container: Container) -> str:
    config = container.metadata
    model_type, named = config.get("model_type"), config.get("architectures")
    if model_type == muse.MODEL_TYPE:
        return muse.FAMILY
    if laguna.matches(config):
        return laguna.FAMILY
    if qwen38.matches(config):
        return qwen38.FAMILY
    if not isinstance(named, list) or len(named) != 1 or named[0] not in qwen3.ARCHITECTURES:
        fail(
            container.metadata_path,
            f"key architectures: expected ['DFlashDraftModel'] or model_type {muse.MODEL_TYPE!r} for a drafter, "
            f"found {show(named)} with model_type {show(model_type)}",
        )
    if model_type == "qwen3":
        return qwen3.FAMILY
    if model_type is not None:
        fail(container.metadata_path, f"key model_type: expected 'qwen3' or {muse.MODEL_TYPE!r}, found {show(model_type)}; say --family")
    inner = config.get("dflash_config")
    if not _muse_sized(config.get("hidden_size"), inner.get("mask_token_id") if isinstance(inner, dict) else None):
        fail(container.metadata_path, "ambiguous: there is no model_type; say --family muse-glimmer or --family qwen3")
    return muse.FAMILY
