"""The Qwen3.8-Flash-Next target in GGUF, architecture ``qwen4exp``: llama.cpp's keys, names and re-layouts, undone as they are read.

Source: `specs/qwen38-flash-next.md` 1.2 (names and re-layouts), 1.8 (hash constants). Norms of the ``1 + w`` family have the 1 in;
``ssm_a`` is ``-exp(A_log)``; value heads of the delta net are tiled, not grouped; the indexer's projection is split. The lab's own keys,
which engines do not read: ``qwen4exp.output_gate_type`` (they all mean sigmoid), and ``ple.vocab_size_base``, ``ple.seed`` and
``ple.divisor``, from which a config's hash constants are made.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from oracle import ngrams
from oracle.artifacts.container import Container, StoredTensor, fail, show
from oracle.artifacts.fields import LARGEST_DIM, LARGEST_HEADS, LARGEST_LAYERS, Fields
from oracle.artifacts.qwen38_gguf_names import TABLE
from oracle.artifacts.roles import GGUF_TARGET
from oracle.artifacts.ropes import THETA
from oracle.artifacts.sizes import LARGEST_HEAD_DIM, context_length, finish_gguf, vocabulary_rows
from oracle.artifacts.writers import Typed
from oracle.recipes import Rope
from oracle.targets.qwen38_weights import OUTPUT_GATES, Qwen38Geometry

ARCH = "qwen4exp"
FAMILY = "qwen38-flash-next"
LARGEST_EXPERTS = 4096


def flattened(container: Container, g: Qwen38Geometry) -> dict[str, StoredTensor]:
    """The tensors with norms over the streams as vectors: llama.cpp takes them as [stream, hidden] too."""
    wide = (g.streams, g.hidden)
    return {n: replace(t, shape=(g.streams * g.hidden,), raw=t.raw.reshape(1, -1)) if t.shape == wide and "norm" in n else t
            for n, t in container.tensors.items()}  # fmt: skip


def read_geometry(container: Container) -> tuple[Qwen38Geometry, list[str]]:
    """The geometry that the keys describe; `ArtifactError` names the key that is wrong."""
    keys = Fields(container, container.metadata)
    key = f"{ARCH}.".__add__
    keys.must_be("general.architecture", ARCH)

    def size(name: str, low: int, high: int, **default: Any) -> int:
        return int(keys.integer(key(name), low, high, **default))

    layers, heads = size("block_count", 1, LARGEST_LAYERS), size("attention.head_count", 1, LARGEST_HEADS)
    head_dim = size("attention.key_length", 2, LARGEST_HEAD_DIM)
    keys.must_be(key("attention.value_length"), head_dim)
    hidden, experts = size("embedding_length", 1, LARGEST_DIM), size("expert_count", 1, LARGEST_EXPERTS)
    vocab = vocabulary_rows(container, keys, ARCH, GGUF_TARGET["embedding"])
    sparse = _sparse_layers(keys, layers)
    state = size("ssm.state_size", 1, LARGEST_HEAD_DIM)
    value_heads = size("ssm.time_step_rank", 1, LARGEST_HEADS)
    keys.must_be(key("ssm.inner_size"), state * value_heads)
    ratio = _ratio(keys, sparse)
    recipes, rows, ple_dim, ple_taps, origin = _ngrams(container, keys, vocab, hidden, sparse)
    geometry = Qwen38Geometry(
        FAMILY,
        hidden,
        size("expert_feed_forward_length", 1, LARGEST_DIM),
        layers,
        heads,
        _divisor(keys, "attention.head_count_kv", heads),
        head_dim,
        vocab,
        keys.number(key("attention.layer_norm_rms_epsilon"), 1e-12, 1e-1),
        _rope(keys, head_dim),
        head_dim**-0.5,
        context_length=context_length(keys, key("context_length")),
        streams=size("hyper_connection.count", 2, 64),
        hc_rank=size("hyper_connection.low_rank", 1, LARGEST_DIM),
        sparse=sparse,
        value_heads=value_heads,
        key_heads=_divisor(keys, "ssm.group_count", value_heads),
        key_dim=state,
        value_dim=state,
        conv_taps=size("ssm.conv_kernel", 2, 64),
        output_gate=_output_gate(keys),
        index_heads=size("attention.indexer.head_count", 1, LARGEST_HEADS),
        index_dim=size("attention.indexer.key_length", 2, LARGEST_HEAD_DIM),
        index_budget=_multiple(keys, "attention.indexer.top_k", ratio),
        index_ratio=ratio,
        experts=experts,
        experts_per_token=size("expert_used_count", 1, experts),
        shared_intermediate=size("expert_shared_feed_forward_length", 1, LARGEST_DIM),
        ngrams=recipes,
        ngram_rows=rows,
        ple_dim=ple_dim,
        ple_taps=ple_taps,
        ngram_origin=origin,
    )
    if geometry.rope.dim > geometry.index_dim:
        keys.refuse(key("attention.indexer.key_length"), f"at least the rotary width {geometry.rope.dim}")
    # Every layer has experts: the width of a dense MLP shapes nothing.
    keys.ignore(key("feed_forward_length"), key("ple.image_token_id"))
    return geometry, finish_gguf(keys)


def _divisor(keys: Fields, name: str, of: int) -> int:
    value: int = keys.integer(f"{ARCH}.{name}", 1, LARGEST_HEADS)
    return value if of % value == 0 else int(keys.refuse(f"{ARCH}.{name}", f"a divisor of {of}"))


def _multiple(keys: Fields, name: str, of: int) -> int:
    value: int = keys.integer(f"{ARCH}.{name}", 1, LARGEST_DIM)
    return value if value % of == 0 else int(keys.refuse(f"{ARCH}.{name}", f"a multiple of the compression ratio {of}"))


def _output_gate(keys: Fields) -> str:
    name = f"{ARCH}.output_gate_type"
    gate: str = keys.text(name, OUTPUT_GATES[0])
    return gate if gate in OUTPUT_GATES else str(keys.refuse(name, " or ".join(map(repr, OUTPUT_GATES))))


def _sparse_layers(keys: Fields, layers: int) -> tuple[bool, ...]:
    """Per layer, whether it is sparse attention: not recurrent, or every ``full_attention_interval``-th one."""
    interval = keys.integer(f"{ARCH}.full_attention_interval", 1, LARGEST_LAYERS, default=4)
    name = f"{ARCH}.attention.recurrent_layers"
    if not keys.has(name):
        return tuple((n + 1) % interval == 0 for n in range(layers))
    return tuple(not r for r in keys.flags(name, layers))


def _ratio(keys: Fields, sparse: tuple[bool, ...]) -> int:
    """Cells per block of the indexer: one ratio for every sparse layer, 0 for the others."""
    name = f"{ARCH}.attention.compress_ratios"
    found = keys.counts(name, 0, LARGEST_DIM, len(sparse))
    ratios = {r for r, s in zip(found, sparse, strict=True) if s}
    if any(r for r, s in zip(found, sparse, strict=True) if not s) or len(ratios) > 1 or 0 in ratios:
        keys.refuse(name, "one ratio above 0 for every layer of sparse attention and 0 for the others")
    return ratios.pop() if ratios else 1


def _rope(keys: Fields, head_dim: int) -> Rope:
    width: int = keys.integer(f"{ARCH}.rope.dimension_count", 2, head_dim)
    if width % 2:
        keys.refuse(f"{ARCH}.rope.dimension_count", "an even number")
    # For text the three position components are equal, so their sections do not matter.
    keys.ignore(f"{ARCH}.rope.dimension_sections")
    keys.must_be(f"{ARCH}.rope.scaling.type", "none")
    return Rope(keys.number(f"{ARCH}.rope.freq_base", *THETA), width)


Hash = tuple[tuple[ngrams.NGrams | None, ...], tuple[int, ...], int, int, ngrams.Origin | None]


def _ngrams(container: Container, keys: Fields, vocab: int, hidden: int, sparse: tuple[bool, ...]) -> Hash:
    """(hash per layer or None, table rows per layer, embedding width, convolution taps, what the constants were made of)."""
    layers, ple = len(sparse), f"{ARCH}.ple.".__add__
    width = f"{ARCH}.embedding_length_per_layer_input"
    if not keys.has(ple("layers")):
        return (None,) * layers, (0,) * layers, hidden, 4, None
    at = keys.integers(ple("layers"), 0, layers - 1, 1)[0]
    if sparse[at]:
        keys.refuse(ple("layers"), "a layer of linear attention")
    size, per_size = keys.integer(ple("ngram_size"), 2, 16), keys.integer(ple("heads_per_ngram"), 1, 256)
    heads = (size - 1) * per_size
    multipliers = keys.counts(ple("layer_multipliers"), 1, ((1 << 63) - 1) // vocab, size, ("u64", "i64"))
    sizes = keys.counts(ple("head_vocab_sizes"), 1, (1 << 31) - 1, heads, ("u64", "i64"))
    offsets = keys.counts(ple("head_offsets"), 0, 1 << 40, heads, ("u64", "i64"))
    if list(offsets) != [sum(sizes[:i]) for i in range(heads)]:
        keys.refuse(ple("head_offsets"), "the running sum of head_vocab_sizes")
    if any(m % 2 == 0 for m in multipliers):
        keys.refuse(ple("layer_multipliers"), "odd numbers")
    recipe = ngrams.NGrams(size, per_size, multipliers, sizes, offsets, keys.integer(ple("eos_token_id"), 0, vocab - 1))
    table = container.tensors.get(TABLE)
    rows = table.shape[0] if table is not None and len(table.shape) == 2 else sum(sizes)
    if rows < sum(sizes):
        wanted = f"at least {sum(sizes)} rows, the sum of {ple('head_vocab_sizes')}"
        fail(container.path, f"tensor {show(TABLE)}: expected {wanted}, found {rows}")
    wide = keys.integer(width, 1, LARGEST_DIM) * heads
    origin = _origin(keys, vocab, recipe, rows)
    taps = keys.integer(ple("conv_kernel"), 2, 64)
    made = (tuple(recipe if n == at else None for n in range(layers)), tuple(rows if n == at else 0 for n in range(layers)))
    return *made, wide, taps, origin


def _origin(keys: Fields, vocab: int, recipe: ngrams.NGrams, rows: int) -> ngrams.Origin | None:
    """What the constants were made of, where the file says so; it must then give these constants."""
    ple = f"{ARCH}.ple.".__add__
    names = [ple(n) for n in ("vocab_size_base", "seed", "divisor")]
    given = [keys.integer(n, low, (1 << 31) - 1, default=None) for n, low in zip(names, (2, 0, 1), strict=True)]
    if None in given:
        return None
    origin = ngrams.Origin(*given)
    if ngrams.make(vocab, recipe.size, recipe.per_size, origin.base, origin.seed, 0, recipe.end) != recipe:
        keys.refuse(names[1], f"a seed that gives {ple('layer_multipliers')} and {ple('head_vocab_sizes')}")
    if ngrams.table_rows(recipe, origin.divisor) != rows:
        keys.refuse(names[2], f"a divisor that pads the table to its {rows} rows")
    return origin


def target_keys(container: Container, g: Qwen38Geometry) -> dict[str, Typed]:
    """The keys of ``g``; `ArtifactError` about ``container`` for what GGUF has no place for."""
    if g.key_dim != g.value_dim:
        fail(container.path, f"linear heads of {g.key_dim} and {g.value_dim} have no place in GGUF, which has one ssm.state_size")
    sizes = {
        "block_count": g.layers,
        "context_length": g.context_length,
        "embedding_length": g.hidden,
        "vocab_size": g.vocab,
        "attention.head_count": g.heads,
        "attention.head_count_kv": g.kv_heads,
        "attention.key_length": g.head_dim,
        "attention.value_length": g.head_dim,
        "attention.indexer.head_count": g.index_heads,
        "attention.indexer.key_length": g.index_dim,
        "attention.indexer.top_k": g.index_budget,
        "rope.dimension_count": g.rope.dim,
        "ssm.conv_kernel": g.conv_taps,
        "ssm.state_size": g.key_dim,
        "ssm.group_count": g.key_heads,
        "ssm.time_step_rank": g.value_heads,
        "ssm.inner_size": g.value_heads * g.value_dim,
        "hyper_connection.count": g.streams,
        "hyper_connection.low_rank": g.hc_rank,
        "expert_count": g.experts,
        "expert_used_count": g.experts_per_token,
        "expert_feed_forward_length": g.intermediate,
        "expert_shared_feed_forward_length": g.shared_intermediate,
    }
    made = {k: Typed("u32", v) for k, v in sizes.items() if v is not None}
    made |= {"attention.layer_norm_rms_epsilon": Typed("f32", g.eps), "rope.freq_base": Typed("f32", g.rope.theta)}
    made["rope.dimension_sections"] = Typed("array of i32", _sections(g.rope.dim // 2))
    made["attention.recurrent_layers"] = Typed("array of bool", [not s for s in g.sparse])
    made["attention.compress_ratios"] = Typed("array of i32", [g.index_ratio if s else 0 for s in g.sparse])
    made["output_gate_type"] = Typed("string", g.output_gate)
    return {"general.architecture": Typed("string", ARCH)} | {f"{ARCH}.{k}": v for k, v in (made | _ple_keys(container, g)).items()}


def _sections(pairs: int) -> list[int]:
    """How many pairs follow time, height and width; text does not depend on it. The release's 32 are 11, 11 and 10."""
    third = pairs // 3
    return [third + (pairs % 3 > 0), third + (pairs % 3 > 1), third, 0]


