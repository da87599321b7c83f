"""The Laguna drafter in GGUF, architecture ``dflash``: the generic drafter's names, a gate per layer and one tensor of tap norms.

Source: `specs/laguna.md` 2 and 4. llama.cpp has no such drafter; a known fork's files have 76 tensors where the folder has 69, that is
twelve per layer, three outer ones and ``enc.aux_norm.weight``, which holds the norms of all taps, one row each.
"""

from __future__ import annotations

from collections.abc import Callable

from oracle.artifacts.container import Container, fail
from oracle.artifacts.fields import BLOCK_SIZES, LARGEST_DIM, LARGEST_LAYERS, WINDOWS, Fields
from oracle.artifacts.muse import Description
from oracle.artifacts.roles import Role, drafter_roles
from oracle.artifacts.ropes import THETA
from oracle.artifacts.sizes import context_length, finish_gguf, read_gguf_sizes, target_block_count, token_count
from oracle.drafters.dialect import Dialect, Geometry
from oracle.weights import Weight

TAP_NORMS = "enc.aux_norm.weight"
GATE = "attn_gate.weight"
TARGET_HIDDEN = "dflash.target_hidden_size"


def matches(container: Container) -> bool:
    """Whether a ``dflash`` file has the parts that only this family has."""
    return TAP_NORMS in container.tensors or f"blk.0.{GATE}" in container.tensors


def roles(g: Geometry, flat: bool = False) -> dict[str, Role]:
    """Every tensor by key; ``flat``: the tap norms are one vector, not one row per tap."""
    made = drafter_roles(g, "gguf")
    taps = (len(g.tap_ids), g.target_hidden)
    made["tap_norm"] = Role(TAP_NORMS, taps, ("tap", "in"), (taps[0] * taps[1],) if flat else taps)
    made |= {f"{n}.attn_gate": Role(f"blk.{n}.{GATE}", (g.heads, g.hidden), ("head", "in")) for n in range(g.layers)}
    return made


def rearranged(g: Geometry) -> Callable[[dict[str, Weight]], dict[str, Weight]]:
    """The tap norms side by side, as the layers' parts have them."""

    def rearrange(weights: dict[str, Weight]) -> dict[str, Weight]:
        norms = weights["tap_norm"]
        joined = Weight(norms.raw.reshape(1, -1), ("dim",), (len(g.tap_ids) * g.target_hidden,), norms.stored, norms.name)
        return weights | {"tap_norm": joined}

    return rearrange


def describe(container: Container, dialect: Callable[[Geometry, float, float], Dialect]) -> Description:
    """Read and check the keys of a Laguna drafter; ``dialect`` makes the family's out of (geometry, eps, theta)."""
    keys = Fields(container, container.metadata)
    if keys.text("general.architecture") != "dflash":
        keys.refuse("general.architecture", "'dflash'")
    if not matches(container):
        fail(container.path, f"missing tensors: {TAP_NORMS!r}; family laguna has tap norms and a gate per layer")
    sizes = read_gguf_sizes(keys, "dflash", required=True)
    layers, vocab = sizes["layers"], token_count(keys)
    _fixed(keys, sizes["head_dim"], vocab)
    taps = tuple(t - 1 for t in keys.integers("dflash.target_layers", 1, LARGEST_LAYERS, LARGEST_LAYERS))
    if list(taps) != sorted(taps) or len(taps) != layers:
        keys.refuse("dflash.target_layers", f"{layers} rising layers (counted from 1), as many as the drafter has layers")
    window = keys.integer("dflash.attention.sliding_window", *WINDOWS)
    if not all(keys.flags("dflash.attention.sliding_window_pattern", layers)):
        keys.refuse("dflash.attention.sliding_window_pattern", "true for every layer")
    eps = keys.number("dflash.attention.layer_norm_rms_epsilon", 1e-12, 1e-1)
    theta = keys.number("dflash.rope.freq_base", *THETA)
    geometry = Geometry(
        **sizes,
        vocab=vocab,
        block_size=keys.integer("dflash.block_size", *BLOCK_SIZES),
        mask_token_id=keys.integer("tokenizer.ggml.mask_token_id", 0, vocab - 1),
        tap_ids=taps,
        target_hidden=keys.integer(TARGET_HIDDEN, 1, LARGEST_DIM, default=sizes["hidden"]),
        target_layers=target_block_count(keys, taps),
        sliding=(True,) * layers,
        window=window,
        window_source="file",
        context_length=context_length(keys, "dflash.context_length"),
    )
    finish_gguf(keys)
    norms = container.tensors.get(TAP_NORMS)
    flat = norms is not None and len(norms.shape) == 1
    return Description(geometry, dialect(geometry, eps, theta), roles(geometry, flat), (), rearranged(geometry))


def _fixed(keys: Fields, head_dim: int, vocab: int) -> None:
    """Keys with one supported value; causality has no default that all engines share."""
    if keys.flag("dflash.attention.causal") is not True:
        keys.refuse("dflash.attention.causal", "true: a Laguna block is causal")
    keys.must_be("dflash.sample_from_anchor", False)
    keys.must_be("dflash.rope.dimension_count", head_dim)
    keys.must_be("dflash.rope.scaling.type", "none")
    keys.must_be("dflash.vocab_size", vocab)
    keys.must_be("dflash.hidden_activation", "silu")
    for scale in ("dflash.embedding_scale", "dflash.attention.value_scale", "dflash.logit_scale"):
        keys.must_be(scale, 1.0)
