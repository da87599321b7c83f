"""The Muse assistant of Transformers 5.24, ``muse_glimmer_assistant``, on the CPU in float64."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import DFlashCache
from transformers.models.muse_glimmer_assistant import configuration_muse_glimmer_assistant as configuration
from transformers.models.muse_glimmer_assistant import modeling_muse_glimmer_assistant as modeling

from tests.peers import muse_cases as muse
from tests.peers import random_models as rm
from tests.peers.widening import shipped, widened

ENCODER = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}


def build(attention: str) -> Any:
    """The assistant with the case's weights, every one of its parameters set; ``attention``: ``eager`` or ``sdpa``."""
    z = muse.SIZES
    config = configuration.MuseGlimmerAssistantConfig(
        hidden_size=z.hidden, intermediate_size=z.intermediate, num_hidden_layers=z.layers, num_attention_heads=z.heads,
        num_key_value_heads=z.kv_heads, head_dim=z.head_dim, rms_norm_eps=muse.EPS, sliding_window=muse.WINDOW,
        rope_parameters={"rope_type": "default", "rope_theta": muse.THETA}, block_size=z.block, mask_token_id=z.mask_id,
        target_layer_ids=list(range(z.taps)), bos_token_id=0, eos_token_id=1, pad_token_id=2, attn_implementation=attention,
    )  # fmt: skip
    made = modeling.MuseGlimmerAssistantModel(config).double().eval()
    made.load_state_dict({ENCODER.get(name, name): torch.from_numpy(value) for name, value in muse.tensors().items()}, strict=True)
    return made


@torch.inference_mode()
def outputs(attention: str, wide: bool = True) -> rm.Outputs:
    """(hidden [row, dim], logits [row, vocab]) of every round: announce the new rows, crop the old block, forward.

    `specs/muse-glimmer.md` 3.6. The head is the target's, without multiplier or cap.
    """
    with widened(modeling) if wide else shipped():
        assistant, features, results = build(attention), torch.from_numpy(muse.features())[None], []
        embedding, head = rm.vocabulary(muse.SIZES, muse.SEED)
        cache = DFlashCache(config=assistant.config)
        cache.activate_past_recording()
        for number, r in enumerate(muse.rounds()):
            cache.set_previous_accepted_tokens(r.position - r.start)
            if number:
                cache.crop(-muse.SIZES.block)
            out = assistant(
                noise_embeds=torch.from_numpy(embedding[r.ids])[None],
                context_hidden_states=features[:, r.start : r.position],
                position_ids=torch.arange(r.start, r.position + len(r.ids))[None],
                cache=cache,
                use_cache=True,
            )
            hidden = out.last_hidden_state[0].numpy().copy()
            results.append((hidden, hidden @ head.T))
    return results
