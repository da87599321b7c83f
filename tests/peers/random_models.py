"""Tiny random drafters and round schedules that any machine rebuilds bit for bit from a seed; no torch here.

Every tensor has a stream of its own, PCG64 seeded with (seed, CRC-32 of the tensor's name). The raw 64-bit output of
PCG64 is stable across NumPy versions; 53 bits of it make a uniform number with mean 0 and variance 1.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oracle.artifacts.roles import HF_LAYER
from oracle.drafters.dialect import Geometry
from oracle.drafters.weights import DrafterWeights, LayerWeights
from oracle.models import Drafter
from oracle.tensor import Array
from oracle.weights import Weight

Outputs = list[tuple[Array, Array]]


def uniform(seed: int, name: str, *shape: int) -> Array:
    """Uniform numbers of mean 0 and variance 1, float64 [*shape], from the stream of ``name``."""
    raw = np.random.PCG64([seed, zlib.crc32(name.encode())]).random_raw(math.prod(shape))
    unit = (np.asarray(raw, np.uint64) >> np.uint64(11)) * 2.0**-53
    return np.asarray((2 * unit - 1) * math.sqrt(3), np.float64).reshape(shape)


@dataclass(frozen=True)
class Sizes:
    """Sizes of a tiny drafter; ``taps`` is the number of tapped target layers, each as wide as the drafter."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    taps: int
    vocab: int
    block: int

    @property
    def mask_id(self) -> int:
        return self.vocab - 1


def geometry(z: Sizes, sliding: tuple[bool, ...], window: int | None) -> Geometry:
    """The oracle's geometry of a drafter of these sizes; the first ``taps`` layers of the target are tapped."""
    return Geometry(
        z.hidden, z.intermediate, z.layers, z.heads, z.kv_heads, z.head_dim, z.vocab, z.block, z.mask_id, tuple(range(z.taps)),
        target_hidden=z.hidden, sliding=sliding, window=window, window_source="file" if window else "none",
    )  # fmt: skip


def drafter_tensors(z: Sizes, seed: int, bias: bool = False) -> dict[str, Array]:
    """Every tensor of a drafter by its Hugging Face name, matrices [out, in] and vectors [out], float64."""
    q, kv, h, i = z.heads * z.head_dim, z.kv_heads * z.head_dim, z.hidden, z.intermediate
    matrices = {"self_attn.q_proj": (q, h), "self_attn.k_proj": (kv, h), "self_attn.v_proj": (kv, h), "self_attn.o_proj": (h, q)}
    matrices |= {"mlp.gate_proj": (i, h), "mlp.up_proj": (i, h), "mlp.down_proj": (h, i)}
    norms = {"input_layernorm": h, "post_attention_layernorm": h, "self_attn.q_norm": z.head_dim, "self_attn.k_norm": z.head_dim}
    tensors = {"fc.weight": uniform(seed, "fc", h, z.taps * h) / math.sqrt(z.taps * h)}
    for layer in range(z.layers):
        for name, (rows, columns) in matrices.items():
            path = f"layers.{layer}.{name}"
            tensors[f"{path}.weight"] = uniform(seed, path, rows, columns) / math.sqrt(columns)
            if bias and name.startswith("self_attn"):
                tensors[f"{path}.bias"] = 0.3 * uniform(seed, f"{path}.bias", rows)
        tensors |= {f"layers.{layer}.{n}.weight": 1 + 0.2 * uniform(seed, f"layers.{layer}.{n}", size) for n, size in norms.items()}
    return tensors | {f"{n}.weight": 1 + 0.2 * uniform(seed, n, h) for n in ("hidden_norm", "norm")}


def oracle_weights(tensors: dict[str, Array], z: Sizes) -> DrafterWeights:
    """The tensors of `drafter_tensors` as the oracle's weights, kept in float64."""
    heads = {"q": z.heads, "k": z.kv_heads, "v": z.kv_heads}

    def one(role: str, name: str) -> Weight:
        values = tensors[name]
        if role in heads:
            return Weight.of(values.reshape(heads[role], z.head_dim, -1), ("head", "dim", "in"), "f64", name)
        if role[:2] in ("q_", "k_", "v_") and role.endswith("bias"):
            return Weight.of(values.reshape(heads[role[0]], z.head_dim), ("head", "dim"), "f64", name)
        return Weight.of(values, ("dim", "in") if values.ndim == 2 else ("dim",), "f64", name)

    layers = []
    for layer in range(z.layers):
        names = {role: f"layers.{layer}.{suffix}" for role, suffix in HF_LAYER.items()}
        layers.append(LayerWeights(**{role: one(role, name) for role, name in names.items() if name in tensors}))
    top = {role: one(role, f"{role}.weight") for role in ("fc", "hidden_norm", "norm")}
    return DrafterWeights(layers=tuple(layers), **top)


