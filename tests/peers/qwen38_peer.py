"""Qwen3.8-Flash-Next in Transformers (``qwen4_exp``), on the CPU in float64: eager attention, eager experts, its shipped code."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import torch
from transformers.models.qwen4_exp import configuration_qwen4_exp, modeling_qwen4_exp

from oracle.tensor import Array
from tests.peers.qwen38_cases import BASE, DIVISOR, END, SEED, TAPS, Case, Rows, file_name
from tests.peers.widening import shipped, widened


def config(case: Case) -> Any:
    g = case.geometry
    return configuration_qwen4_exp.Qwen4ExpTextConfig(
        vocab_size=g.vocab, hidden_size=g.hidden, num_hidden_layers=g.layers, num_attention_heads=g.heads, num_key_value_heads=g.kv_heads,
        head_dim=g.head_dim, rms_norm_eps=g.eps, max_position_embeddings=512, linear_conv_kernel_dim=g.conv_taps,
        linear_key_head_dim=g.key_dim, linear_value_head_dim=g.value_dim, linear_num_key_heads=g.key_heads,
        linear_num_value_heads=g.value_heads, moe_intermediate_size=g.intermediate, num_experts=g.experts,
        shared_expert_intermediate_size=g.shared_intermediate, num_experts_per_tok=g.experts_per_token, hc_count=g.streams,
        hc_lowrank=g.hc_rank, ple_layer_ids=[n + 1 for n in case.ple_layers], ple_embed_dim=g.ple_dim, ple_conv_kernel_size=g.ple_taps,
        ngram_size=3, heads_per_ngram=2, ngram_vocab_size_base=BASE, make_ngram_vocab_size_divisible_by=DIVISOR, seed=SEED,
        split_ngram_parts=2, indexer_n_heads=g.index_heads, indexer_kv_heads=1, indexer_head_dim=g.index_dim,
        indexer_budget=g.index_budget, indexer_compress_ratio=g.index_ratio, output_gate_type=g.output_gate, eos_token_id=END,
        pad_token_id=None, full_attention_interval=4, tie_word_embeddings=False, attn_implementation="eager",
        experts_implementation="eager",
        rope_parameters={"rope_type": "default", "rope_theta": g.rope.theta, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]},
    )  # fmt: skip


def build(case: Case) -> Any:
    """``Qwen4ExpForCausalLM`` with every parameter of the case set; buffers keep what the model computed."""
    made = modeling_qwen4_exp.Qwen4ExpForCausalLM(config(case)).double().eval()
    shapes = {name: value.shape for name, value in made.state_dict().items()}
    state = {file_name(n): torch.from_numpy(value).reshape(shapes[file_name(n)]) for n, value in case.tensors.items()}
    buffers = {n: b for n, b in made.state_dict().items() if b.dtype == torch.int64}
    made.load_state_dict(state | buffers, strict=True)
    return made


def _stable_topk(self: torch.Tensor, k: int, dim: int = -1) -> Any:
    """``topk`` with ties at the lowest index: what the specification and the engines say, and torch leaves open."""
    order = torch.sort(self, dim=dim, descending=True, stable=True)
    return torch.return_types.topk((order.values.narrow(dim, 0, k), order.indices.narrow(dim, 0, k)))


@torch.inference_mode()
def outputs(case: Case, portions: tuple[int, ...] = (), wide: bool = True) -> Rows:
    """Logits and taps of every row: one forward, or with a cache in ``portions`` of so many tokens."""
    with widened(modeling_qwen4_exp) if wide else shipped(), mock.patch.object(torch.Tensor, "topk", _stable_topk):
        made = build(case)
        hooked: dict[int, list[Array]] = {}
        readers = {layer - 1: made.model.layers[layer].attn_hyper_connection for layer in range(1, case.geometry.layers)}
        readers[case.geometry.layers - 1] = made.model.hyper_connection_mixer
        for tap in TAPS:
            readers[tap].register_forward_hook(_hook(hooked.setdefault(tap, [])))
        ids, logits, cache, at = torch.from_numpy(case.ids)[None], [], None, 0
        for count in portions or (case.rows,):
            out = made(ids[:, at : at + count], cache=cache, use_cache=bool(portions))
            cache, at = out.past_key_values, at + count
            logits.append(out.logits[0].numpy().copy())
    return Rows(np.concatenate(logits), np.concatenate([np.concatenate(hooked[t]) for t in TAPS], 1))


def _hook(kept: list[Array]) -> Any:
    def keep(module: Any, inputs: Any, output: Any) -> None:
        kept.append((output[0] if isinstance(output, tuple) else output)[0].numpy().copy())

    return keep
