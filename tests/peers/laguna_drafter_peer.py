"""A second implementation of the Laguna drafter in torch, float64, written from `specs/laguna.md` 3.3 and sharing nothing with the oracle.

It keeps what the engines keep: fused q, k, v; a cache of the newest W - 1 context rows with an offset, appended once per round;
taps of a long prompt cut to W - 1 rows before anything is computed.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from tests.peers import laguna_drafter_cases as laguna
from tests.peers import random_models as rm

Z = laguna.SIZES


class Attention:
    """One layer's attention and its context cache: ``k`` (roped) and ``v`` [kv head, cell, dim], ``offset`` rows ever inserted."""

    def __init__(self, tensors: dict[str, Tensor], layer: int) -> None:
        self.w = {name.removeprefix(f"layers.{layer}."): t for name, t in tensors.items() if name.startswith(f"layers.{layer}.")}
        self.k = self.v = torch.empty(Z.kv_heads, 0, Z.head_dim, dtype=torch.float64)
        self.offset = 0

    def project(self, x: Tensor, rows: slice) -> Tensor:
        return (x @ self.w["self_attn.qkv_proj.weight"][rows].T).unflatten(-1, (-1, Z.head_dim)).transpose(0, 1)

    def insert(self, ctx: Tensor) -> None:
        """Context rows [row, dim] after the layer's input norm: their keys and values only."""
        n = functional.rms_norm(ctx, ctx.shape[-1:], self.w["input_layernorm.weight"], laguna.EPS)
        k, v = self.project(n, slice(Z.heads * Z.head_dim, None)).split(Z.kv_heads)
        k = turned(self.head_norm(k, "k"), torch.arange(self.offset, self.offset + len(ctx)))
        keep = laguna.WINDOW - 1
        self.k, self.v = torch.cat([self.k, k], 1)[:, -keep:], torch.cat([self.v, v], 1)[:, -keep:]
        self.offset += len(ctx)

    def head_norm(self, x: Tensor, which: str) -> Tensor:
        return functional.rms_norm(x, (Z.head_dim,), self.w[f"self_attn.{which}_norm.weight"], laguna.EPS)

    def __call__(self, x: Tensor) -> Tensor:
        n = functional.rms_norm(x, x.shape[-1:], self.w["input_layernorm.weight"], laguna.EPS)
        q, k, v = self.project(n, slice(None)).split([Z.heads, Z.kv_heads, Z.kv_heads])
        pos = torch.arange(self.offset, self.offset + len(x))
        q, k = turned(self.head_norm(q, "q"), pos), turned(self.head_norm(k, "k"), pos)
        places = torch.cat([torch.arange(self.offset - self.k.shape[1], self.offset), pos])
        seen = (places <= pos[:, None]) & (places >= pos[:, None] - laguna.WINDOW + 1)
        keys, values = (torch.cat(pair, 1).repeat_interleave(Z.heads // Z.kv_heads, 0) for pair in ((self.k, k), (self.v, v)))
        scores = (q @ keys.transpose(1, 2) / Z.head_dim**0.5).masked_fill(~seen, float("-inf"))
        out = (scores.softmax(-1) @ values).transpose(0, 1)
        gate = functional.softplus(n @ self.w["self_attn.g_proj.weight"].T)
        return x + (out * gate[..., None]).flatten(1) @ self.w["self_attn.o_proj.weight"].T

    def mlp(self, x: Tensor) -> Tensor:
        n = functional.rms_norm(x, x.shape[-1:], self.w["post_attention_layernorm.weight"], laguna.EPS)
        gate, up = (n @ self.w[f"mlp.{p}_proj.weight"].T for p in ("gate", "up"))
        return x + (functional.silu(gate) * up) @ self.w["mlp.down_proj.weight"].T


def turned(x: Tensor, pos: Tensor) -> Tensor:
    """Rotate halves: x [head, row, dim]."""
    half = Z.head_dim // 2
    angle = pos[:, None] * laguna.THETA ** (-torch.arange(half, dtype=torch.float64) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


@torch.inference_mode()
def outputs() -> rm.Outputs:
    """(hidden [row, dim], logits [row, vocab]) of every round."""
    tensors = {name: torch.from_numpy(values) for name, values in laguna.tensors().items()}
    layers = [Attention(tensors, n) for n in range(Z.layers)]
    embedding, head = (torch.from_numpy(t) for t in rm.vocabulary(Z, laguna.SEED))
    features, results = torch.from_numpy(laguna.features()), []
    for r in laguna.rounds():
        taps = features[r.start : r.position]
        dropped = max(len(taps) - (laguna.WINDOW - 1), 0)
        for layer in layers:
            layer.offset += dropped
        norms = [tensors[f"aux_hidden_norms.{i}.weight"] for i in range(Z.taps)]
        slices = taps[dropped:].split(laguna.TARGET_HIDDEN, -1)
        aux = [functional.rms_norm(s, s.shape[-1:], w, laguna.EPS) for s, w in zip(slices, norms, strict=True)]
        ctx = functional.rms_norm(torch.cat(aux, -1) @ tensors["fc.weight"].T, (Z.hidden,), tensors["hidden_norm.weight"], laguna.EPS)
        x = embedding[torch.from_numpy(r.ids)]
        for layer in layers:
            layer.insert(ctx)
            x = layer.mlp(layer(x))
        hidden = functional.rms_norm(x, (Z.hidden,), tensors["norm.weight"], laguna.EPS)
        results.append((hidden.numpy().copy(), (hidden @ head.T).numpy().copy()))
    return results