def vocabulary(z: Sizes, seed: int) -> tuple[Array, Array]:
    """The target's embedding and head, each [vocab, hidden]."""
    return uniform(seed, "embedding", z.vocab, z.hidden), uniform(seed, "head", z.vocab, z.hidden) / math.sqrt(z.hidden)


@dataclass(frozen=True, eq=False)
class Round:
    """Rows ``start … position - 1`` are committed, then the block ``ids`` [row] is proposed at ``position``."""

    start: int
    position: int
    ids: NDArray[np.int64]


def schedule(z: Sizes, prompt: int, commits: tuple[int, ...], seed: int, tail: tuple[int, ...] = ()) -> list[Round]:
    """One round for the prompt and one for every forced count of newly committed rows; each anchor is a random token.

    ``tail``: widths of the last blocks, narrower than the others, as at the end of a text.
    """
    sizes = (prompt, *commits)
    widths = (z.block,) * (len(sizes) - len(tail)) + tail
    anchors = np.floor((uniform(seed, "anchors", len(sizes)) / math.sqrt(12) + 0.5) * (z.vocab - 1)).astype(np.int64)
    ids = [np.array([anchor] + [z.mask_id] * (width - 1), np.int64) for anchor, width in zip(anchors, widths, strict=True)]
    return [Round(int(end - size), int(end), i) for end, size, i in zip(np.cumsum(sizes), sizes, ids, strict=True)]


def feature_rows(z: Sizes, rows: int, seed: int) -> Array:
    """Features of the committed rows, [row, taps * hidden]."""
    return uniform(seed, "features", rows, z.taps * z.hidden)


def oracle_rounds(drafter: Drafter, rounds: list[Round], features: Array, embedding: Array, head: Array, rejected: int = 0) -> Outputs:
    """(hidden [row, dim], logits [row, vocab]) of every round.

    ``rejected``: so many rows of noise are committed behind the true ones in every round and forgotten again, as an
    engine does that injects a whole verification window before it knows what is accepted.
    """
    table, top = (Weight.of(x, ("vocab", "in"), "f64") for x in (embedding, head))
    context, outputs = drafter.new_context(), []
    for number, r in enumerate(rounds):
        rows = features[r.start : r.position]
        if rejected:
            rows = np.concatenate([rows, uniform(number, "rejected", rejected, features.shape[1])])
        context.append(rows, r.start)
        context.truncate(r.position)
        block = drafter.propose(context, r.ids, table, top, position=r.position)
        outputs.append((block.hidden.data, block.logits.data))
    return outputs


def largest_difference(mine: Outputs, theirs: Outputs) -> float:
    """Largest difference over all rounds, relative to the larger of 1 and the peer's largest value. NaN stays NaN."""
    assert len(mine) == len(theirs)
    worst = [np.abs(a - b).max() / max(1.0, np.abs(b).max()) for m, t in zip(mine, theirs, strict=True) for a, b in zip(m, t, strict=True)]
    return float(np.max(worst))


Summary = dict[str, list[list[float]]]


def summary(outputs: Outputs) -> Summary:
    """What a golden file keeps: the mean of every row [round][row], and the whole last row of the last round [1][dim]."""
    return {
        "hidden_means": [h.mean(-1).tolist() for h, _ in outputs],
        "logit_means": [y.mean(-1).tolist() for _, y in outputs],
        "last_hidden": [outputs[-1][0][-1].tolist()],
        "last_logits": [outputs[-1][1][-1].tolist()],
    }


def summary_difference(mine: Summary, theirs: Summary) -> float:
    """Largest absolute difference of two summaries of the same rounds and rows."""
    assert mine.keys() == theirs.keys()
    rows = [pair for key in mine for pair in zip(mine[key], theirs[key], strict=True)]
    assert all(len(a) == len(b) for a, b in rows)
    return float(np.max([np.abs(np.subtract(a, b)).max() for a, b in rows]))
