"""`qwen3` drafters with DFlash 2 and DSpark parts: their random tensors by Hugging Face name, and what the oracle makes of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from oracle.artifacts.heads import HF_HEADS, HF_LAYER, Heads, head_roles
from oracle.drafters.weights import MarkovWeights, SelectorWeights
from oracle.models import Drafter
from oracle.tensor import Array
from oracle.weights import Weight
from tests.peers import random_models as rm
from tests.peers.dflash_cases import CASES, SIZES, Case

KERNEL, GROUP, RANK, TOP = 3, 4, 7, 5
DFLASH2_CASES = (CASES[0], CASES[4], replace(CASES[7], name="scales, cap and sliding", layers="sfs", window=6))
MARKOV_KINDS = ("vanilla", "gated", "rnn")


@dataclass(frozen=True, eq=False)
class Headed:
    """A case with the tensors of its heads, float64 in the shapes of a folder, and the oracle's drafter."""

    case: Case
    tensors: dict[str, Array]
    drafter: Drafter

    def drafts(self) -> list[tuple[list[int], Array, Array]]:
        """Per round: the drafts, the hidden rows and the logits."""
        table, top = (Weight.of(x, ("vocab", "in"), "f64") for x in rm.vocabulary(SIZES, self.case.seed))
        context, features, found = self.drafter.new_context(), self.case.features(), []
        for r in self.case.rounds():
            context.append(features[r.start : r.position], r.start)
            block = self.drafter.propose(context, r.ids, table, top, position=r.position)
            found.append((block.drafts.data.astype(int).tolist(), block.hidden.data, block.logits.data))
        return found


def headed(case: Case, **switches: object) -> Headed:
    """``switches``: fields of the dialect that add parts."""
    plain = case.drafter()
    g = replace(
        plain.geometry, conv_kernel=KERNEL, conv_group=GROUP, selector_rank=RANK, selector_top_k=TOP, markov_rank=RANK
    )  # fmt: skip
    roles = head_roles(g, Heads(switches={k: v for k, v in switches.items() if k != "anchor_layout"}), "hf", set())
    made = {key: _values(case.seed, role.name, role.shape) for key, role in roles.items()}
    weights = {key: Weight.of(made[key], role.axes, "f64", role.name) for key, role in roles.items()}
    layers = tuple(
        replace(layer, **{k.partition(".")[2]: w for k, w in weights.items() if k.startswith(f"{n}.")})
        for n, layer in enumerate(plain.weights.layers)
    )
    parts = {name: {k.partition(".")[2]: w for k, w in weights.items() if k.startswith(f"{name}.")} for name in ("selector", "markov")}
    more = {k: weights[k] for k in ("confidence", "confidence_bias") if k in weights}
    if parts["selector"]:
        more["selector"] = SelectorWeights(**parts["selector"])
    if parts["markov"]:
        more["markov"] = MarkovWeights(**parts["markov"])
    drafter = Drafter(g, replace(plain.dialect, **switches), replace(plain.weights, layers=layers, **more))
    stored = {role.name: made[key].reshape(role.flat) for key, role in roles.items()}
    return Headed(case, stored, drafter)


def _values(seed: int, name: str, shape: tuple[int, ...]) -> Array:
    """Large enough that every part decides something: codebooks of unit size, kernels near the taps they correct."""
    values = rm.uniform(seed, name, *shape)
    if any(name.endswith(suffix) for suffix in ("codebook.weight", "markov_w1.weight", "markov_w2.weight")):
        return values
    if name.endswith(HF_LAYER["attn_conv_base"].partition(".")[2]):
        return np.asarray(0.5 * values)
    return np.asarray(values / math.sqrt(shape[-1] if len(shape) > 1 else 4))


__all__ = ["DFLASH2_CASES", "HF_HEADS", "KERNEL", "MARKOV_KINDS", "Headed", "headed"]
