"""The Qwen3.8-Flash-Next target: SafeTensors folders, text only or with a vision tower that is left aside, and GGUF.

Source: `specs/qwen38-flash-next.md` 1.1 (configuration and its traps), 1.2 (names), 1.8 (hash constants).
"""

from __future__ import annotations

import re
from dataclasses import replace

from oracle import ngrams
from oracle.artifacts import qwen38_gguf, qwen38_gguf_names, qwen38_restore
from oracle.artifacts.container import Container, StoredTensor, fail, name_list, show
from oracle.artifacts.fields import LARGEST_DIM, LARGEST_HEADS, LARGEST_LAYERS, Fields
from oracle.artifacts.qwen38_roles import HEAD, PREFIXES, TABLE, target_roles, target_weights
from oracle.artifacts.roles import TargetParts, formats_of, take
from oracle.artifacts.ropes import THETA
from oracle.artifacts.sizes import LARGEST_HEAD_DIM, context_length, finish_config
from oracle.recipes import Rope
from oracle.targets.qwen38_weights import OUTPUT_GATES, Qwen38Geometry

FAMILY = "qwen38-flash-next"
ARCHITECTURE, MULTIMODAL = "Qwen4ExpForCausalLM", "Qwen4ExpForConditionalGeneration"
ASIDE = ("model.visual.", "visual.", "mtp.")
SPARSE_NAMES = ("full_attention", "indexed_attention", "qwen_sparse_attention")
LARGEST_EXPERTS, LARGEST_TABLE = 4096, 1 << 40
BUFFERS = {"layer_multipliers": "multipliers", "ngram_heads_vocab_sizes": "sizes", "ngram_heads_offsets": "offsets"}


def read(container: Container) -> TargetParts:
    """The target in ``container``, checked and mapped; `ArtifactError` names what is wrong."""
    if container.kind == "gguf":
        return _from_gguf(container)
    geometry, warnings = _from_config(container)
    tensors = _named(container)
    shards = {layer: _shards(container, tensors, layer) for layer, n in enumerate(geometry.ngrams) if n is not None}
    for layer in shards:
        _check_hash(container, tensors, layer, geometry)
    packed = "layers.0.mlp.experts.gate_up_proj" in tensors
    found = take(container, {n: _matrix(t) for n, t in tensors.items()}, target_roles(geometry, shards, packed))
    left = sum(n.startswith(ASIDE) for n in container.tensors)
    warnings += [f"{left} tensors of the vision part and of next-token prediction are not used: this is the text model"] if left else []
    return TargetParts(geometry, target_weights(found, geometry), formats_of(found.values()), tuple(warnings))


def _from_gguf(container: Container) -> TargetParts:
    geometry, warnings = qwen38_gguf.read_geometry(container)
    fused = any(n.endswith("ffn_gate_up_exps.weight") for n in container.tensors)
    found = take(container, qwen38_gguf.flattened(container, geometry), qwen38_gguf_names.target_roles(geometry, fused))
    try:
        weights = target_weights(qwen38_restore.restored(found, geometry), geometry)
    except ValueError as error:
        fail(container.path, str(error))
    return TargetParts(geometry, weights, formats_of(found.values()), tuple(warnings))


def _named(container: Container) -> dict[str, StoredTensor]:
    """The text model's tensors without their prefix; vision and next-token-prediction tensors are left aside."""
    kept = {n: t for n, t in container.tensors.items() if not n.startswith(ASIDE)}
    prefix = next((p for p in PREFIXES if f"{p}embed_tokens.weight" in kept), "")
    wrong = [n for n in kept if n != HEAD and not n.startswith(prefix)]
    if wrong:
        fail(container.path, f"tensors without the prefix {prefix!r} that the others carry: {name_list(wrong)}; expected one naming style")
    return {n.removeprefix(prefix): t for n, t in kept.items()}


def _matrix(t: StoredTensor) -> StoredTensor:
    """A tensor of more than two axes as the matrix it is: a convolution [channel, 1, tap], experts [expert, out, in]."""
    if len(t.shape) != 3:
        return t
    rows = t.shape[0] if t.shape[1] == 1 else t.shape[0] * t.shape[1]
    return replace(t, shape=(rows, t.shape[2]))


def _shards(container: Container, tensors: dict[str, StoredTensor], layer: int) -> tuple[int, ...]:
    """Rows of the n-gram table's shards, in order; () where the table is one tensor."""
    pattern = re.compile(rf"layers\.{layer}\.{re.escape(TABLE)}\.shard_(\d{{1,6}})\.weight")
    numbers = {int(found[1]): t for n, t in tensors.items() if (found := pattern.fullmatch(n))}
    if numbers.keys() != set(range(len(numbers))):
        fail(container.path, f"n-gram table of layer {layer}: shards {sorted(numbers)[:8]}; expected 0 to {len(numbers) - 1} without a gap")
    return tuple(numbers[n].shape[0] for n in range(len(numbers)))


