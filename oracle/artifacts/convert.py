"""SafeTensors folder <-> GGUF file: every tensor bit for bit in its stored format, metadata both ways, read back before it counts.

Source: `specs/dflash-generic.md` sections 7 to 9, 11 and 18; a Llama's q and k rows go from half to interleaved pairs and back.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.artifacts import blocks, muse, qwen3, targets
from oracle.artifacts.container import ArtifactError, Container, fail, open_container, show
from oracle.artifacts.descriptions import draft_config, draft_keys, target_config, target_keys
from oracle.artifacts.drafters import DrafterFiles, open_drafter_files
from oracle.artifacts.heads import Heads, d2t_tensor, head_roles
from oracle.artifacts.make import Model
from oracle.artifacts.roles import MUSE_DRAFTER, Role, drafter_roles, target_roles
from oracle.artifacts.targets import ROPE_FACTORS, TargetFiles, open_target_files, target_family
from oracle.artifacts.writers import PlannedTensor, Typed, write_folder, write_gguf
from oracle.drafters.dialect import Dialect, Geometry
from oracle.targets.weights import TargetGeometry
from oracle.weights import Weight

Rows = NDArray[np.uint8]
Files = DrafterFiles | TargetFiles
SHARED = {f.name for f in fields(Model)}
# What one container records and the other does not, or records as its own choice; it is no part of the mathematics.
UNSAID = ("target_layers", "window_source")


@dataclass(frozen=True)
class Converted:
    """What was written, how many tensors, and ``notes``: what the new container cannot say or had to be given."""

    path: Path
    family: str
    tensors: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """A model on its way: its description, the weights by role, and the rows to reorder by role (None: as they are)."""

    files: Files
    model: Model
    family: str
    weights: dict[str, Weight]
    roles: dict[str, Role]
    reorder: dict[str, Callable[[Rows], Rows]]
    more: list[PlannedTensor]


def convert_artifact(source: str | Path, destination: str | Path, family: str | None = None) -> Converted:
    """Convert a GGUF file into a folder, or a folder into a GGUF file (``destination`` ends in ``.gguf``).

    Written under a temporary name, read back and compared (every decoded tensor to the bit, geometry and dialect), then renamed.
    `ArtifactError` for a model that cannot be read, or that the other container cannot hold; nothing is then left behind.
    """
    container, goal = open_container(source), Path(destination)
    kind = "gguf" if goal.suffix == ".gguf" else "safetensors"
    if container.kind == kind:
        wanted = "a folder (a name without .gguf)" if kind == "gguf" else "a name ending in .gguf"
        fail(goal, f"{container.path} is a {kind} artifact already; expected {wanted} as the destination")
    if goal.exists():
        fail(goal, "exists already; name another destination or remove it")
    plan = _plan(container, kind, family)
    _check_formats(container, plan, kind)
    partial = goal.with_name(f".{goal.name}.{os.getpid()}.converting")
    try:
        notes = _write(container, plan, partial, kind)
        _verify(plan, partial, goal)
        partial.rename(goal)
    except OSError as error:
        fail(goal, f"cannot be written ({error.strerror or error}); check the folder and the space left")
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        partial.unlink(missing_ok=True)
    return Converted(goal, plan.family, len(plan.weights) + len(plan.more), tuple(notes))


def _plan(container: Container, kind: str, family: str | None) -> Plan:
    if _is_target(container):
        found = target_family(container)
        if found != targets.FAMILY:
            fail(container.path, f"family {found}: only {targets.FAMILY} targets are converted; its other container has no agreed form")
        return _target_plan(open_target_files(container.path), kind)
    drafter = open_drafter_files(container.path, family)
    if drafter.identity.family not in (muse.FAMILY, qwen3.FAMILY):
        known = f"{muse.FAMILY} and {qwen3.FAMILY}"
        fail(container.path, f"family {drafter.identity.family}: only {known} drafters are converted; GGUF has no place for its parts")
    return _drafter_plan(container, drafter, kind)


def _is_target(container: Container) -> bool:
    if container.kind == "gguf":
        return container.metadata.get("general.architecture") in targets.READERS
    named = container.metadata.get("architectures")
    return isinstance(named, list) and len(named) == 1 and named[0] in targets.ARCHITECTURES.values()


def _drafter_plan(container: Container, drafter: DrafterFiles, kind: str) -> Plan:
    g, d, family = drafter.geometry, drafter.dialect, drafter.identity.family
    weights = _by_role(drafter.weights)
    switches = {k: v for k in ("conv", "selector", "markov", "confidence") if (v := getattr(d, k)) not in (False, "none")}
    style = "gguf" if kind == "gguf" else "hf"
    outer = MUSE_DRAFTER if family == muse.FAMILY and style == "hf" else None
    try:
        more = head_roles(g, Heads(switches=switches), style, set())
    except ValueError as error:
        fail(container.path, str(error))
    biased = any(key.endswith("q_bias") for key in weights)
    roles = drafter_roles(g, style, biased, outer) | more
    if "confidence_bias" not in weights:
        roles.pop("confidence_bias", None)
    ids = drafter.weights.target_ids
    extra = d2t_tensor(g, ids, kind) if ids is not None else []
    return Plan(drafter, _drafter_model(g, d, biased), family, weights, roles, {}, extra)


def _drafter_model(g: Geometry, d: Dialect, biased: bool) -> Model:
    """The description that `draft_keys` and `draft_config` write; what it cannot say shows when the file is read back."""
    causal = None if d.family == muse.FAMILY or d.causal == g.sliding else all(d.causal)
    given = {k: v for k, v in asdict(g).items() if k in SHARED} | {k: v for k, v in asdict(d).items() if k in SHARED and k != "window"}
    given |= {"theta": d.rope.theta, "is_causal": causal, "attention_bias": biased, "sample_from_anchor": d.anchor_layout == "predict_next"}
    return Model(**given)


def _target_plan(target: TargetFiles, kind: str) -> Plan:
    g = target.geometry
    factors = g.rope.factors
    model = Model(**{k: v for k, v in asdict(g).items() if k in SHARED}, theta=g.rope.theta, tied=g.tied_embedding)
    weights = _by_role(target.weights)
    if g.tied_embedding:
        del weights["head"]
    step, more = (_to_pairs, []) if kind == "gguf" else (_to_halves, [])
    if g.rope.dim != g.head_dim:
        wide = f"a rotary width of {g.rope.dim} in heads of {g.head_dim}"
        fail(target.identity.files[0].path, f"{wide} has no place in a Llama's config.json")
    if factors is not None and kind == "gguf":
        more = [PlannedTensor(ROPE_FACTORS, (len(factors),), "f32", lambda: iter([np.asarray(factors, "<f4").view(np.uint8)[None]]))]
    elif factors is not None and len(set(factors)) > 1:
        fail(
            target.identity.files[0].path,
            f"tensor {ROPE_FACTORS!r}: uneven factors have no place in config.json, whose rope types make theirs from parameters",
        )
    reorder = {f"{n}.{part}": step(heads) for n in range(g.layers) for part, heads in (("q", g.heads), ("k", g.kv_heads))}
    return Plan(target, model, targets.FAMILY, weights, target_roles(g, "gguf" if kind == "gguf" else "hf"), reorder, more)


def _to_pairs(heads: int) -> Callable[[Rows], Rows]:
    return lambda rows: rows.reshape(heads, 2, -1, rows.shape[-1]).swapaxes(1, 2).reshape(-1, rows.shape[-1])


def _to_halves(heads: int) -> Callable[[Rows], Rows]:
    return lambda rows: rows.reshape(heads, -1, 2, rows.shape[-1]).swapaxes(1, 2).reshape(-1, rows.shape[-1])


def _by_role(weights: Any) -> dict[str, Weight]:
    """Every weight of a drafter or a target under the key its role has: ``fc``, ``3.q``, ``markov.w1`` …"""
    found: dict[str, Weight] = {}
    for part, value in vars(weights).items():
        if isinstance(value, Weight):
            found[part] = value
        elif part == "layers":
            found |= {f"{n}.{k}": w for n, layer in enumerate(value) for k, w in vars(layer).items() if isinstance(w, Weight)}
        elif hasattr(value, "__dataclass_fields__"):
            found |= {f"{part}.{k}": w for k, w in vars(value).items() if isinstance(w, Weight)}
    return found


def _check_formats(container: Container, plan: Plan, kind: str) -> None:
    if plan.weights.keys() != plan.roles.keys():
        odd = sorted(plan.weights.keys() ^ plan.roles.keys())
        fail(container.path, f"the other container has no name for {', '.join(odd[:4])}")
    for w in plan.weights.values():
        if kind == "safetensors" and w.stored not in blocks.PLAIN:
            fail(
                container.path,
                f"tensor {show(w.name.rpartition(':')[2])} is stored as {w.stored}, which SafeTensors cannot hold "
                f"({', '.join(blocks.PLAIN)}); a conversion that kept its values would change its format, start from a plain file",
            )


def _write(container: Container, plan: Plan, path: Path, kind: str) -> list[str]:
    tensors = [_planned(role, plan.weights[key], plan.reorder.get(key)) for key, role in plan.roles.items()] + plan.more
    model, target = plan.model, plan.family == targets.FAMILY
    notes = []
    if kind == "gguf":
        keys = target_keys(targets.FAMILY, model) if target else draft_keys(plan.family, model)
        keys["general.name"] = Typed("string", container.path.name)
        _carry(container.metadata.get("eos_token_id"), lambda v: keys.update({"tokenizer.ggml.eos_token_id": Typed("u32", v)}))
        write_gguf(path, {k: v for k, v in keys.items() if v.value is not None}, tensors)
        notes.append(f"the tokenizer is not part of the folder's config: {model.vocab} numbered tokens stand in for it")
    else:
        plain = plan.weights["norm"].stored
        config = target_config(model, plain) if target else draft_config(plan.family, model, plain)
        factors = plan.files.geometry.rope.factors if isinstance(plan.files, TargetFiles) else None
        if factors is not None:
            config["rope_parameters"] |= {"rope_type": "linear", "factor": factors[0]}
        _carry(container.metadata.get("tokenizer.ggml.eos_token_id"), lambda v: config.update({"eos_token_id": v}))
        write_folder(path, {k: v for k, v in config.items() if v is not None}, tensors)
        notes.append("the tokenizer of the GGUF file is not carried over: a config has no place for it")
    if getattr(plan.files.geometry, "target_layers", None) is not None and kind == "gguf":
        notes.append("num_target_layers is left out: GGUF has no key for it")
    return notes


def _carry(value: Any, put: Callable[[int], None]) -> None:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 32:
        put(value)


def _planned(role: Role, w: Weight, reorder: Callable[[Rows], Rows] | None) -> PlannedTensor:
    def chunks() -> Iterator[Rows]:
        if reorder is not None:
            yield reorder(w.raw)
            return
        for start, stop in w.spans(1 << 20):
            yield w.raw[start:stop]

    return PlannedTensor(role.name, role.flat, w.stored, chunks)


def _verify(plan: Plan, path: Path, goal: Path) -> None:
    """Open what was written with the strict loader and compare it with the source; `ArtifactError` when anything differs."""
    try:
        again: Files = open_target_files(path) if plan.family == targets.FAMILY else open_drafter_files(path, plan.family)
    except ArtifactError as error:
        fail(goal, f"the converted model does not read back: {str(error).replace(str(path), goal.name)}")
    for what, mine, theirs in (("geometry", plan.files.geometry, again.geometry), *_dialects(plan.files, again)):
        differing = [k for k, v in _plain(mine).items() if _plain(theirs)[k] != v and k not in UNSAID]
        if differing:
            values = ", ".join(f"{k} {show(_plain(mine)[k])} reads back as {show(_plain(theirs)[k])}" for k in differing)
            fail(goal, f"the other container cannot hold this {what}: {values}")
    if isinstance(again, DrafterFiles) and isinstance(plan.files, DrafterFiles):
        ids = plan.files.weights.target_ids, again.weights.target_ids
        if not (ids[0] is ids[1] is None or np.array_equal(*ids)):  # type: ignore[arg-type]
            fail(goal, "the draft vocabulary's target ids do not read back as they were")
    written = _by_role(again.weights)
    for key, w in plan.weights.items():
        if not same_values(w, written[key], plan.reorder.get(key)):
            fail(goal, f"tensor {show(plan.roles[key].name)} does not read back as it was; the disk or the conversion is at fault")


def _dialects(a: Files, b: Files) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(a, DrafterFiles) and isinstance(b, DrafterFiles):
        yield "dialect", a.dialect, b.dialect


def _plain(value: Any) -> dict[str, Any]:
    """A geometry or dialect as comparable values: rope pairing is the container's own, rope factors are f32 in GGUF."""
    out = asdict(value)
    if isinstance(value, TargetGeometry):
        rope = value.rope
        factors = rope.factors and tuple(float(np.float32(f)) for f in rope.factors)
        out["rope"] = (rope.theta, rope.dim, rope.attention_factor, factors)
    return out


def same_values(a: Weight, b: Weight, reorder: Callable[[Rows], Rows] | None = None) -> bool:
    """Whether every decoded value of ``b`` is that of ``a`` to the bit, ``a``'s rows reordered first where they are to be."""
    if (a.shape, a.stored) != (b.shape, b.stored):
        return False
    order = np.arange(a.row_count)
    if reorder is not None:
        numbered = order.astype("<u4")[:, None].view(np.uint8)
        order = np.ascontiguousarray(reorder(numbered)).view("<u4")[:, 0].astype(np.int64)
    for start, stop in b.spans():
        rows = order[start:stop]
        mine = blocks.decode(a.raw[rows], a.stored, a.width)
        theirs = blocks.decode(b.raw[start:stop], b.stored, b.width)
        if not np.array_equal(mine.view(np.uint64), theirs.view(np.uint64)):
            return False
    return True
