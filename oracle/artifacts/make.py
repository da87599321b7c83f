"""Make seeded artifacts: a drafter with what it borrows, or a target, at one of three sizes.

The released sizes are those of `specs/dflash-generic.md` section 17 and `specs/muse-glimmer.md` section 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.artifacts import laguna, make_laguna, make_qwen38, muse, qwen3, qwen38, targets
from oracle.artifacts.blocks import FORMATS, PLAIN
from oracle.artifacts.container import ArtifactError
from oracle.artifacts.descriptions import draft_config, draft_keys, target_config, target_keys
from oracle.artifacts.drafters import open_drafter_files
from oracle.artifacts.heads import Heads, d2t_tensor, head_roles
from oracle.artifacts.make_muse_target import full_every_fourth, write_muse_target
from oracle.artifacts.roles import MUSE_DRAFTER, Role, drafter_roles, target_roles
from oracle.artifacts.ropes import llama3_factors
from oracle.artifacts.seeds import Recipe, plan
from oracle.artifacts.targets import ROPE_FACTORS, open_borrowed, open_target_files
from oracle.artifacts.writers import PlannedTensor, write_folder, write_gguf
from oracle.drafters.dialect import Geometry
from oracle.recipes import Rope
from oracle.targets.weights import TargetGeometry

FAMILIES = (muse.FAMILY, qwen3.FAMILY, qwen38.FAMILY, laguna.FAMILY, targets.FAMILY)
ROLES = ("drafter", "target")
SIZES = ("tiny", "small", "release")
CONTAINERS = ("gguf", "safetensors")


@dataclass(frozen=True)
class Model:
    """Everything that `make_artifact` can vary; its fields are the names of the overrides."""

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

    def geometry(self) -> Geometry:
        """The drafter geometry that a loader must find in the file."""
        names = {f.name for f in fields(Geometry)} & {f.name for f in fields(self)}
        values: dict[str, Any] = {n: getattr(self, n) for n in names}
        return Geometry(**values, target_hidden=self.hidden, window_source="none" if self.window is None else "file")

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
            targets.FAMILY,
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
    (targets.FAMILY, "tiny"): Model(**{**_TINY, **_LLAMA, "layers": 6}),
    (targets.FAMILY, "small"): Model(**{**_SMALL, **_LLAMA, "layers": 8}),
    (targets.FAMILY, "release"): Model(
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


def make_artifact(
    family: str,
    size: str,
    weights: str,
    out_dir: str | Path,
    seed: int = 0,
    container: str | None = None,
    role: str | None = None,
    **overrides: Any,
) -> list[Path]:
    """Write seeded artifacts into ``out_dir`` and return what to open: the model, then what it borrows from.

    ``muse-glimmer``: ``draft.gguf`` (or ``drafter/``) and its target ``target.gguf`` (or ``target/``). ``qwen3``: ``drafter/``
    (or ``draft.gguf``) and the target ``target/``. ``llama``: ``target/`` or ``target.gguf``. ``qwen38-flash-next``:
    ``drafter/`` (or ``draft.gguf``) and its target ``target/``. ``laguna``: ``drafter/`` and its target ``target/``.
    ``weights``: a format of `blocks.FORMATS` for all matrices; ``q4_k`` mixes q6_k and q5_k in. ``container``: ``gguf`` or
    ``safetensors``; the default follows the family and the format. ``role``: ``target`` for the target alone of a family that has
    both; ``overrides``: fields of the `Model` of that role. At release size only the drafter is written for ``qwen3``,
    ``qwen38-flash-next`` and ``laguna``, the drafter and ``borrowed.gguf`` (the
    target's embedding and head) for ``muse-glimmer``, and matrices are random blocks, streamed. ValueError for a choice that does not
    exist or does not fit.
    """
    if family == laguna.FAMILY:
        _check_choices(family, size, weights, container, role, {})
        changes: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in overrides.items()}
        written = make_laguna.make(Path(out_dir), size, weights, seed, container, role, changes)
        return [_checked(path, laguna.FAMILY if path.name == "drafter" else targets.FAMILY) for path in written]
    if family == qwen38.FAMILY:
        _check_choices(family, size, weights, container, role, {})
        return _make_qwen38(size, weights, Path(out_dir), seed, container, role, overrides)
    _check_choices(family, size, weights, container, role, overrides)
    changes = {k: tuple(v) if isinstance(v, list) else v for k, v in overrides.items()}
    alone = role == "target" and family != targets.FAMILY
    model = replace((TARGET_MODELS if alone else MODELS)[family, size], **changes)
    kind = container or ("gguf" if family == muse.FAMILY or weights not in PLAIN else "safetensors")
    release = size == "release"
    recipe = Recipe(seed, weights, weights if kind == "safetensors" else "f32", release, model.vocab // 3)
    out = Path(out_dir)
    if alone:
        return [_checked(write_muse_target(out, model, recipe, kind), targets.FAMILY)]
    if family == targets.FAMILY:
        return [_checked(_write_target(out, model, recipe, kind), targets.FAMILY)]
    made = [_checked(_write_drafter(out, family, model, recipe, kind), family)]
    if family == muse.FAMILY and not release:
        made.append(_checked(write_muse_target(out, _muse_companion(model, size), recipe, kind), targets.FAMILY))
    elif family == muse.FAMILY:
        made.append(_checked(_write_borrowed(out / "borrowed.gguf", model, replace(recipe, norms="f32")), "borrowed"))
    elif not release:
        plain = weights if weights in PLAIN else "bf16"
        target = _write_target(out, _companion(model, size), replace(recipe, weights=plain, norms=plain), "safetensors")
        made.append(_checked(target, targets.FAMILY))
    return made


def _make_qwen38(
    size: str, weights: str, out: Path, seed: int, container: str | None, role: str | None, overrides: dict[str, Any]
) -> list[Path]:
    """The drafter and its target (not at release size), or the target alone; a target is a folder of plain weights."""
    changes: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in overrides.items()}
    model = make_qwen38.changed(size, changes)
    kind, release = container or ("gguf" if weights not in PLAIN else "safetensors"), size == "release"
    if role == "target" and (release or kind == "gguf"):
        raise ValueError(f"a {qwen38.FAMILY} target is written tiny or small, as a SafeTensors folder of plain weights")
    recipe = Recipe(seed, weights, weights if kind == "safetensors" else "f32", release, model.vocab // 3)
    plain = weights if weights in PLAIN else "bf16"
    made = [] if role == "target" else [_checked(make_qwen38.write_qwen38_drafter(out, model, recipe, kind), qwen38.FAMILY)]
    if not release:
        target = make_qwen38.write_qwen38_target(out, model, replace(recipe, weights=plain, norms=plain))
        made.append(_checked(target, targets.FAMILY))
    return made


def _check_choices(family: str, size: str, weights: str, container: str | None, role: str | None, overrides: dict[str, Any]) -> None:
    known = [f.name for f in fields(Model)]
    roles = {targets.FAMILY: ("target",), muse.FAMILY: ROLES, qwen38.FAMILY: ROLES, laguna.FAMILY: ROLES}.get(family, ("drafter",))
    for what, value, choices in (
        ("family", family, FAMILIES),
        ("size", size, SIZES),
        ("weights", weights, tuple(FORMATS)),
        ("container", container or CONTAINERS[0], CONTAINERS),
        (f"{family} role", role or roles[0], roles),
        *(("override", name, tuple(known)) for name in overrides),
    ):
        if value not in choices:
            raise ValueError(f"{what} {value!r}: expected one of {', '.join(choices)}")
    if container == "safetensors" and weights not in PLAIN:
        raise ValueError(f"weights {weights!r} need a GGUF file; SafeTensors holds {', '.join(PLAIN)}")


def _checked(path: Path, family: str) -> Path:
    """``path`` once our own loader accepts it; a file it refuses is removed and the reason raised."""
    try:
        if family == targets.FAMILY:
            open_target_files(path)
        elif family == "borrowed":
            open_borrowed(path)
        else:
            open_drafter_files(path, family)
    except ArtifactError:
        for file in [path] if path.is_file() else [path / "config.json", path / "model.safetensors"]:
            file.unlink(missing_ok=True)
        raise
    return path


def _companion(model: Model, size: str) -> Model:
    """The target that a drafter's taps, embedding and head come from."""
    return replace(
        MODELS[targets.FAMILY, size], hidden=model.hidden, vocab=model.vocab, layers=model.target_layers or max(model.tap_ids) + 1
    )


def _muse_companion(model: Model, size: str) -> Model:
    """The target of a Muse drafter: as wide, deep enough for the taps, and sliding by the drafter's window."""
    layers = model.target_layers or max(model.tap_ids) + 1
    base = TARGET_MODELS[muse.FAMILY, size]
    same = {n: getattr(model, n) for n in ("hidden", "vocab", "context_length")}
    return replace(base, **same, layers=layers, sliding=full_every_fourth(layers), window=model.window or base.window)


def _write_drafter(out: Path, family: str, model: Model, recipe: Recipe, kind: str) -> Path:
    g = model.geometry()
    if kind == "gguf":
        path = out / "draft.gguf"
        roles = drafter_roles(g, "gguf", model.attention_bias) | head_roles(g, model.parts(), "gguf", set())
        write_gguf(path, draft_keys(family, model), plan(recipe, roles) + d2t_tensor(g, _draft_ids(recipe, g), kind))
        return path
    head = MUSE_DRAFTER if family == muse.FAMILY and model.naming == "published" else None
    roles = drafter_roles(g, "hf", model.attention_bias, head) | head_roles(g, model.parts(), "hf", set())
    tensors = plan(recipe, roles) + d2t_tensor(g, _draft_ids(recipe, g), kind)
    write_folder(out / "drafter", draft_config(family, model, recipe.weights), tensors)
    return out / "drafter"


def _draft_ids(recipe: Recipe, g: Geometry) -> NDArray[np.int64]:
    """Seeded target ids of a reduced vocabulary, rising."""
    return np.sort(np.random.default_rng(recipe.seed).permutation(g.vocab)[: g.draft_vocab or 0])


def _write_target(out: Path, model: Model, recipe: Recipe, kind: str) -> Path:
    if kind == "safetensors":
        write_folder(out / "target", target_config(model, recipe.weights), plan(recipe, target_roles(model.target("neox"), "hf")))
        return out / "target"
    g = model.target("interleaved")
    tensors = plan(recipe, target_roles(g, "gguf"), {"q": g.heads, "k": g.kv_heads})
    if g.rope.factors is not None:
        tensors.append(_vector(ROPE_FACTORS, g.rope.factors))
    write_gguf(out / "target.gguf", target_keys(targets.FAMILY, model), tensors)
    return out / "target.gguf"


def _vector(name: str, values: tuple[float, ...]) -> PlannedTensor:
    return PlannedTensor(name, (len(values),), "f32", lambda: iter([np.asarray(values, "<f4").view(np.uint8)[None]]))


def _write_borrowed(path: Path, model: Model, recipe: Recipe) -> Path:
    """The embedding and head of a target that is not itself written."""
    shape = (model.vocab, model.hidden)
    roles = {"embedding": Role("token_embd.weight", shape, ("vocab", "in")), "head": Role("output.weight", shape, ("vocab", "in"))}
    write_gguf(path, target_keys(muse.FAMILY, model), plan(recipe, roles))
    return path
