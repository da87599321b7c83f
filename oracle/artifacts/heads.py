"""DFlash 2 and DSpark parts of a generic drafter's files: convolutions, selector, Markov and confidence heads, reduced vocabulary.

Source: `specs/dflash-generic.md` sections 11, 12, 14, 15 and 18.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.artifacts.container import Container, StoredTensor, fail
from oracle.artifacts.fields import LARGEST_DIM, Fields
from oracle.artifacts.roles import Role
from oracle.artifacts.writers import PlannedTensor
from oracle.drafters.dialect import Geometry

LARGEST_KERNEL = 64
MARKOV_KINDS = ("vanilla", "gated", "rnn")
HF_LAYER = {
    "attn_conv_base": "attention_conv.base_kernel",
    "attn_conv_kernel": "attention_conv.kernel_projection.weight",
    "mlp_conv_base": "mlp_conv.base_kernel",
    "mlp_conv_kernel": "mlp_conv.kernel_projection.weight",
}
GGUF_LAYER = {
    "attn_conv_base": "attn_conv_base",
    "attn_conv_kernel": "attn_conv_proj.weight",
    "mlp_conv_base": "ffn_conv_base",
    "mlp_conv_kernel": "ffn_conv_proj.weight",
}
HF_HEADS = {
    "selector.predecessor": "candidate_selector.predecessor_codebook.weight",
    "selector.successor": "candidate_selector.successor_codebook.weight",
    "selector.hidden": "candidate_selector.hidden_projection.weight",
    "markov.w1": "markov_head.markov_w1.weight",
    "markov.w2": "markov_head.markov_w2.weight",
    "markov.gate": "markov_head.gate_proj.weight",
    "markov.gate_bias": "markov_head.gate_proj.bias",
    "markov.joint": "markov_head.joint_proj.weight",
    "markov.joint_bias": "markov_head.joint_proj.bias",
    "confidence": "confidence_head.proj.weight",
    "confidence_bias": "confidence_head.proj.bias",
    "head": "lm_head.weight",
}
# llama.cpp knows the vanilla Markov head alone: the names of the others' parts and their key are the lab's own.
MARKOV_TYPE = "dflash.markov_head_type"
GGUF_HEADS = {
    "selector.predecessor": "selector_predecessor.weight",
    "selector.successor": "selector_successor.weight",
    "selector.hidden": "selector_hidden.weight",
    "markov.w1": "markov_w1.weight",
    "markov.w2": "markov_w2.weight",
    "markov.gate": "markov_gate.weight",
    "markov.gate_bias": "markov_gate.bias",
    "markov.joint": "markov_joint.weight",
    "markov.joint_bias": "markov_joint.bias",
    "confidence": "conf_proj.weight",
    "confidence_bias": "conf_proj.bias",
    "head": "output.weight",
}
GGUF_SINKS = "attn_sinks.weight"
D2T, T2D = "d2t", "t2d"


@dataclass(frozen=True)
class Heads:
    """What a file declares: ``sizes`` by their `Geometry` names and ``switches`` by their `Dialect` names."""

    sizes: dict[str, int] = field(default_factory=dict)
    switches: dict[str, Any] = field(default_factory=dict)


def read_config_heads(config: Fields, inner: Fields, hidden: int, vocab: int) -> Heads:
    """The heads of a Hugging Face config; each key is in ``dflash_config`` or at the top level."""

    def at(key: str) -> Fields:
        config.ignore(key)
        return inner if inner.has(key) else config

    heads = _dflash2(at, "", hidden, vocab)
    rank = at("markov_rank").integer("markov_rank", 0, LARGEST_DIM, default=0)
    kind = at("markov_head_type").text("markov_head_type", None)
    if rank:
        if kind is not None and kind not in MARKOV_KINDS:
            at("markov_head_type").refuse("markov_head_type", " or ".join(MARKOV_KINDS))
        heads.sizes["markov_rank"], heads.switches["markov"] = rank, kind or "vanilla"
    if at("enable_confidence_head").flag("enable_confidence_head", False):
        reads = at("confidence_head_with_markov").flag("confidence_head_with_markov", bool(rank))
        if reads and not rank:
            at("confidence_head_with_markov").refuse("confidence_head_with_markov", "false, because there is no Markov head")
        heads.switches["confidence"] = "markov" if reads else "hidden"
    else:
        at("confidence_head_with_markov").flag("confidence_head_with_markov", None)
    _layout(at("sample_from_anchor"), "sample_from_anchor", heads)
    reduced = at("draft_vocab_size").integer("draft_vocab_size", 1, vocab, default=vocab)
    if reduced != vocab:
        heads.sizes["draft_vocab"] = reduced
    return heads


def read_gguf_heads(keys: Fields, names: set[str], container: Container, hidden: int, vocab: int) -> Heads:
    """The heads of a GGUF: keys for DFlash 2, the presence of its tensors for DSpark."""
    heads = _dflash2(lambda key: keys, "dflash.", hidden, vocab)
    if GGUF_HEADS["markov.w1"] in names:
        heads.sizes["markov_rank"] = container.tensors[GGUF_HEADS["markov.w1"]].shape[-1]
        heads.switches["markov"] = keys.text(MARKOV_TYPE, MARKOV_KINDS[0])
        if heads.switches["markov"] not in MARKOV_KINDS:
            keys.refuse(MARKOV_TYPE, " or ".join(MARKOV_KINDS))
    if keys.flag("dflash.has_confidence_head", GGUF_HEADS["confidence"] in names):
        wide = GGUF_HEADS["confidence"] in names and container.tensors[GGUF_HEADS["confidence"]].shape[-1] != hidden
        heads.switches["confidence"] = "markov" if wide and "markov" in heads.switches else "hidden"
    _layout(keys, "dflash.sample_from_anchor", heads)
    if D2T in names:
        heads.sizes["draft_vocab"] = container.tensors[D2T].shape[-1]
    return heads


def _dflash2(at: Any, prefix: str, hidden: int, vocab: int) -> Heads:
    """Convolution and selector sizes: both keys of a pair, or neither."""
    heads = Heads()
    for pair, switch, names in (
        (("conv_kernel_size", "conv_group_size"), "conv", ("conv_kernel", "conv_group")),
        (("selector_rank", "selector_top_k"), "selector", ("selector_rank", "selector_top_k")),
    ):
        given = [k for k in pair if at(k).has(prefix + k)]
        for k in pair:
            at(k).integer(prefix + k, 1, LARGEST_DIM, default=None)
        if not given:
            continue
        if len(given) == 1:
            other = next(k for k in pair if k not in given)
            at(given[0]).refuse(prefix + given[0], f"{prefix}{other} beside it")
        heads.sizes.update({name: at(k).values[prefix + k] for name, k in zip(names, pair, strict=True)})
        heads.switches[switch] = True
    if heads.sizes.get("conv_kernel", 0) > LARGEST_KERNEL:
        at("conv_kernel_size").refuse(f"{prefix}conv_kernel_size", f"at most {LARGEST_KERNEL} taps")
    if hidden % heads.sizes.get("conv_group", 1):
        at("conv_group_size").refuse(f"{prefix}conv_group_size", f"a divisor of the {hidden} channels")
    if heads.sizes.get("selector_top_k", 1) > vocab:
        at("selector_top_k").refuse(f"{prefix}selector_top_k", f"at most the {vocab} ids of the vocabulary")
    return heads


def _layout(fields: Fields, key: str, heads: Heads) -> None:
    """Which rows are drafted from: it is said by a file with DSpark heads (its default differs by engine, section 12)."""
    said = {"markov", "confidence"} & heads.switches.keys()
    if not said:
        fields.must_be(key, False)
        return
    if not fields.has(key):
        marks = "markov_w1.weight, conf_proj.weight" if fields.typed else "markov_rank, enable_confidence_head"
        why = f"because the file has DSpark heads ({marks}) and engines differ in its default"
        fail(fields.container.metadata_path, f"missing key {fields.where}{key}: expected a bool, {why}")
    if fields.flag(key):
        heads.switches["anchor_layout"] = "predict_next"


def head_roles(g: Geometry, heads: Heads, style: str, names: set[str]) -> dict[str, Role]:
    """The tensors the heads add, by key. ``style``: ``gguf`` or ``hf``; ``names``: those present, where two spellings exist."""
    outer = GGUF_HEADS if style == "gguf" else HF_HEADS
    layer, stem = (GGUF_LAYER, "blk") if style == "gguf" else (HF_LAYER, "layers")
    shapes = _shapes(g, heads, names)
    roles = {key: Role(outer[key], *shape) for key, shape in shapes.items()}
    for key in ("selector.predecessor", "selector.successor"):
        if key in roles and roles[key].name not in names and roles[key].name.removesuffix(".weight") in names:
            roles[key] = Role(roles[key].name.removesuffix(".weight"), roles[key].shape, roles[key].axes)
    if "conv" in heads.switches:
        base, groups = (2, g.conv_kernel, g.hidden), g.hidden // g.conv_group
        for n in range(g.layers):
            for part in ("attn_conv", "mlp_conv"):
                kernel = (2, g.conv_kernel, groups, g.hidden)
                name = f"{stem}.{n}.{layer[f'{part}_base']}"
                # Some writers end it as they end every matrix.
                name = f"{name}.weight" if f"{name}.weight" in names else name
                roles[f"{n}.{part}_base"] = Role(name, base, ("side", "tap", "dim"), base)
                roles[f"{n}.{part}_kernel"] = Role(f"{stem}.{n}.{layer[f'{part}_kernel']}", kernel, ("side", "tap", "group", "in"))
    return roles


# Two spellings are in use in folders; the second is that of models whose sliding layers alone have sinks.
HF_SINKS = ("self_attn.sinks", "self_attn.attention_sink_bias")


def sink_roles(container: Container, g: Geometry, names: set[str], style: str) -> dict[str, Role]:
    """The attention sinks that the tensors ``names`` announce: of every layer, or of every sliding one; {} where there are none."""
    stem, spellings = ("blk", (GGUF_SINKS,)) if style == "gguf" else ("layers", HF_SINKS)
    layers = {n for n in range(g.layers) for s in spellings if f"{stem}.{n}.{s}" in names}
    sliding = {n for n in range(g.layers) if g.sliding[n]}
    if layers and layers != set(range(g.layers)) and layers != sliding:
        fail(container.path, f"attention sinks in layers {sorted(layers)}: expected them in every layer or in every sliding one")
    spelled = [s for s in spellings if any(f"{stem}.{n}.{s}" in names for n in layers)]
    if len(spelled) > 1:
        fail(container.path, f"attention sinks named {spelled[0]} and {spelled[1]}: expected one naming style")
    return {f"{n}.sinks": Role(f"{stem}.{n}.{spelled[0]}", (g.heads,), ("head",)) for n in sorted(layers)}


def _shapes(g: Geometry, heads: Heads, names: set[str]) -> dict[str, tuple[tuple[int, ...], tuple[str, ...]]]:
    h, r, s, v = g.hidden, g.markov_rank, g.selector_rank, g.draft_vocab or g.vocab
    table, matrix = ("vocab", "in"), ("dim", "in")
    shapes: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {}
    if "selector" in heads.switches:
        shapes |= {"selector.predecessor": ((g.vocab, s), table), "selector.successor": ((g.vocab, s), table)}
        shapes["selector.hidden"] = ((s, h), matrix)
    kind = heads.switches.get("markov")
    if kind:
        shapes |= {"markov.w1": ((g.vocab, r), table), "markov.w2": ((v, r), table)}
    if kind == "gated":
        shapes |= {"markov.gate": ((r, h + r), matrix), "markov.gate_bias": ((r,), ("dim",))}
    if kind == "rnn":
        shapes |= {"markov.joint": ((3, r, 2 * r + h), ("part", "dim", "in")), "markov.joint_bias": ((3, r), ("part", "dim"))}
    sure = heads.switches.get("confidence")
    if sure:
        shapes["confidence"] = ((1, h + (r if sure == "markov" else 0)), matrix)
        if {GGUF_HEADS["confidence_bias"], HF_HEADS["confidence_bias"]} & names or not names:
            shapes["confidence_bias"] = ((1,), ("dim",))
    if g.draft_vocab:
        shapes["head"] = ((v, h), table)
    return shapes


def target_ids(container: Container, tensors: dict[str, StoredTensor], g: Geometry) -> NDArray[np.int64] | None:
    """Absolute target ids [draft vocab] out of ``d2t``, taken from ``tensors`` with its inverse; offsets in a folder (section 11)."""
    if g.draft_vocab is None:
        return None
    if D2T not in tensors:
        fail(container.path, f"missing tensor {D2T!r}: a draft vocabulary of {g.draft_vocab} ids needs the map to the target's {g.vocab}")
    values = _integers(tensors.pop(D2T), g.draft_vocab)
    ids = values if container.kind == "gguf" else values + np.arange(len(values))
    if ids.min() < 0 or ids.max() >= g.vocab or len(np.unique(ids)) != len(ids):
        fail(container.path, f"tensor {D2T!r}: expected distinct target ids below {g.vocab}, found {ids.min()} to {ids.max()}")
    if T2D in tensors:
        kept = tensors.pop(T2D)
        if kept.shape != (g.vocab,) or not np.array_equal(np.flatnonzero(kept.raw.reshape(-1)), np.sort(ids)):
            fail(container.path, f"tensor {T2D!r} does not mark the ids that {D2T!r} maps to")
    return ids


def _integers(tensor: StoredTensor, count: int) -> NDArray[np.int64]:
    kinds = {"i64": "<i8", "i32": "<i4"}
    if tensor.stored not in kinds or tensor.shape != (count,):
        fail(tensor.path, f"tensor {tensor.name!r}: expected {count} i64 or i32 numbers, found {tensor.stored} {list(tensor.shape)}")
    return np.frombuffer(tensor.raw.tobytes(), kinds[tensor.stored]).astype(np.int64)


def d2t_tensor(g: Geometry, ids: NDArray[np.int64], kind: str) -> list[PlannedTensor]:
    """The ``d2t`` of a reduced vocabulary, as the container stores it; nothing for a whole one."""
    if g.draft_vocab is None:
        return []
    stored = ids if kind == "gguf" else ids - np.arange(len(ids))
    return [PlannedTensor(D2T, (len(ids),), "i64", lambda: iter([np.asarray(stored, "<i8").view(np.uint8)[None]]))]
