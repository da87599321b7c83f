"""A GGUF Llama in Transformers, on the CPU in float64: its blocks decoded by the ``gguf`` package, nothing of the oracle used."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from transformers.models.llama import modeling_llama

from oracle.tensor import Array
from tests.peers.widening import shipped, widened

LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}


@dataclass(frozen=True)
class Logits:
    """``logits [row, vocab]`` and ``residuals [layer + 1][row, dim]``: the embedding, then the output of every layer but the last."""

    logits: Array
    residuals: list[Array]


def halves(rows: Array, heads: int) -> Array:
    """Rows of q or k [out, in] from neighbouring rotary pairs, as GGUF stores them, to halves, as Transformers rotates them."""
    return rows.reshape(heads, -1, 2, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def _name(gguf_name: str) -> str:
    if gguf_name in TOP:
        return TOP[gguf_name]
    _, layer, role, kind = gguf_name.split(".")
    return f"model.layers.{layer}.{LAYER[role]}.{kind}"


def build(path: Path) -> Any:
    """``LlamaForCausalLM`` with every tensor of the file in float64, eager attention."""
    reader = GGUFReader(path)

    def key(name: str) -> Any:
        return reader.fields[f"llama.{name}"].contents()

    # A GGUF keeps numbers in float32; a configuration of Transformers holds the decimal that was meant: 1e-05, not 9.99999974e-06.
    eps = float(str(np.float32(key("attention.layer_norm_rms_epsilon"))))
    heads = {"attn_q": int(key("attention.head_count")), "attn_k": int(key("attention.head_count_kv"))}
    state = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
        role = tensor.name.split(".")[-2]
        state[_name(tensor.name)] = torch.from_numpy(halves(values, heads[role]) if role in heads else values)
    tied = "lm_head.weight" not in state
    if tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    config = modeling_llama.LlamaConfig(
        vocab_size=len(state["lm_head.weight"]), hidden_size=key("embedding_length"), intermediate_size=key("feed_forward_length"),
        num_hidden_layers=key("block_count"), num_attention_heads=heads["attn_q"], num_key_value_heads=heads["attn_k"],
        rms_norm_eps=eps, rope_parameters={"rope_type": "default", "rope_theta": key("rope.freq_base")},
        tie_word_embeddings=tied, max_position_embeddings=key("context_length"), attn_implementation="eager",
    )  # fmt: skip
    made = modeling_llama.LlamaForCausalLM(config).double().eval()
    made.load_state_dict(state, strict=True, assign=True)
    return made


@torch.inference_mode()
def outputs(path: Path, ids: list[int], wide: bool = True) -> Logits:
    """One causal forward over ``ids``, without a cache."""
    with widened(modeling_llama) if wide else shipped():
        out = build(path)(torch.tensor([ids]), output_hidden_states=True, use_cache=False)
    return Logits(out.logits[0].numpy().copy(), [h[0].numpy().copy() for h in out.hidden_states[:-1]])
