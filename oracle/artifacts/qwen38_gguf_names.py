"""The tensors of a Qwen3.8-Flash-Next target by their GGUF names (`specs/qwen38-flash-next.md` 1.2; llama.cpp's ``qwen4exp``)."""

from __future__ import annotations

from oracle.artifacts.roles import GGUF_TARGET, Role
from oracle.targets.qwen38_weights import Qwen38Geometry
from oracle.tensor import Axes

TABLE = "per_layer_token_embd.weight"
FLAT: Axes = ("dim", "in")
VECTOR: Axes = ("dim",)
HYPER = {"hc_norm": "norm", "down": "down", "up": "up", "inject": "inject"}
DELTA = {"qkv": "attn_qkv.weight", "conv": "ssm_conv1d.weight", "z": "attn_gate.weight", "beta": "ssm_beta.weight"}
DELTA |= {"decay": "ssm_alpha.weight", "a_bias": "ssm_a", "dt_bias": "ssm_dt.bias", "norm": "ssm_norm.weight", "o": "ssm_out.weight"}
SPARSE = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output", "q_norm": "attn_q_norm", "k_norm": "attn_k_norm"}
SPARSE |= {"index_q": "indexer.q_proj", "index_k": "indexer.k_proj", "index_q_norm": "indexer.q_norm", "index_k_norm": "indexer.k_norm"}
PLE = {"key": "ple_key", "value": "ple_value", "key_norm": "ple_norm_key", "query_norm": "ple_norm_query", "conv_norm": "ple_norm_conv"}
PLE["conv"] = "ple_conv1d"


def target_roles(g: Qwen38Geometry, fused: bool = False) -> dict[str, Role]:
    """Every tensor by key, as `qwen38_roles.target_roles` keys them, the indexer's two apart; ``fused``: gate and up rows of an expert
    in one tensor."""
    roles = {
        "embedding": Role(GGUF_TARGET["embedding"], (g.vocab, g.hidden), ("vocab", "in")),
        "head": Role(GGUF_TARGET["head"], (g.vocab, g.hidden), ("vocab", "in")),
    } | _hyper("final", "output_hc_", g, inject=False)
    for n in range(g.layers):
        stem = f"blk.{n}."
        roles |= _hyper(f"{n}.attn_hc", f"{stem}hc_attn_", g) | _hyper(f"{n}.mlp_hc", f"{stem}hc_ffn_", g)
        mixer = _sparse(g, stem) if g.sparse[n] else _delta(g, stem)
        roles |= {f"{n}.{k}": r for k, r in (mixer | _experts(g, stem, fused)).items()}
        recipe = g.ngrams[n]
        if recipe is not None:
            roles |= {f"{n}.ple.{k}": Role(f"{stem}{PLE[k]}.weight", shape, axes) for k, (shape, axes) in _ple_shapes(g).items()}
            roles[f"{n}.ple.table"] = Role(TABLE, (g.ngram_rows[n], g.ple_dim // recipe.heads), ("vocab", "in"))
    return roles


def _hyper(key: str, stem: str, g: Qwen38Geometry, inject: bool = True) -> dict[str, Role]:
    wide = g.streams * g.hidden
    shapes: dict[str, tuple[tuple[int, ...], Axes]] = {"hc_norm": ((wide,), VECTOR), "down": ((g.hc_rank, wide), FLAT)}
    shapes |= {"up": ((wide, g.hc_rank), FLAT)} | ({"inject": ((g.streams, wide), ("stream", "in"))} if inject else {})
    return {f"{key}.{k}": Role(f"{stem}{HYPER[k]}.weight", *shape) for k, shape in shapes.items()}


def _delta(g: Qwen38Geometry, stem: str) -> dict[str, Role]:
    wide, values = 2 * g.key_heads * g.key_dim + g.value_heads * g.value_dim, g.value_heads * g.value_dim
    by_head: tuple[tuple[int, ...], Axes] = ((g.value_heads, g.hidden), ("head", "in"))
    shapes: dict[str, tuple[tuple[int, ...], Axes]] = {
        "qkv": ((wide, g.hidden), FLAT),
        "conv": ((wide, g.conv_taps), FLAT),
        "z": ((g.value_heads, g.value_dim, g.hidden), ("head", "dim", "in")),
        "beta": by_head,
        "decay": by_head,
        "a_bias": ((g.value_heads,), ("head",)),
        "dt_bias": ((g.value_heads,), ("head",)),
        "norm": ((g.value_dim,), VECTOR),
        "o": ((g.hidden, values), FLAT),
    }
    return {f"delta.{k}": Role(f"{stem}{DELTA[k]}", *shape) for k, shape in shapes.items()}


def _sparse(g: Qwen38Geometry, stem: str) -> dict[str, Role]:
    headed: Axes = ("head", "dim", "in")
    shapes: dict[str, tuple[tuple[int, ...], Axes]] = {
        "q": ((g.heads, 2 * g.head_dim, g.hidden), headed),
        "k": ((g.kv_heads, g.head_dim, g.hidden), headed),
        "v": ((g.kv_heads, g.head_dim, g.hidden), headed),
        "o": ((g.hidden, g.heads * g.head_dim), FLAT),
        "q_norm": ((g.head_dim,), VECTOR),
        "k_norm": ((g.head_dim,), VECTOR),
        "index_q": ((g.index_heads, g.index_dim, g.hidden), headed),
        "index_k": ((1, g.index_dim, g.hidden), headed),
        "index_q_norm": ((g.index_dim,), VECTOR),
        "index_k_norm": ((g.index_dim,), VECTOR),
    }
    return {f"sparse.{k}": Role(f"{stem}{SPARSE[k]}.weight", *shape) for k, shape in shapes.items()}


def _experts(g: Qwen38Geometry, stem: str, fused: bool) -> dict[str, Role]:
    wide, narrow, axes = (g.experts, g.intermediate, g.hidden), (g.experts, g.hidden, g.intermediate), ("expert", "dim", "in")
    both = (g.experts, 2 * g.intermediate, g.hidden)
    parts = {"experts.gate_up": ("ffn_gate_up_exps", both)} if fused else {}
    parts = parts or {"experts.gate": ("ffn_gate_exps", wide), "experts.up": ("ffn_up_exps", wide)}
    parts["experts.down"] = ("ffn_down_exps", narrow)
    roles = {key: Role(f"{stem}{name}.weight", shape, axes, shape) for key, (name, shape) in parts.items()}
    roles["router"] = Role(f"{stem}ffn_gate_inp.weight", (g.experts, g.hidden), ("expert", "in"))
    for part, shape in (("gate", (g.shared_intermediate, g.hidden)), ("up", (g.shared_intermediate, g.hidden))):
        roles[f"shared_{part}"] = Role(f"{stem}ffn_{part}_shexp.weight", shape, FLAT)
    roles["shared_down"] = Role(f"{stem}ffn_down_shexp.weight", (g.hidden, g.shared_intermediate), FLAT)
    roles["shared_router"] = Role(f"{stem}ffn_gate_inp_shexp.weight", (1, g.hidden), ("stream", "in"), (g.hidden,))
    return roles


def _ple_shapes(g: Qwen38Geometry) -> dict[str, tuple[tuple[int, ...], Axes]]:
    wide = g.streams * g.hidden
    shapes: dict[str, tuple[tuple[int, ...], Axes]] = {"key": ((wide, g.ple_dim), FLAT), "value": ((g.hidden, g.ple_dim), FLAT)}
    return shapes | {f"{n}_norm": ((wide,), VECTOR) for n in ("key", "query", "conv")} | {"conv": ((wide, g.ple_taps), FLAT)}
