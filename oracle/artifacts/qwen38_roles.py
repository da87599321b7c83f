"""The tensors of a Qwen3.8-Flash-Next target by their Hugging Face names, and the weights they become.

Source: `specs/qwen38-flash-next.md` 1.2. Projections that hold several things side by side are split here, nothing is copied.
"""

from __future__ import annotations

from collections.abc import Mapping

from oracle.artifacts.reordered import Reordered
from oracle.artifacts.roles import Role
from oracle.ngrams import Shards, Table
from oracle.targets.moe import Mixture, parts
from oracle.targets.qwen38_weights import (
    DeltaWeights,
    HyperWeights,
    PleWeights,
    Qwen38Geometry,
    Qwen38Layer,
    Qwen38Weights,
    SparseWeights,
)
from oracle.tensor import Axes
from oracle.weights import Weight

PREFIXES = ("model.language_model.", "model.")
HEAD = "lm_head.weight"
FLAT: Axes = ("dim", "in")
VECTOR: Axes = ("dim",)
SAVED_EXPERTS = {"experts.gate": "gate_proj", "experts.up": "up_proj", "experts.down": "down_proj"}
PLE = {
    "key": "key_proj",
    "value": "value_proj",
    "key_norm": "norm_key",
    "query_norm": "norm_query",
    "conv_norm": "norm_conv",
    "conv": "conv1d",
}
TABLE = "ple.ple_embedding.ngram_embedding"


def target_roles(g: Qwen38Geometry, shards: Mapping[int, tuple[int, ...]] | None = None, packed: bool = True) -> dict[str, Role]:
    """Every tensor of a target by key, names without their prefix (the head's has none).

    ``shards``: per layer with an n-gram table the rows of its shards, () for one whole tensor; ``packed``: the experts of a layer
    are one tensor, else one per expert.
    """
    wide, flat = g.streams * g.hidden, FLAT
    roles = {
        "embedding": Role("embed_tokens.weight", (g.vocab, g.hidden), ("vocab", "in")),
        "head": Role(HEAD, (g.vocab, g.hidden), ("vocab", "in")),
    } | _hyper("final", "hyper_connection_mixer.", g, inject=False)
    for layer in range(g.layers):
        stem = f"layers.{layer}."
        roles |= _hyper(f"{layer}.attn_hc", f"{stem}attn_hyper_connection.", g)
        roles |= _hyper(f"{layer}.mlp_hc", f"{stem}mlp_hyper_connection.", g)
        roles |= {f"{layer}.{k}": r for k, r in (_sparse(stem, g) if g.sparse[layer] else _delta(stem, g)).items()}
        roles |= {f"{layer}.{k}": r for k, r in _experts(f"{stem}mlp.", g, packed).items()}
        ngrams = g.ngrams[layer]
        if ngrams is None:
            continue
        sizes: dict[str, tuple[tuple[int, ...], Axes]] = {"key": ((wide, g.ple_dim), flat), "value": ((g.hidden, g.ple_dim), flat)}
        sizes |= {f"{n}_norm": ((wide,), VECTOR) for n in ("key", "query", "conv")} | {"conv": ((wide, g.ple_taps), flat)}
        roles |= {f"{layer}.ple.{k}": Role(f"{stem}ple.{PLE[k]}.weight", *sizes[k]) for k in PLE}
        roles |= _table(layer, stem, g, (shards or {}).get(layer, ()))
    return roles


def _hyper(key: str, stem: str, g: Qwen38Geometry, inject: bool = True) -> dict[str, Role]:
    wide = g.streams * g.hidden
    roles = {
        f"{key}.hc_norm": Role(f"{stem}hc_norm.weight", (wide,), VECTOR),
        f"{key}.down": Role(f"{stem}input_mix_weight_down.weight", (g.hc_rank, wide), FLAT),
        f"{key}.up": Role(f"{stem}input_mix_weight_up.weight", (wide, g.hc_rank), FLAT),
    }
    return roles | ({f"{key}.inject": Role(f"{stem}block_inject_weight.weight", (g.streams, wide), ("stream", "in"))} if inject else {})