def _check_hash(container: Container, tensors: dict[str, StoredTensor], layer: int, g: Qwen38Geometry) -> None:
    """The hash constants some exports store must be the computed ones; the table must be as long as they need."""
    recipe = g.ngrams[layer]
    for buffer, name in BUFFERS.items():
        stored = tensors.pop(f"layers.{layer}.ple.ple_embedding.{buffer}", None)
        wanted = getattr(recipe, name)
        if stored is None:
            continue
        found = stored.raw.reshape(-1).view("<i8").tolist() if stored.stored == "i64" else None
        if found != list(wanted):
            what = f"{stored.stored} {show(found) if found is not None else list(stored.shape)}"
            expected = f"the i64 constants {show(list(wanted))} of this configuration"
            fail(stored.path, f"tensor {show(stored.name)}: expected {expected}, found {what}")


def _from_config(container: Container) -> tuple[Qwen38Geometry, list[str]]:
    outer = Fields(container, container.metadata)
    config, inside = (outer.child("text_config"), True) if outer.has("text_config") else (outer, False)
    config.must_be("model_type", "qwen4_exp_text", *(("qwen4_exp",) if not inside else ()))
    _check_fixed(config)
    vocab, hidden = config.integer("vocab_size", 1, LARGEST_DIM), config.integer("hidden_size", 1, LARGEST_DIM)
    layers = config.integer("num_hidden_layers", 1, LARGEST_LAYERS)
    heads = config.integer("num_attention_heads", 1, LARGEST_HEADS)
    head_dim = config.integer("head_dim", 2, LARGEST_HEAD_DIM)
    sparse = _kinds(config, layers)
    recipes, rows, ple_dim, ple_taps, origin = _ngrams(outer, config, vocab, hidden, layers, sparse)
    experts = config.integer("num_experts", 1, LARGEST_EXPERTS)
    ratio = config.integer("indexer_compress_ratio", 1, LARGEST_DIM)
    geometry = Qwen38Geometry(
        FAMILY,
        hidden,
        config.integer("moe_intermediate_size", 1, LARGEST_DIM),
        layers,
        heads,
        _divisor(config, "num_key_value_heads", heads),
        head_dim,
        vocab,
        config.number("rms_norm_eps", 1e-12, 1e-1),
        _rope(config, head_dim),
        head_dim**-0.5,
        context_length=context_length(config, "max_position_embeddings"),
        streams=config.integer("hc_count", 2, 64),
        hc_rank=config.integer("hc_lowrank", 1, LARGEST_DIM),
        sparse=sparse,
        value_heads=config.integer("linear_num_value_heads", 1, LARGEST_HEADS),
        key_heads=_divisor(config, "linear_num_key_heads", config.values["linear_num_value_heads"]),
        key_dim=config.integer("linear_key_head_dim", 1, LARGEST_HEAD_DIM),
        value_dim=config.integer("linear_value_head_dim", 1, LARGEST_HEAD_DIM),
        conv_taps=config.integer("linear_conv_kernel_dim", 2, 64),
        output_gate=_output_gate(config),
        index_heads=config.integer("indexer_n_heads", 1, LARGEST_HEADS),
        index_dim=config.integer("indexer_head_dim", 2, LARGEST_HEAD_DIM),
        index_budget=_multiple(config, "indexer_budget", ratio),
        index_ratio=ratio,
        experts=experts,
        experts_per_token=config.integer("num_experts_per_tok", 1, experts),
        shared_intermediate=config.integer("shared_expert_intermediate_size", 1, LARGEST_DIM),
        ngrams=recipes,
        ngram_rows=rows,
        ple_dim=ple_dim,
        ple_taps=ple_taps,
        ngram_origin=origin,
    )
    if geometry.rope.dim > geometry.index_dim:
        config.refuse("indexer_head_dim", f"at least the rotary width {geometry.rope.dim}")
    warnings = finish_config(config)
    return geometry, warnings


def _check_fixed(config: Fields) -> None:
    """Keys with one supported value, and those that change nothing here."""
    config.must_be("hidden_act", "silu")
    config.must_be("attention_bias", False)
    config.must_be("tie_word_embeddings", False)
    config.must_be("norm_topk_prob", True)
    config.must_be("indexer_kv_heads", 1)
    config.ignore("router_aux_loss_coef", "output_router_logits", "split_ngram_parts", "mtp_num_hidden_layers")
    config.must_be("attn_output_gate", True)
    config.must_be("mlp_only_layers", [])
    config.ignore("num_conv_states", "number_of_conv_states")


