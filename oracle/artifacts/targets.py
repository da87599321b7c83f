"""Open the files of a target of any family; read a Llama; or open only the embedding and head that a drafter borrows from any target.

Source: `specs/dflash-generic.md` sections 2.4, 2.6 and 9. GGUF files hold q and k rows permuted for interleaved pairs;
SafeTensors files pair halves. Both give the same scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from oracle.artifacts import blocks, laguna_target, muse_target, qwen38_gguf, qwen38_target
from oracle.artifacts.container import ArtifactError, Container, Identity, StoredTensor, fail, open_container, show
from oracle.artifacts.drafters import resolve_family
from oracle.artifacts.fields import LARGEST_DIM, Fields
from oracle.artifacts.roles import GGUF_TARGET, Role, TargetParts, formats_of, layer_weights, take, target_roles, weight
from oracle.artifacts.ropes import THETA, read_rope
from oracle.artifacts.sizes import context_length, finish_config, finish_gguf, read_config_sizes, read_gguf_sizes, vocabulary_rows
from oracle.recipes import Rope
from oracle.targets.weights import TargetGeometry, TargetWeights
from oracle.weights import Weight

FAMILY = "llama"
DEFAULT_THETA = 10000.0
ROPE_FACTORS = "rope_freqs.weight"
HF_EMBEDDINGS = ("model.embed_tokens.weight", "embed_tokens.weight", "model.language_model.embed_tokens.weight")
HF_HEADS = ("lm_head.weight", "model.lm_head.weight", "language_model.lm_head.weight")


@dataclass(frozen=True, eq=False)
class TargetFiles:
    """A validated target: sizes and parameters, weights (memory-mapped) and identity."""

    geometry: TargetGeometry
    weights: TargetWeights
    identity: Identity


@dataclass(frozen=True, eq=False)
class Borrowed:
    """What a drafter borrows: ``embedding`` and ``head``, both ``[vocab, in]`` (one object when tied)."""

    embedding: Weight
    head: Weight
    identity: Identity


def open_target_files(path: str | Path) -> TargetFiles:
    """Open a target GGUF or SafeTensors folder of a family in `READERS`; `ArtifactError` names what is wrong."""
    container = open_container(path)
    family = target_family(container)
    parts = READERS[family](container)
    return TargetFiles(parts.geometry, parts.weights, Identity(family, container.kind, container.files, parts.formats, parts.warnings))


def target_family(container: Container) -> str:
    """The family of a target from its metadata alone; `ArtifactError` when it is none that is known."""
    if container.kind == "gguf":
        key, found = "general.architecture", container.scalar("general.architecture")
        known = GGUF_FAMILIES
    else:
        named = container.metadata.get("architectures")
        key, found = "architectures", named[0] if isinstance(named, list) and len(named) == 1 else named
        known = known_architectures()
    if not isinstance(found, str) or found not in known:
        expected = " or ".join(repr(k) for k in known)
        drafter = _drafter_family(container)
        if drafter is not None:
            fail(container.path, f"a {drafter} drafter, no model by itself: expected {expected}; open it as a drafter, beside its target")
        fail(
            container.metadata_path, f"key {key}: expected {expected}, found {show(found)}; other targets are not supported by this version"
        )
    return known[found]


def _drafter_family(container: Container) -> str | None:
    """The family of what is a drafter and was taken for a target."""
    try:
        return resolve_family(container)
    except ArtifactError:
        return None


def known_architectures() -> dict[str, str]:
    """What a config's ``architectures`` may say, and the family it means."""
    return {name: family for family, name in ARCHITECTURES.items()} | {qwen38_target.MULTIMODAL: qwen38_target.FAMILY}


def _read_llama(container: Container) -> TargetParts:
    tensors = dict(container.tensors)
    if container.kind == "gguf":
        geometry, warnings = _from_gguf(container, tensors.pop(ROPE_FACTORS, None))
    else:
        geometry, warnings = _from_config(container)
        if geometry.tied_embedding:
            _check_tied_head(container, HF_EMBEDDINGS[:1], HF_HEADS[:1])
            tensors.pop(HF_HEADS[0], None)
    found = take(container, tensors, target_roles(geometry, "gguf" if container.kind == "gguf" else "hf"))
    layers = tuple(layer_weights(found, n) for n in range(geometry.layers))
    weights = TargetWeights(found["embedding"], layers, found["norm"], found.get("head", found["embedding"]))
    return TargetParts(geometry, weights, formats_of(found.values()), tuple(warnings))


# How to read each family, and what its published config calls the model.
READERS = {FAMILY: _read_llama, muse_target.FAMILY: muse_target.read, laguna_target.FAMILY: laguna_target.read}
READERS[qwen38_target.FAMILY] = qwen38_target.read
# What the architecture of a GGUF file says of its family; one has another name there.
GGUF_FAMILIES = {qwen38_gguf.ARCH if family == qwen38_target.FAMILY else family: family for family in READERS}
ARCHITECTURES = {FAMILY: "LlamaForCausalLM", muse_target.FAMILY: muse_target.ARCHITECTURE, laguna_target.FAMILY: laguna_target.ARCHITECTURE}
ARCHITECTURES[qwen38_target.FAMILY] = qwen38_target.ARCHITECTURE


def _check_tied_head(container: Container, embeddings: tuple[str, ...], heads: tuple[str, ...]) -> None:
    """Some exports store the tied head again: it must then be the same bytes as the embedding."""
    for head in (container.tensors[n] for n in heads if n in container.tensors):
        for embedding in (container.tensors[n] for n in embeddings if n in container.tensors):
            if embedding.raw.shape != head.raw.shape or not np.array_equal(embedding.raw, head.raw):
                fail(
                    container.path,
                    f"tensor {show(head.name)} differs from the embedding although tie_word_embeddings is true; set it to false",
                )


