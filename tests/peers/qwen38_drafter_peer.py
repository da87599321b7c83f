"""The same rounds in the official package ``dflash`` 0.1.0, float64: its forward serves both layouts, its cache is cropped every round."""

from __future__ import annotations

from typing import Any

import torch
from dflash import model as official
from transformers.models.qwen3 import modeling_qwen3

from tests.peers import random_models as rm
from tests.peers.qwen38_drafter_cases import ACCEPTED, EPS, PROMPT, SEED, SIZES, THETA, features, rounds, widths
from tests.peers.widening import widened


def build() -> Any:
    z = SIZES
    config = modeling_qwen3.Qwen3Config(
        vocab_size=z.vocab, hidden_size=z.hidden, intermediate_size=z.intermediate, num_hidden_layers=z.layers,
        num_attention_heads=z.heads, num_key_value_heads=z.kv_heads, head_dim=z.head_dim, rms_norm_eps=EPS,
        rope_parameters={"rope_type": "default", "rope_theta": THETA}, layer_types=["full_attention"] * z.layers, num_target_layers=8,
        dflash_config={"target_layer_ids": list(range(z.taps)), "mask_token_id": z.mask_id, "block_size": z.block},
    )  # fmt: skip
    made = official.DFlashDraftModel(config).double().eval()
    made.load_state_dict({n: torch.from_numpy(v) for n, v in rm.drafter_tensors(z, SEED).items()}, strict=True)
    assert len(made.state_dict()) == 58
    return made


@torch.inference_mode()
def outputs() -> rm.Outputs:
    """(hidden [row, dim], logits [row, vocab]) of every round; positions are counted here from the accept counts alone."""
    embedding, head = (torch.from_numpy(x) for x in rm.vocabulary(SIZES, SEED))
    rows, results = torch.from_numpy(features())[None], []
    with widened(modeling_qwen3):
        made = build()
        cache, start, position = official._make_cache(made.config), 0, PROMPT
        for r, width, accepted in zip(rounds(), widths(), (*ACCEPTED, 0), strict=True):
            hidden = made(
                target_hidden=rows[:, start:position],
                noise_embedding=embedding[torch.from_numpy(r.ids)][None],
                position_ids=torch.arange(start, position + width)[None],
                past_key_values=cache,
                use_cache=True,
            )
            official._crop_to(cache, position)
            results.append((hidden[0].numpy().copy(), (hidden[0] @ head.T).numpy().copy()))
            start, position = position, position + min(accepted, width) + 1
    return results
