"""The official DFlash 2 drafter (package ``dflash`` 0.1.0), and the DSpark heads of ``speculators`` 0.9.0, on the CPU in float64.

Of ``speculators`` the one file with the heads is loaded, without its package, whose import needs a server's dependencies.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from dflash import model as official
from transformers.models.qwen3 import modeling_qwen3

from oracle.tensor import Array
from tests.peers import dflash_peer
from tests.peers import random_models as rm
from tests.peers.dflash_cases import SIZES
from tests.peers.heads_cases import GROUP, KERNEL, RANK, TOP, Headed
from tests.peers.widening import widened

HEADS_FILE = "models/dspark/model_definitions.py"


def dflash2(h: Headed) -> Any:
    """The official model with the case's weights, every one of its parameters set."""
    config = dflash_peer.config(h.case)
    config.dflash_config |= {"conv_kernel_size": KERNEL, "conv_group_size": GROUP, "selector_rank": RANK, "selector_top_k": TOP}
    config.architectures = ["DFlash2DraftModel"]
    made = official.DFlash2DraftModel(config).double().eval()
    tensors = h.case.tensors() | h.tensors
    made.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in tensors.items()}, strict=True)
    return made


@torch.inference_mode()
def dflash2_rounds(h: Headed) -> list[tuple[list[int], Array, Array]]:
    """(drafts, hidden, logits) of every round, greedy, by the steps of ``dflash_generate``."""
    with widened(modeling_qwen3):
        drafter, target = dflash2(h), dflash_peer._Target(*rm.vocabulary(SIZES, h.case.seed))
        features, cache, results = torch.from_numpy(h.case.features())[None], official._make_cache(drafter.config), []
        scale = float(official._draft_value(drafter.config, "input_embedding_scale", 1.0))
        head = official._output_head(target)
        for r in h.case.rounds():
            ids = torch.from_numpy(r.ids)[None]
            hidden = drafter(
                target_hidden=features[:, r.start : r.position],
                noise_embedding=official._raw_input_embeddings(target, ids, scale),
                position_ids=torch.arange(r.start, r.position + len(r.ids))[None],
                past_key_values=cache,
                use_cache=True,
            )
            official._crop_to(cache, r.position)
            path, _, _ = drafter.propose(hidden[:, 1:], ids[:, 0], head, 0.0)
            results.append((path[0].tolist(), hidden[0].numpy().copy(), drafter.compute_logits(hidden, head)[0].numpy().copy()))
        return results


def dspark_heads() -> ModuleType | None:
    """The module of the DSpark heads, or None where ``speculators`` is not installed."""
    found = importlib.util.find_spec("speculators")
    if found is None or not found.submodule_search_locations:
        return None
    spec = importlib.util.spec_from_file_location("dspark_heads", Path(found.submodule_search_locations[0]) / HEADS_FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@torch.inference_mode()
def dspark_walk(h: Headed, anchor: int, hidden: Array, logits: Array) -> tuple[list[int], Array, Array]:
    """(drafts, biased logits [row, vocab], confidences [row]) of the drafted rows of one block, from the oracle's block."""
    heads = dspark_heads()
    assert heads is not None
    d = h.drafter.dialect
    markov = heads.MarkovHead(
        verifier_vocab_size=SIZES.vocab, draft_vocab_size=SIZES.vocab, markov_rank=RANK, hidden_size=SIZES.hidden, head_type=d.markov
    ).double()
    _load(markov, "markov_head.", h)
    sure = heads.ConfidenceHead(SIZES.hidden + (RANK if d.confidence == "markov" else 0)).double()
    _load(sure, "confidence_head.", h)
    first = 1 if d.anchor_layout == "fill_in" else 0
    rows, chain, biased, sures = torch.from_numpy(hidden[first:])[None], [anchor], [], []
    for k in range(len(hidden) - first):
        previous = torch.tensor([chain])
        bias = markov.block_bias(prev_token_ids=previous, hidden_states=rows[:, : k + 1])[0, k]
        biased.append(torch.from_numpy(logits[first + k]) + bias)
        seen = [rows[0, k], markov.prev_embeddings(previous)[0, k]] if d.confidence == "markov" else [rows[0, k]]
        sures.append(torch.sigmoid(sure(torch.cat(seen)[None]))[0])
        chain.append(int(biased[-1].argmax()))
    return chain[1:], torch.stack(biased).numpy(), torch.stack(sures).numpy()


def _load(module: Any, prefix: str, h: Headed) -> None:
    own = {k.removeprefix(prefix): torch.from_numpy(v.copy()) for k, v in h.tensors.items() if k.startswith(prefix)}
    module.load_state_dict(own, strict=True)
