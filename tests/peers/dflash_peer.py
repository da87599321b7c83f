"""The official drafter: package ``dflash`` 0.1.0, ``dflash/model.py``, on the CPU in float64. Its own round rules are used:
cache, crop, raw embeddings, output head, multiplier and cap."""

from __future__ import annotations

from typing import Any

import torch
from dflash import model as official
from transformers.models.qwen3 import modeling_qwen3

from oracle.tensor import Array
from tests.peers import random_models as rm
from tests.peers.dflash_cases import EPS, SIZES, THETA, Case
from tests.peers.widening import shipped, widened


class _Target(torch.nn.Module):
    """The two parts of a target that a drafter borrows."""

    def __init__(self, embedding: Array, head: Array) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(*embedding.shape, _weight=torch.from_numpy(embedding))
        self.lm_head = torch.nn.Linear(head.shape[1], head.shape[0], bias=False, dtype=torch.float64)
        self.lm_head.load_state_dict({"weight": torch.from_numpy(head)})

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.embedding


def config(case: Case) -> Any:
    """The configuration as such a checkpoint would ship it; a switch at its default is left out."""
    z = SIZES
    draft = {"target_layer_ids": list(range(z.taps)), "mask_token_id": z.mask_id, "block_size": z.block}
    draft |= {"input_embedding_scale": case.embed_scale} if case.embed_scale != 1 else {}
    draft |= {"output_multiplier": case.multiplier} if case.multiplier != 1 else {}
    draft |= {"final_logit_softcapping": case.cap} if case.cap is not None else {}
    extra = {} if case.is_causal is None else {"is_causal": case.is_causal}
    return modeling_qwen3.Qwen3Config(
        vocab_size=z.vocab, hidden_size=z.hidden, intermediate_size=z.intermediate, num_hidden_layers=z.layers,
        num_attention_heads=z.heads, num_key_value_heads=z.kv_heads, head_dim=z.head_dim, rms_norm_eps=EPS,
        rope_parameters={"rope_type": "default", "rope_theta": THETA}, attention_bias=case.bias,
        use_sliding_window=case.window is not None, sliding_window=case.window,
        layer_types=["sliding_attention" if letter == "s" else "full_attention" for letter in case.layers],
        num_target_layers=8, dflash_config=draft, **extra,
    )  # fmt: skip


def build(case: Case) -> Any:
    """The official model with the case's weights, every one of its parameters set."""
    made = official.DFlashDraftModel(config(case)).double().eval()
    made.load_state_dict({name: torch.from_numpy(value) for name, value in case.tensors().items()}, strict=True)
    return made


@torch.inference_mode()
def outputs(case: Case, wide: bool = True) -> rm.Outputs:
    """(hidden [row, dim], logits [row, vocab]) of every round, by the steps of ``dflash_generate`` with forced accept counts."""
    with widened(modeling_qwen3) if wide else shipped():
        drafter, target = build(case), _Target(*rm.vocabulary(SIZES, case.seed))
        features, cache, results = torch.from_numpy(case.features())[None], official._make_cache(drafter.config), []
        scale = float(official._draft_value(drafter.config, "input_embedding_scale", 1.0))
        for r in case.rounds():
            hidden = drafter(
                target_hidden=features[:, r.start : r.position],
                noise_embedding=official._raw_input_embeddings(target, torch.from_numpy(r.ids)[None], scale),
                position_ids=torch.arange(r.start, r.position + len(r.ids))[None],
                past_key_values=cache,
                use_cache=True,
            )
            official._crop_to(cache, r.position)
            logits = drafter.compute_logits(hidden, official._output_head(target))
            results.append((hidden[0].numpy().copy(), logits[0].numpy().copy()))
    return results
