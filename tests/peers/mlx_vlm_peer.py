"""The Laguna drafter of ``mlx_vlm`` 0.7.10, run by MLX on the CPU.

Its modules are loaded without the packages around them, whose import needs a server's dependencies.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import mlx.core as mx
import numpy as np

from oracle.tensor import Array
from tests.peers import laguna_drafter_cases as laguna
from tests.peers import random_models as rm

Z = laguna.SIZES
PACKAGES = ("mlx_vlm", "mlx_vlm.models", "mlx_vlm.speculative", "mlx_vlm.speculative.drafters")
DRAFTER = "mlx_vlm.speculative.drafters.laguna_dflash"


@cache
def modules() -> tuple[ModuleType, ModuleType]:
    """(the drafter's module, its config's)."""
    found = importlib.util.find_spec("mlx_vlm")
    assert found is not None and found.origin is not None
    bare = {}
    for name in PACKAGES:
        bare[name] = ModuleType(name)
        bare[name].__path__ = [str(Path(found.origin).parent.joinpath(*name.split(".")[1:]))]
    with mock.patch.dict(sys.modules, bare):
        return importlib.import_module(f"{DRAFTER}.dflash"), importlib.import_module(f"{DRAFTER}.config")


def config(window: int) -> dict[str, Any]:
    """The checkpoint's config, with the keys that mlx_vlm insists on."""
    inner = {"block_size": Z.block, "mask_token_id": Z.mask_id, "target_layer_ids": list(range(Z.taps)), "num_target_layers": 6}
    return {
        "model_type": "laguna", "hidden_size": Z.hidden, "intermediate_size": Z.intermediate, "num_hidden_layers": Z.layers,
        "num_attention_heads": Z.heads, "num_key_value_heads": Z.kv_heads, "head_dim": Z.head_dim, "rms_norm_eps": laguna.EPS,
        "vocab_size": Z.vocab, "draft_vocab_size": Z.vocab, "max_position_embeddings": 4096, "rope_theta": laguna.THETA,
        "layer_types": ["sliding_attention"] * Z.layers, "sliding_window": window, "gating": "per-head",
        "eagle_aux_hidden_state_layer_ids": list(range(1, Z.taps + 1)), "dflash_config": inner | {"causal": True},
    }  # fmt: skip


def outputs(rounds: Sequence[rm.Round], features: Array, window: int) -> rm.Outputs:
    """(hidden [row, dim], logits [row, vocab]) of every round, through the drafter's own rotating caches.

    Arrays are float64; MLX's kernels for norms, rope and softmax compute in float32 all the same.
    """
    drafting, configs = modules()
    dtype, results = mx.float64, []
    with mx.stream(mx.cpu):
        model = drafting.LagunaDFlashDraftModel(configs.DFlashConfig.from_dict(config(window)))
        model.load_weights([(name, mx.array(values, dtype)) for name, values in laguna.tensors().items()])
        embedding, head = (mx.array(t, dtype) for t in rm.vocabulary(Z, laguna.SEED))
        model.embed_tokens, model.lm_head = (lambda ids: embedding[ids]), (lambda hidden: hidden @ head.T)
        caches, rows = model.make_cache(), mx.array(features, dtype)
        for r in rounds:
            hidden = model._hidden(mx.array(r.ids[None].astype(np.int32)), rows[None, r.start : r.position], caches)
            results.append((np.array(hidden[0], np.float64), np.array(model._logits(hidden)[0], np.float64)))
    return results
