"""The Muse Glimmer model of Transformers 5.24, ``muse_glimmer``, on the CPU in float64: text only, its vision tower tiny and unused."""

from __future__ import annotations

from typing import Any

import torch
from transformers.models.muse_glimmer import configuration_muse_glimmer as configuration
from transformers.models.muse_glimmer import modeling_muse_glimmer as modeling

from tests.peers import muse_target_cases as muse
from tests.peers.widening import shipped, widened


def build(layers: int, attention: str, qk_scale: float = muse.QK_SCALE) -> Any:
    """The whole model with the case's weights in its language model and head; ``attention``: ``eager`` or ``sdpa``."""
    text = configuration.MuseGlimmerTextConfig(
        vocab_size=muse.VOCAB, hidden_size=muse.HIDDEN, intermediate_size=muse.INTER, num_hidden_layers=layers,
        num_attention_heads=muse.HEADS, num_key_value_heads=muse.KV, head_dim=muse.DIM, sliding_window=muse.WINDOW,
        rope_parameters={"rope_type": "default", "rope_theta": muse.THETA}, qk_scale_factor=qk_scale,
        bos_token_id=0, eos_token_id=1, max_position_embeddings=256,
    )  # fmt: skip
    assert text.layer_types == ["sliding_attention" if s else "full_attention" for s in muse.sliding(layers)]
    vision = configuration.MuseGlimmerVisionConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, pos_emb_height=4, pos_emb_width=4
    )
    config = configuration.MuseGlimmerConfig(
        text_config=text, vision_config=vision, image_token_id=muse.IMAGE, video_token_id=muse.VIDEO,
        out_hidden_size=128, projector_hidden_size=16, attn_implementation=attention,
    )  # fmt: skip
    made = modeling.MuseGlimmerForConditionalGeneration(config).double().eval()
    left = made.load_state_dict({name: torch.from_numpy(value) for name, value in muse.tensors(layers).items()}, strict=False)
    assert not left.unexpected_keys and all(name.startswith("model.vision_") for name in left.missing_keys)
    return made


@torch.inference_mode()
def outputs(
    layers: int, attention: str, chunks: tuple[int, ...] = (muse.ROWS,), wide: bool = True, qk_scale: float = muse.QK_SCALE
) -> muse.Result:
    """Logits and ``hidden_states[id + 1]`` of the case's tokens, fed through the model's own cache in ``chunks``."""
    with widened(modeling) if wide else shipped():
        model, tokens = build(layers, attention, qk_scale), muse.ids()
        cache, start, logits, taps = None, 0, [], []
        for size in chunks:
            ids = torch.tensor([tokens[start : start + size]])
            out = model(ids, cache=cache, use_cache=True, output_hidden_states=True)
            cache = out.cache
            logits.append(out.logits[0])
            taps.append([out.hidden_states[i + 1][0] for i in muse.taps(layers)])
            start += size
        joined = [torch.cat([rows[i] for rows in taps]).numpy().copy() for i in range(layers - 1)]
        return muse.Result(torch.cat(logits).numpy().copy(), joined)
