"""The tiny drafter of `specs/dflash-generic.md` section 20, built from its formulas."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from oracle.drafters.dialect import Dialect, Geometry
from oracle.drafters.weights import DrafterWeights, LayerWeights, SelectorWeights
from oracle.recipes import Rope
from oracle.tensor import Array, Axes
from oracle.weights import Weight

HIDDEN, INTER, LAYERS, HEADS, KV, DIM, TAPS, VOCAB, BLOCK = 8, 12, 2, 4, 2, 4, 2, 11, 4
CONV, GROUP, RANK, TOP = 2, 4, 3, 4


class _Numbered:
    """Tensor number s in the order of the specification."""

    def __init__(self) -> None:
        self.s = -1

    def matrix(self, axes: Axes, *shape: int, times: float = 1.0) -> Weight:
        self.s += 1
        return Weight.of(times * (0.4 * np.sin(0.7 * np.arange(np.prod(shape)) + 1.3 * self.s)).reshape(shape), axes, "f64")

    def norm(self, n: int) -> Weight:
        self.s += 1
        return Weight.of(1 + 0.1 * np.cos(np.arange(n) + self.s), ("dim",), "f64")


def weights() -> DrafterWeights:
    return _plain(_Numbered())


def dflash2_weights() -> DrafterWeights:
    """The same tensors, then the convolutions of every layer and the selector, numbered on."""
    t = _Numbered()
    plain, layers = _plain(t), []
    for layer in plain.layers:
        parts = {}
        for part in ("attn_conv", "mlp_conv"):
            parts[f"{part}_base"] = t.matrix(("side", "tap", "dim"), 2, CONV, HIDDEN)
            parts[f"{part}_kernel"] = t.matrix(("side", "tap", "group", "in"), 2, CONV, HIDDEN // GROUP, HIDDEN)
        layers.append(replace(layer, **parts))
    books = [t.matrix(("vocab", "in"), VOCAB, RANK, times=5.0) for _ in range(2)]
    return replace(plain, layers=tuple(layers), selector=SelectorWeights(*books, t.matrix(("dim", "in"), RANK, HIDDEN, times=5.0)))


def _plain(t: _Numbered) -> DrafterWeights:
    heads, flat = ("head", "dim", "in"), ("dim", "in")
    fc, hidden_norm = t.matrix(flat, HIDDEN, TAPS * HIDDEN), t.norm(HIDDEN)
    layers = []
    for _ in range(LAYERS):
        parts = {"input_norm": t.norm(HIDDEN), "q": t.matrix(heads, HEADS, DIM, HIDDEN)}
        parts |= {name: t.matrix(heads, KV, DIM, HIDDEN) for name in ("k", "v")}
        parts |= {"o": t.matrix(flat, HIDDEN, HEADS * DIM), "q_norm": t.norm(DIM), "k_norm": t.norm(DIM), "post_norm": t.norm(HIDDEN)}
        parts |= {name: t.matrix(flat, INTER, HIDDEN) for name in ("gate", "up")}
        layers.append(LayerWeights(**parts, down=t.matrix(flat, HIDDEN, INTER)))
    return DrafterWeights(fc, hidden_norm, tuple(layers), t.norm(HIDDEN))


EMBEDDING = Weight.of((0.8 * np.sin(1.1 * np.arange(VOCAB * HIDDEN) + 0.2)).reshape(VOCAB, HIDDEN), ("vocab", "in"), "f64")
HEAD = Weight.of(np.cos(0.9 * np.arange(VOCAB * HIDDEN)).reshape(VOCAB, HIDDEN), ("vocab", "in"), "f64")
FEATURES: Array = np.cos(0.3 * np.arange(7 * 16) + 0.5).reshape(7, 16)
ANCHOR, MASK = 3, 10


def geometry(sliding: tuple[bool, bool] = (False, False), window: int | None = None) -> Geometry:
    return Geometry(
        hidden=HIDDEN,
        intermediate=INTER,
        layers=LAYERS,
        heads=HEADS,
        kv_heads=KV,
        head_dim=DIM,
        vocab=VOCAB,
        block_size=BLOCK,
        mask_token_id=MASK,
        tap_ids=(0, 1),
        target_hidden=HIDDEN,
        sliding=sliding,
        window=window,
        window_source="file" if window else "none",
        conv_kernel=CONV,
        conv_group=GROUP,
        selector_rank=RANK,
        selector_top_k=TOP,
    )


def dialect(rule: str = "none", causal: tuple[bool, bool] = (False, False), window: int | None = None, **switches: object) -> Dialect:
    return Dialect("qwen3", 1e-6, Rope(1e4, DIM), DIM**-0.5, causal=causal, window_rule=rule, window=window, **switches)  # type: ignore[arg-type]
