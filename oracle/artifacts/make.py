"""Make seeded artifacts: a drafter with what it borrows, or a target, at one of three sizes."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.artifacts import laguna, make_laguna, make_qwen38, muse, qwen3, qwen38, targets
from oracle.artifacts.blocks import FORMATS, PLAIN
from oracle.artifacts.container import ArtifactError
from oracle.artifacts.descriptions import draft_config, draft_keys, target_config, target_keys
from oracle.artifacts.drafters import open_drafter_files
from oracle.artifacts.heads import d2t_tensor, head_roles
from oracle.artifacts.make_models import MODELS, TARGET_MODELS, Model
from oracle.artifacts.make_muse_target import full_every_fourth, write_muse_target
from oracle.artifacts.roles import GGUF_LAYER, HF_LAYER, MUSE_DRAFTER, Role, drafter_roles, target_roles
from oracle.artifacts.seeds import Recipe, plan
from oracle.artifacts.targets import ROPE_FACTORS, open_borrowed, open_target_files
from oracle.artifacts.writers import PlannedTensor, write_folder, write_gguf
from oracle.drafters.dialect import Geometry

FAMILIES = (muse.FAMILY, qwen3.FAMILY, qwen38.FAMILY, laguna.FAMILY, targets.FAMILY)
ROLES = ("drafter", "target")
SIZES = ("tiny", "small", "release")
CONTAINERS = ("gguf", "safetensors")


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
    (or ``draft.gguf``) and the target ``target/``. ``llama``: ``target/`` or ``target.gguf``. ``qwen38-flash-next`` and ``laguna``:
    ``drafter/`` (or ``draft.gguf``) and its target ``target/``; the target alone also as ``target.gguf``.
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
        return [_checked(path, laguna.FAMILY if path.name.startswith("draft") else targets.FAMILY) for path in written]
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
    """The drafter and its target (not at release size), or the target alone; beside a drafter it is a folder of plain weights."""
    changes: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in overrides.items()}
    model = make_qwen38.changed(size, changes)
    kind, release = container or ("gguf" if weights not in PLAIN else "safetensors"), size == "release"
    if role == "target" and release:
        raise ValueError(f"a {qwen38.FAMILY} target is written tiny or small")
    recipe = Recipe(seed, weights, weights if kind == "safetensors" else "f32", release, model.vocab // 3)
    plain = weights if weights in PLAIN else "bf16"
    made = [] if role == "target" else [_checked(make_qwen38.write_qwen38_drafter(out, model, recipe, kind), qwen38.FAMILY)]
    if role == "target" and kind == "gguf":
        made.append(_checked(make_qwen38.write_qwen38_target_gguf(out, model, recipe), targets.FAMILY))
    elif not release:
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
        roles = drafter_roles(g, "gguf", model.attention_bias) | head_roles(g, model.parts(), "gguf", set()) | _sinks(model, kind)
        write_gguf(path, draft_keys(family, model), plan(recipe, roles) + d2t_tensor(g, _draft_ids(recipe, g), kind))
        return path
    head = MUSE_DRAFTER if family == muse.FAMILY and model.naming == "published" else None
    roles = drafter_roles(g, "hf", model.attention_bias, head) | head_roles(g, model.parts(), "hf", set()) | _sinks(model, kind)
    tensors = plan(recipe, roles) + d2t_tensor(g, _draft_ids(recipe, g), kind)
    write_folder(out / "drafter", draft_config(family, model, recipe.weights), tensors)
    return out / "drafter"


def _sinks(model: Model, kind: str) -> dict[str, Role]:
    names, stem = (GGUF_LAYER, "blk") if kind == "gguf" else (HF_LAYER, "layers")
    return {f"{n}.sinks": Role(f"{stem}.{n}.{names['sinks']}", (model.heads,), ("head",)) for n in model.sink_layers()}


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