def _ple_keys(container: Container, g: Qwen38Geometry) -> dict[str, Typed]:
    at = [n for n, r in enumerate(g.ngrams) if r is not None]
    if not at:
        return {}
    recipe = g.ngrams[at[0]]
    assert recipe is not None
    if len(at) > 1:
        fail(container.path, f"n-gram tables of {len(at)} layers have no place in GGUF, which has one {TABLE}")
    made = {"ple.layers": Typed("array of i32", at), "ple.ngram_size": Typed("u32", recipe.size)}
    made |= {"ple.heads_per_ngram": Typed("u32", recipe.per_size), "ple.conv_kernel": Typed("u32", g.ple_taps)}
    made |= {"ple.eos_token_id": Typed("u32", recipe.end), "embedding_length_per_layer_input": Typed("u32", g.ple_dim // recipe.heads)}
    for name, values in (("layer_multipliers", recipe.multipliers), ("head_vocab_sizes", recipe.sizes), ("head_offsets", recipe.offsets)):
        made[f"ple.{name}"] = Typed("array of u64", list(values))
    if g.ngram_origin is not None:
        named = {"vocab_size_base": g.ngram_origin.base, "seed": g.ngram_origin.seed, "divisor": g.ngram_origin.divisor}
        made |= {f"ple.{k}": Typed("u32", v) for k, v in named.items()}
    return made