def _delta(stem: str, g: Qwen38Geometry) -> dict[str, Role]:
    stem, keys, values = f"{stem}linear_attn.", g.key_heads * g.key_dim, g.value_heads * g.value_dim
    by_head = ((g.value_heads, g.hidden), ("head", "in"))
    return {
        "delta.qkv": Role(f"{stem}in_proj_qkv.weight", (2 * keys + values, g.hidden), FLAT),
        "delta.conv": Role(f"{stem}conv1d.weight", (2 * keys + values, g.conv_taps), FLAT),
        "delta.z": Role(f"{stem}in_proj_z.weight", (g.value_heads, g.value_dim, g.hidden), ("head", "dim", "in")),
        "delta.beta": Role(f"{stem}in_proj_b.weight", *by_head),
        "delta.decay": Role(f"{stem}in_proj_a.weight", *by_head),
        "delta.a_bias": Role(f"{stem}A_log", (g.value_heads,), ("head",)),
        "delta.dt_bias": Role(f"{stem}dt_bias", (g.value_heads,), ("head",)),
        "delta.norm": Role(f"{stem}norm.weight", (g.value_dim,), VECTOR),
        "delta.o": Role(f"{stem}out_proj.weight", (g.hidden, values), FLAT),
    }


def _sparse(stem: str, g: Qwen38Geometry) -> dict[str, Role]:
    stem, headed = f"{stem}self_attn.", ("head", "dim", "in")
    return {
        "sparse.q": Role(f"{stem}q_proj.weight", (g.heads, 2 * g.head_dim, g.hidden), headed),
        "sparse.k": Role(f"{stem}k_proj.weight", (g.kv_heads, g.head_dim, g.hidden), headed),
        "sparse.v": Role(f"{stem}v_proj.weight", (g.kv_heads, g.head_dim, g.hidden), headed),
        "sparse.o": Role(f"{stem}o_proj.weight", (g.hidden, g.heads * g.head_dim), FLAT),
        "sparse.q_norm": Role(f"{stem}q_norm.weight", (g.head_dim,), VECTOR),
        "sparse.k_norm": Role(f"{stem}k_norm.weight", (g.head_dim,), VECTOR),
        "sparse.index": Role(f"{stem}indexer.index_qk_proj.weight", ((g.index_heads + 1) * g.index_dim, g.hidden), FLAT),
        "sparse.index_q_norm": Role(f"{stem}indexer.q_layernorm.weight", (g.index_dim,), VECTOR),
        "sparse.index_k_norm": Role(f"{stem}indexer.k_layernorm.weight", (g.index_dim,), VECTOR),
    }


def _experts(stem: str, g: Qwen38Geometry, packed: bool) -> dict[str, Role]:
    wide, narrow, axes = (g.intermediate, g.hidden), (g.hidden, g.intermediate), ("expert", "dim", "in")
    roles = {
        "router": Role(f"{stem}gate.weight", (g.experts, g.hidden), ("expert", "in")),
        "shared_gate": Role(f"{stem}shared_expert.gate_proj.weight", (g.shared_intermediate, g.hidden), FLAT),
        "shared_up": Role(f"{stem}shared_expert.up_proj.weight", (g.shared_intermediate, g.hidden), FLAT),
        "shared_down": Role(f"{stem}shared_expert.down_proj.weight", (g.hidden, g.shared_intermediate), FLAT),
        "shared_router": Role(f"{stem}shared_expert_gate.weight", (1, g.hidden), ("stream", "in")),
    }
    if packed:
        roles["experts.gate_up"] = Role(f"{stem}experts.gate_up_proj", (g.experts, 2 * g.intermediate, g.hidden), axes)
        roles["experts.down"] = Role(f"{stem}experts.down_proj", (g.experts, *narrow), axes)
        return roles
    for e in range(g.experts):
        for key, name in SAVED_EXPERTS.items():
            roles[f"{key}.{e}"] = Role(f"{stem}experts.{e}.{name}.weight", narrow if name == "down_proj" else wide, FLAT)
    return roles


def _table(layer: int, stem: str, g: Qwen38Geometry, shards: tuple[int, ...]) -> dict[str, Role]:
    ngrams = g.ngrams[layer]
    assert ngrams is not None
    width, axes = g.ple_dim // ngrams.heads, ("vocab", "in")
    if not shards:
        return {f"{layer}.ple.table": Role(f"{stem}{TABLE}.weight", (g.ngram_rows[layer], width), axes)}
    return {f"{layer}.ple.table.{n}": Role(f"{stem}{TABLE}.shard_{n}.weight", (rows, width), axes) for n, rows in enumerate(shards)}


