"""The seeded models: everything about one that can vary, and what the sizes of each family are.

The released sizes are those of `specs/dflash-generic.md` section 17 and `specs/muse-glimmer.md` section 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from oracle.artifacts import muse, qwen3
from oracle.artifacts.heads import Heads
from oracle.artifacts.make_muse_target import full_every_fourth
from oracle.artifacts.ropes import llama3_factors
from oracle.drafters.dialect import Geometry
from oracle.recipes import Rope
from oracle.targets.weights import TargetGeometry

LLAMA = "llama"


@dataclass(frozen=True)
class Model:
    """Everything that `make_artifact` can vary; its fields are the names of the overrides.

    ``sinks``: none, ``all`` layers or the ``sliding`` ones.
    """

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    block_size: int = 16
    mask_token_id: int = 0
    tap_ids: tuple[int, ...] = ()
    target_layers: int | None = None
    sliding: tuple[bool, ...] = ()
    window: int | None = None
    context_length: int = 4096
    eps: float = 1e-6
    theta: float = 10000.0
    attention_bias: bool = False
    is_causal: bool | None = None
    embed_scale: float = 1.0
    output_multiplier: float = 1.0
    softcap: float | None = None
    tied: bool = False
    llama3_scaling: tuple[float, float, float, int] | None = None
    naming: str = "published"
    conv_kernel: int = 0
    conv_group: int = 0
    selector_rank: int = 0
    selector_top_k: int = 0
    markov_rank: int = 0
    markov: str = "vanilla"
    confidence: str = "none"
    sample_from_anchor: bool = False
    draft_vocab: int | None = None
    sinks: str = "none"

    def geometry(self) -> Geometry:
        """The drafter geometry that a loader must find in the file."""
        names = {f.name for f in fields(Geometry)} & {f.name for f in fields(self)}
        values: dict[str, Any] = {n: getattr(self, n) for n in names}
        return Geometry(**values, target_hidden=self.hidden, window_source="none" if self.window is None else "file")

    def sink_layers(self) -> tuple[int, ...]:
        """The drafter's layers that have attention sinks."""
        kinds = {"none": (False,) * self.layers, "all": (True,) * self.layers, "sliding": self.sliding}
        return tuple(n for n, has in enumerate(kinds[self.sinks]) if has)

    def parts(self) -> Heads:
        """The parts of DFlash 2 and DSpark that a loader must find in the file."""
        given = {"conv": bool(self.conv_kernel), "selector": bool(self.selector_rank), "markov": self.markov_rank and self.markov}
        sure = {} if self.confidence == "none" else {"confidence": self.confidence}
        return Heads(switches={k: v for k, v in given.items() if v} | sure)

    def target(self, style: str) -> TargetGeometry:
        """The target geometry that a loader must find in the file; ``style``: rope pairing."""
        factors = None if self.llama3_scaling is None else llama3_factors(self.theta, self.head_dim, *self.llama3_scaling)
        sizes = {n: getattr(self, n) for n in ("hidden", "intermediate", "layers", "heads", "kv_heads", "head_dim", "vocab", "eps")}
        return TargetGeometry(
            LLAMA,
            **sizes,
            rope=Rope(self.theta, self.head_dim, style, factors),
            attn_scale=self.head_dim**-0.5,
            context_length=self.context_length,
            tied_embedding=self.tied,
        )


_TINY: dict[str, Any] = {
    "hidden": 256,
    "intermediate": 512,
    "heads": 8,
    "kv_heads": 2,
    "head_dim": 32,
    "vocab": 500,
    "window": 24,
    "block_size": 8,
}
_SMALL: dict[str, Any] = {"hidden": 512, "intermediate": 1536, "heads": 12, "kv_heads": 4, "head_dim": 64, "vocab": 4096, "window": 64}
_MUSE: dict[str, Any] = {"layers": 5, "sliding": (True,) * 5, "eps": 1e-5, "theta": 500000.0}
# A depth that is no multiple of 4 tells whether full layers are counted backward (`specs/muse-glimmer.md` 1.2).
_MUSE_SMALL: dict[str, Any] = _MUSE | {"tap_ids": (1, 3, 5, 6, 8), "target_layers": 10}
_MUSE_TARGET: dict[str, Any] = {"eps": 1e-5, "theta": 500000.0, "softcap": 20.0}
_LLAMA: dict[str, Any] = {"window": None, "eps": 1e-5}
MODELS: dict[tuple[str, str], Model] = {
    (muse.FAMILY, "tiny"): Model(**{**_TINY, **_MUSE_SMALL, "mask_token_id": 496}),
    (muse.FAMILY, "small"): Model(**{**_SMALL, **_MUSE_SMALL, "mask_token_id": 4090}),
    (muse.FAMILY, "release"): Model(
        6656,
        19968,
        heads=32,
        kv_heads=8,
        head_dim=128,
        vocab=202048,
        mask_token_id=201818,
        tap_ids=(1, 13, 25, 37, 49),
        target_layers=52,
        window=2048,
        context_length=131072,
        **_MUSE,
    ),
    (qwen3.FAMILY, "tiny"): Model(
        **{**_TINY, "layers": 3, "sliding": (True, False, True), "tap_ids": (1, 3, 4), "target_layers": 6, "mask_token_id": 496}
    ),
    (qwen3.FAMILY, "small"): Model(
        **{**_SMALL, "layers": 4, "sliding": (True, False, True, False), "tap_ids": (1, 3, 6), "target_layers": 8, "mask_token_id": 4090}
    ),
    (qwen3.FAMILY, "release"): Model(
        4096,
        12288,
        5,
        32,
        8,
        128,
        151936,
        mask_token_id=151669,
        tap_ids=(1, 9, 17, 25, 33),
        target_layers=36,
        sliding=(False,) * 5,
        context_length=40960,
        theta=1e6,
    ),
    (LLAMA, "tiny"): Model(**{**_TINY, **_LLAMA, "layers": 6}),
    (LLAMA, "small"): Model(**{**_SMALL, **_LLAMA, "layers": 8}),
    (LLAMA, "release"): Model(
        4096, 14336, 32, 32, 8, 128, 128256, context_length=131072, eps=1e-5, theta=5e5, llama3_scaling=(8.0, 1.0, 4.0, 8192)
    ),
}
# Targets of families that have a drafter too.
TARGET_MODELS: dict[tuple[str, str], Model] = {
    (muse.FAMILY, "tiny"): Model(
        **{**_TINY, **_MUSE_TARGET, "intermediate": 256, "layers": 10, "sliding": full_every_fourth(10), "output_multiplier": 0.7}
    ),
    (muse.FAMILY, "small"): Model(
        **{**_SMALL, **_MUSE_TARGET, "intermediate": 768, "layers": 10, "sliding": full_every_fourth(10), "output_multiplier": 0.7}
    ),
    (muse.FAMILY, "release"): Model(
        6656,
        19968,
        52,
        32,
        2,
        128,
        202048,
        sliding=full_every_fourth(52),
        window=2048,
        context_length=131072,
        output_multiplier=26**-0.5,
        **_MUSE_TARGET,
    ),
}