def _output_gate(config: Fields) -> str:
    """Required: where it is left out, engines disagree about what it is."""
    gate: str = config.text("output_gate_type")
    return gate if gate in OUTPUT_GATES else str(config.refuse("output_gate_type", " or ".join(map(repr, OUTPUT_GATES))))


def _divisor(config: Fields, key: str, of: int) -> int:
    value: int = config.integer(key, 1, LARGEST_HEADS)
    return value if of % value == 0 else int(config.refuse(key, f"a divisor of {of}"))


def _multiple(config: Fields, key: str, of: int) -> int:
    value: int = config.integer(key, 1, LARGEST_DIM)
    return value if value % of == 0 else int(config.refuse(key, f"a multiple of indexer_compress_ratio = {of}"))


def _kinds(config: Fields, layers: int) -> tuple[bool, ...]:
    """Per layer, whether it is sparse attention: ``layer_types``, else every ``full_attention_interval``-th one."""
    interval = config.integer("full_attention_interval", 1, LARGEST_LAYERS, default=4)
    if not config.has("layer_types"):
        return tuple((n + 1) % interval == 0 for n in range(layers))
    return tuple(k in SPARSE_NAMES for k in config.words("layer_types", ("linear_attention", *SPARSE_NAMES), layers))


def _rope(config: Fields, head_dim: int) -> Rope:
    """The first part of a head rotates; for text the three position components of M-RoPE are equal, so its sections do not matter."""
    table = config.child("rope_parameters")
    table.must_be("rope_type", "default")
    table.must_be("type", "default", "mrope")
    table.ignore("mrope_section", "mrope_interleaved")
    outer = config.number("partial_rotary_factor", 1e-3, 1.0, default=1.0)
    width = int(head_dim * table.number("partial_rotary_factor", 1e-3, 1.0, default=outer))
    theta = table.number("rope_theta", *THETA, default=config.number("rope_theta", *THETA, default=None))
    if theta is None:
        table.refuse("rope_theta", "a number; the family has no default")
    if width < 2 or width % 2:
        table.refuse("partial_rotary_factor", f"a share of the head width {head_dim} that makes an even number")
    table.finish()
    return Rope(theta, width)


def _ngrams(
    outer: Fields, config: Fields, vocab: int, hidden: int, layers: int, sparse: tuple[bool, ...]
) -> tuple[tuple[ngrams.NGrams | None, ...], tuple[int, ...], int, int, ngrams.Origin | None]:
    """(hash per layer or None, table rows per layer, embedding width, convolution taps, origin) from one-based ``ple_layer_ids``."""
    width = config.integer("ple_embed_dim", 1, LARGEST_DIM, default=hidden)
    taps = config.integer("ple_conv_kernel_size", 2, 64, default=4)
    size, per_size = config.integer("ngram_size", 2, 16, default=3), config.integer("heads_per_ngram", 1, 256, default=8)
    base = config.integer("ngram_vocab_size_base", 2, 1 << 31, default=20_000_000)
    divisor = config.integer("make_ngram_vocab_size_divisible_by", 1, 1 << 20, default=128)
    seed = config.integer("seed", 0, (1 << 31) - 1, default=1234)
    config.used.add("ple_layer_ids")
    if not config.values.get("ple_layer_ids"):
        return (None,) * layers, (0,) * layers, width, taps, None
    ids = sorted(config.integers("ple_layer_ids", 1, layers, layers))
    end = _end(config if config.has("eos_token_id") else outer, vocab)
    if width % ((size - 1) * per_size):
        config.refuse("ple_embed_dim", f"a multiple of the {(size - 1) * per_size} n-gram heads")
    if any(sparse[i - 1] for i in ids):
        config.refuse("ple_layer_ids", "layers of linear attention only")
    made = {i - 1: ngrams.make(vocab, size, per_size, base, seed, module, end) for module, i in enumerate(ids)}
    rows = tuple(ngrams.table_rows(made[n], divisor) if n in made else 0 for n in range(layers))
    return tuple(made.get(n) for n in range(layers)), rows, width, taps, ngrams.Origin(base, seed, divisor)


def _end(config: Fields, vocab: int) -> int:
    """The end mark of the hash: ``eos_token_id``, of a list the first."""
    value = config.values.get("eos_token_id")
    first = value[0] if isinstance(value, list) and value else value
    if isinstance(first, bool) or not isinstance(first, int) or not 0 <= first < vocab:
        config.refuse("eos_token_id", f"a token id below {vocab}, which the n-gram hash needs")
    assert isinstance(first, int)
    return first