def rows(w: Weight, start: int, stop: int, axes: Axes, shape: tuple[int, ...]) -> Weight:
    """Rows ``start:stop`` of a matrix as a weight of its own logical shape."""
    if isinstance(w, Reordered):
        return w.part(start, stop, axes, shape)
    return Weight(w.raw[start:stop], axes, shape, w.stored, f"{w.name}[{start}:{stop}]")


def target_weights(found: Mapping[str, Weight], g: Qwen38Geometry) -> Qwen38Weights:
    """The weights out of tensors keyed as `target_roles` keys them."""
    layers = tuple(_layer({k.partition(".")[2]: w for k, w in found.items() if k.startswith(f"{n}.")}, n, g) for n in range(g.layers))
    final = _hyper_weights(found, "final")
    return Qwen38Weights(found["embedding"], layers, final.norm, found["head"], final)


def _hyper_weights(found: Mapping[str, Weight], key: str) -> HyperWeights:
    return HyperWeights(found[f"{key}.hc_norm"], found[f"{key}.down"], found[f"{key}.up"], found.get(f"{key}.inject"))


def _layer(w: Mapping[str, Weight], layer: int, g: Qwen38Geometry) -> Qwen38Layer:
    shared = {k: w[k] for k in ("shared_gate", "shared_up", "shared_down", "shared_router")}
    mixer = _sparse_weights(w, g) if g.sparse[layer] else _delta_weights(w, g)
    ple = None
    if g.ngrams[layer] is not None:
        ple = PleWeights(_joined(w), *(w[f"ple.{k}"] for k in PLE))
    return Qwen38Layer(_hyper_weights(w, "attn_hc"), _hyper_weights(w, "mlp_hc"), mixer, _mixture(w, g), ple=ple, **shared)


def _joined(w: Mapping[str, Weight]) -> Table:
    if "ple.table" in w:
        return w["ple.table"]
    count = sum(k.startswith("ple.table.") for k in w)
    return Shards(tuple(w[f"ple.table.{n}"] for n in range(count)), f"{w['ple.table.0'].name} and {count - 1} more shards")


def _mixture(w: Mapping[str, Weight], g: Qwen38Geometry) -> Mixture:
    if "experts.gate" in w:
        gates, ups, downs = (parts(w[key], g.experts) for key in ("experts.gate", "experts.up", "experts.down"))
        return Mixture(w["router"], gates, ups, downs)
    if "experts.gate_up" in w:
        both = w["experts.gate_up"]
        gates, ups = parts(both, g.experts, 0, g.intermediate), parts(both, g.experts, g.intermediate)
        return Mixture(w["router"], gates, ups, parts(w["experts.down"], g.experts))
    gates, ups, downs = (tuple(w[f"{key}.{e}"] for e in range(g.experts)) for key in SAVED_EXPERTS)
    return Mixture(w["router"], gates, ups, downs)


def _delta_weights(w: Mapping[str, Weight], g: Qwen38Geometry) -> DeltaWeights:
    keys, values, axes = (g.key_heads, g.key_dim), (g.value_heads, g.value_dim), ("head", "dim", "in")
    wide = g.key_heads * g.key_dim

    def split(name: str) -> list[Weight]:
        whole = w[name]
        ends = ((0, wide, keys), (wide, 2 * wide, keys), (2 * wide, whole.row_count, values))
        return [rows(whole, start, stop, axes, (*heads, whole.width)) for start, stop, heads in ends]

    names = ("z", "beta", "decay", "a_bias", "dt_bias", "norm", "o")
    return DeltaWeights(*split("delta.qkv"), *split("delta.conv"), *(w[f"delta.{n}"] for n in names))


def _sparse_weights(w: Mapping[str, Weight], g: Qwen38Geometry) -> SparseWeights:
    if "sparse.index" in w:
        index, axes = w["sparse.index"], ("head", "dim", "in")
        queries = g.index_heads * g.index_dim
        q = rows(index, 0, queries, axes, (g.index_heads, g.index_dim, g.hidden))
        k = rows(index, queries, index.row_count, axes, (1, g.index_dim, g.hidden))
    else:
        q, k = w["sparse.index_q"], w["sparse.index_k"]
    outer = {n: w[f"sparse.{n}"] for n in ("q", "k", "v", "o", "q_norm", "k_norm", "index_q_norm", "index_k_norm")}
    return SparseWeights(**outer, index_q=q, index_k=k)
