"""The Laguna model of Transformers 5.24, ``laguna``, on the CPU in float64."""

from __future__ import annotations

from typing import Any

import torch
from transformers import modeling_rope_utils
from transformers.models.laguna import configuration_laguna as configuration
from transformers.models.laguna import modeling_laguna as modeling

from tests.peers import laguna_cases as laguna
from tests.peers.widening import shipped, widened


def config(variant: laguna.Variant) -> Any:
    """The case's configuration; eager attention and eager experts."""
    full = {
        "rope_type": "yarn", "rope_theta": laguna.THETA, "factor": laguna.FACTOR, "beta_fast": laguna.FAST, "beta_slow": laguna.SLOW,
        "original_max_position_embeddings": laguna.ORIGINAL, "attention_factor": laguna.ATTENTION, "partial_rotary_factor": laguna.PARTIAL,
    }  # fmt: skip
    near = {"rope_type": "default", "rope_theta": laguna.NEAR_THETA, "partial_rotary_factor": 1.0}
    return configuration.LagunaConfig(
        vocab_size=laguna.VOCAB, hidden_size=laguna.HIDDEN, intermediate_size=laguna.INTER, num_hidden_layers=laguna.LAYERS,
        num_attention_heads=laguna.HEADS[0], num_attention_heads_per_layer=list(laguna.HEADS), num_key_value_heads=laguna.KV,
        head_dim=laguna.DIM, rms_norm_eps=laguna.EPS, sliding_window=laguna.WINDOW, max_position_embeddings=4096,
        layer_types=["sliding_attention" if s else "full_attention" for s in laguna.SLIDING],
        mlp_layer_types=["sparse" if s else "dense" for s in laguna.SPARSE],
        rope_parameters={"full_attention": full, "sliding_attention": near}, gating=variant.gating,
        num_experts=laguna.EXPERTS, num_experts_per_tok=laguna.PER_TOKEN, moe_intermediate_size=laguna.MOE,
        shared_expert_intermediate_size=laguna.SHARED, moe_routed_scaling_factor=laguna.SCALE,
        moe_router_logit_softcapping=variant.cap, attn_implementation="eager", experts_implementation="eager",
    )  # fmt: skip


def build(variant: laguna.Variant) -> Any:
    """``LagunaForCausalLM`` with the case's weights, every one of its parameters set."""
    made = modeling.LagunaForCausalLM(config(variant)).double().eval()
    published = {name: torch.from_numpy(values) for name, values in laguna.tensors(variant).values()}
    state = {}
    for name, values in published.items():
        head, dot, tail = name.partition(".mlp.experts.")
        if not dot:
            shape = made.state_dict()[renamed := name.replace("shared_expert.", "shared_experts.")].shape
            state[renamed] = values.reshape(shape)
        elif tail == "e_score_correction_bias":
            state[f"{head}.mlp.gate.{tail}"] = values
    for n in (i for i, sparse in enumerate(laguna.SPARSE) if sparse):
        root = f"model.layers.{n}.mlp.experts"
        gate, up, down = (
            torch.stack([published[f"{root}.{e}.{p}_proj.weight"] for e in range(laguna.EXPERTS)]) for p in ("gate", "up", "down")
        )
        state |= {f"{root}.gate_up_proj": torch.cat([gate, up], 1), f"{root}.down_proj": down}
    made.load_state_dict(state, strict=True)
    return made


@torch.inference_mode()
def outputs(variant: laguna.Variant, chunks: tuple[int, ...] = (laguna.ROWS,), wide: bool = True) -> laguna.Result:
    """Logits and the output of every layer (by hooks, so before the final norm), through the model's own cache in ``chunks``."""
    with widened(modeling, modeling_rope_utils) if wide else shipped():
        model, tokens, found = build(variant), laguna.ids(), list[list[torch.Tensor]]()
        for layer in model.model.layers:
            layer.register_forward_hook(lambda module, args, out: found[-1].append(out[0] if out.ndim == 3 else out))
        cache, start, logits = None, 0, []
        for size in chunks:
            found.append([])
            out = model(torch.tensor([tokens[start : start + size]]), cache=cache, use_cache=True)
            cache, start = out.cache, start + size
            logits.append(out.logits[0])
        taps = [torch.cat([chunk[i] for chunk in found]).numpy().copy() for i in range(laguna.LAYERS)]
        return laguna.Result(torch.cat(logits).numpy().copy(), taps)