def _from_gguf(container: Container, factors: StoredTensor | None) -> tuple[TargetGeometry, list[str]]:
    keys = Fields(container, container.metadata)
    keys.must_be("general.architecture", "llama")
    sizes = read_gguf_sizes(keys, "llama", required=False)
    tied = GGUF_TARGET["head"] not in container.tensors
    vocab = vocabulary_rows(container, keys, "llama", GGUF_TARGET["embedding"])
    eps = keys.number("llama.attention.layer_norm_rms_epsilon", 1e-12, 1e-1)
    theta = keys.number("llama.rope.freq_base", *THETA, default=DEFAULT_THETA)
    width = keys.integer("llama.rope.dimension_count", 2, sizes["head_dim"], default=sizes["head_dim"])
    if width % 2:
        keys.refuse("llama.rope.dimension_count", "an even number")
    keys.must_be("llama.rope.scaling.type", "none")
    keys.must_be("llama.expert_count", 0)
    keys.must_be("llama.expert_used_count", 0)
    scale = keys.number("llama.attention.scale", 1e-6, 1e6, default=sizes["head_dim"] ** -0.5)
    context = context_length(keys, "llama.context_length")
    warnings = finish_gguf(keys)
    rope = Rope(theta, width, "interleaved", _factors(factors, width))
    geometry = TargetGeometry(
        FAMILY, **sizes, vocab=vocab, eps=eps, rope=rope, attn_scale=scale, context_length=context, tied_embedding=tied
    )
    return geometry, warnings


def _factors(tensor: StoredTensor | None, width: int) -> tuple[float, ...] | None:
    if tensor is None:
        return None
    values = weight(tensor, Role(ROPE_FACTORS, (width // 2,), ("dim",))).array()
    if not (np.isfinite(values) & (values > 0)).all():
        fail(tensor.path, f"tensor {ROPE_FACTORS!r}: expected positive finite factors")
    return tuple(float(v) for v in values)


def _from_config(container: Container) -> tuple[TargetGeometry, list[str]]:
    config = Fields(container, container.metadata)
    config.must_be("model_type", "llama")
    sizes = read_config_sizes(config, required=False)
    vocab = config.integer("vocab_size", 1, LARGEST_DIM)
    eps = config.number("rms_norm_eps", 1e-12, 1e-1)
    rope = read_rope(config, sizes["head_dim"], DEFAULT_THETA, ("linear", "llama3"))
    config.must_be("hidden_act", "silu")
    config.must_be("attention_bias", False)
    config.must_be("mlp_bias", False)
    config.must_be("rope_interleaved", False)
    tied = config.flag("tie_word_embeddings", False)
    context = context_length(config, "max_position_embeddings")
    warnings = finish_config(config)
    scale = sizes["head_dim"] ** -0.5
    geometry = TargetGeometry(
        FAMILY, **sizes, vocab=vocab, eps=eps, rope=rope, attn_scale=scale, context_length=context, tied_embedding=tied
    )
    return geometry, warnings


def open_borrowed(path: str | Path) -> Borrowed:
    """The embedding and head of any target, GGUF or SafeTensors; nothing else of the model is checked.

    A missing head is the embedding where the file says so: always in GGUF, with ``tie_word_embeddings`` in a config.
    """
    container = open_container(path)
    if container.kind == "gguf":
        embedding = _one_of(container, (GGUF_TARGET["embedding"],), "embedding")
        head = container.tensors.get(GGUF_TARGET["head"], embedding)
    else:
        embedding = _one_of(container, HF_EMBEDDINGS, "embedding")
        tied = _tied(container)
        if tied:
            _check_tied_head(container, (embedding.name,), HF_HEADS)
        head = embedding if tied else _one_of(container, HF_HEADS, "head")
    for tensor in (embedding, head):
        if len(tensor.shape) != 2 or not blocks.readable(tensor.stored) or max(tensor.shape) > LARGEST_DIM:
            fail(
                tensor.path,
                f"tensor {show(tensor.name)}: expected a matrix [vocab, hidden] stored as {', '.join(blocks.DECODABLE)}, "
                f"found {tensor.stored} {list(tensor.shape)}",
            )
    if head.shape != embedding.shape:
        fail(head.path, f"tensor {show(head.name)} has the shape {list(head.shape)}; expected the embedding's, {list(embedding.shape)}")
    lent = weight(embedding, Role(embedding.name, embedding.shape, ("vocab", "in")))
    top = lent if head is embedding else weight(head, Role(head.name, head.shape, ("vocab", "in")))
    return Borrowed(lent, top, Identity("borrowed", container.kind, container.files, formats_of((lent, top))))


def _one_of(container: Container, names: tuple[str, ...], what: str) -> StoredTensor:
    present = [n for n in names if n in container.tensors]
    if len(present) != 1:
        found = f"found {', '.join(present)}" if present else "found none"
        fail(container.path, f"no single {what}: expected one of {', '.join(names)}; {found}")
    return container.tensors[present[0]]


def _tied(container: Container) -> bool:
    """``tie_word_embeddings`` of the config or of its text part."""
    config = container.metadata
    text = config.get("text_config")
    declared = [part.get("tie_word_embeddings") for part in (config, text) if isinstance(part, dict)]
    for value in declared:
        if value is not None and not isinstance(value, bool):
            fail(container.metadata_path, f"key tie_word_embeddings: expected a bool, found {show(value)}")
    return any(declared)
